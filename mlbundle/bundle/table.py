"""The file table `mlbundle/files.jsonl`: one line a file, in byte order of the paths.

A line is `{"path":…,"size":…,"sha256":…,"mode":…,"layer":…}`: compact JSON, these keys, this order. `layer`
is the index of the layer that holds the file, `mode` is "0644" or "0755".
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from mlbundle.bundle.oci import go_json
from mlbundle.bundle.paths import check_path
from mlbundle.bundle.strictjson import MAX_INTEGER
from mlbundle.errors import BundleCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_FILES = 100_000
MAX_TABLE_BYTES = 64 << 20

_LINE = re.compile(
    rb'\{"path":("(?:[^"\\]++|\\.)*+"),"size":(0|[1-9][0-9]{0,18}),"sha256":"([0-9a-f]{64})",'
    rb'"mode":"(0644|0755)","layer":(0|[1-9][0-9]{0,5})\}'
)


class FileEntry(NamedTuple):
    """One file of the table; `path` is where `unpack` puts it."""

    path: str
    size_bytes: int
    sha256: str
    mode: int
    layer: int


def encode_table(entries: Iterable[FileEntry]) -> bytes:
    """Return the table of files that are already in byte order of their paths."""
    return b"".join(
        b'{"path":%b,"size":%d,"sha256":"%b","mode":"%04o","layer":%d}\n'
        % (go_json(entry.path), entry.size_bytes, entry.sha256.encode(), entry.mode, entry.layer)
        for entry in entries
    )


def parse_table(data: bytes, where: str) -> tuple[FileEntry, ...]:
    """Return the files of a table.

    Raises BundleCorrupt for a line of another form, paths out of order or more than 100,000 files, and
    UnsafePath for a path against the grammar; `where` gets the number of the line.
    """
    if data and not data.endswith(b"\n"):
        raise BundleCorrupt("the last line is not ended", where=where)
    lines = data.split(b"\n")[:-1]
    if len(lines) > MAX_FILES:
        raise BundleCorrupt(f"{len(lines)} files are over the cap of {MAX_FILES}", where=where)
    entries: list[FileEntry] = []
    previous = b""
    for number, line in enumerate(lines, start=1):
        entry = _entry(line, f"{where}, line {number}")
        path = entry.path.encode("utf-8")
        if path <= previous:
            raise BundleCorrupt("the paths are not in order", where=f"{where}, line {number}")
        previous = path
        entries.append(entry)
    return tuple(entries)


def _entry(line: bytes, where: str) -> FileEntry:
    match = _LINE.fullmatch(line)
    if match is None:
        raise BundleCorrupt("the line does not describe a file", where=where)
    raw_path, size, sha256, mode, layer = match.groups()
    try:
        path = json.loads(raw_path)
    except ValueError:
        raise BundleCorrupt("the path is no JSON string", where=where) from None
    check_path(path, where=where)
    if go_json(path) != raw_path or int(size) > MAX_INTEGER:
        raise BundleCorrupt("the line is not in canonical form", where=where)
    return FileEntry(path, int(size), sha256.decode(), int(mode, 8), int(layer))
