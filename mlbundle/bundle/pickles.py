"""Finds Python pickles by their bytes, in any disguise, without ever loading one.

A pickle is a program; whoever loads it runs it. It hides in `.pkl`, `.pt`, `.joblib`, in `.npz` with object
arrays, compressed or not, so names are not asked. Looked at are: the opcodes themselves (all protocols, by the
table of `pickletools`), the same behind gzip, zlib, bzip2 or xz, inside the members of a zip, and the header of
`.npy` with objects. What is found is reported, never executed.
"""

from __future__ import annotations

import re
import struct
import zlib
from functools import partial
from typing import TYPE_CHECKING

from mlbundle.bundle.effort import Effort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol

    from mlbundle.bundle.reader import BundleReader, Layer, PlacedFile

    class _Decompressor(Protocol):
        def decompress(self, data: bytes, max_length: int, /) -> bytes: ...

    ReadAt = Callable[[int, int], bytes]

WINDOW_BYTES = 16 << 10
OPENERS = frozenset(
    b"()BCFGIJKLMNPSTUVX]cghjpqr}\x80\x82\x83\x84\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x95\x96\x97"
)
"""Opcodes that take nothing from the stack: no pickle begins with another byte."""

_HEAD_BYTES = 512
_WRAPPERS = (b"\x93NUMPY", b"\x1f\x8b", b"\x78", b"BZh", b"\xfd7zXZ\0", b"\x5d\0\0")
_SUSPECTS = OPENERS | {wrapper[0] for wrapper in _WRAPPERS}
_PNG = b"\x89PNG\r\n\x1a\n"
"""Begins with two opcodes, of which the second ends at the newline; what follows is none."""

_AHEAD_BYTES = 4 << 10
_MAX_NESTING = 3
_MAX_TAIL_BYTES = (64 << 10) + 22
_MAX_ZIP_ENTRIES = 10_000
_MAX_DIRECTORY_BYTES = 4 << 20
_NPY_OBJECTS = re.compile(rb"'descr':\s*(?:'[|<>=]?O|\[.*'[|<>=]?O)", re.DOTALL)


def find_pickles(
    reader: BundleReader, read_inflated: Callable[[Layer, int, int], bytes] | None = None
) -> tuple[str, ...]:
    """Return the paths of the files of a bundle that hold a pickle, in order.

    `read_inflated(layer, offset, size)` gives bytes of layers that are compressed; without it their files are not
    looked at.
    """
    found: list[str] = []
    effort = Effort()
    for layer in reader.layers:
        if layer.compressed and read_inflated is not None:
            read_layer = partial(read_inflated, layer)
        elif not layer.compressed:
            read_layer = partial(reader.source.read_at, layer.hex)
        else:
            continue
        found += (
            file.entry.path
            for file in _suspects(layer, read_layer)
            if holds_pickle(_reading(file, read_layer), file.entry.size_bytes, effort)
        )
    return tuple(sorted(found, key=str.encode))


def _suspects(layer: Layer, read_layer: ReadAt) -> Iterator[PlacedFile]:
    """Yield the files of a layer that may hold a pickle by their first bytes; neighbours are read together."""
    start, window = 0, b""
    for file in layer.files:
        wanted = min(len(_PNG), file.entry.size_bytes)
        if file.offset + wanted > start + len(window):
            start, window = file.offset, read_layer(file.offset, _AHEAD_BYTES)
        if _is_suspect(window[file.offset - start :][:wanted]):
            yield file


def _is_suspect(head: bytes) -> bool:
    return bool(head) and head[0] in _SUSPECTS and not head.startswith(_PNG)


def _reading(file: PlacedFile, read_layer: ReadAt) -> ReadAt:
    """Return a function that reads one file and nothing beyond it."""

    def read_at(offset: int, count: int) -> bytes:
        return read_layer(file.offset + offset, max(0, min(count, file.entry.size_bytes - offset)))

    return read_at


def holds_pickle(read_at: ReadAt, size_bytes: int, effort: Effort | None = None) -> bool:
    """Return whether the file behind `read_at(offset, count)` holds a pickle; with `effort` spent, whether it may."""
    effort = effort or Effort()
    head = read_at(0, _HEAD_BYTES)
    if not _is_suspect(head):
        return False
    if head.startswith(b"PK"):
        return any(_window_holds_pickle(start, effort) for start in _zip_members(read_at, size_bytes))
    if _are_opcodes(read_at, head, effort):
        return True
    return head.startswith(_WRAPPERS) and _window_holds_pickle(read_at(0, WINDOW_BYTES), effort)


def _are_opcodes(read_at: ReadAt, window: bytes, effort: Effort) -> bool:
    if not window or window[0] not in OPENERS:
        return False
    # The table of opcodes is slow to import, and few files begin like a pickle.
    from mlbundle.bundle.opcodes import Opcodes

    return Opcodes(read_at, window, effort).are_a_pickle()


def _window_holds_pickle(window: bytes, effort: Effort, depth: int = 0) -> bool:
    if window.startswith(b"\x93NUMPY"):
        return _NPY_OBJECTS.search(window) is not None
    if _are_opcodes(lambda offset, count: window[offset : offset + count], window, effort):
        return True
    inner = _decompressed(window) if depth < _MAX_NESTING else b""
    return bool(inner) and _window_holds_pickle(inner, effort, depth + 1)


def _decompressed(window: bytes) -> bytes:
    """Return the beginning of what a compressed window holds; empty for anything else."""
    if window.startswith(b"\x1f\x8b"):
        return _inflated(lambda: zlib.decompressobj(31), window, zlib.error)
    if window[:1] == b"\x78" and window[1:2] in {b"\x01", b"\x5e", b"\x9c", b"\xda"}:
        return _inflated(zlib.decompressobj, window, zlib.error)
    if window.startswith(b"BZh"):
        import bz2

        return _inflated(bz2.BZ2Decompressor, window)
    if window.startswith((b"\xfd7zXZ\0", b"\x5d\0\0")):
        import lzma

        return _inflated(lambda: lzma.LZMADecompressor(memlimit=64 << 20), window, lzma.LZMAError)
    return b""


def _inflated(
    maker: Callable[[], _Decompressor], window: bytes, failure: type[Exception] = ValueError
) -> bytes:
    try:
        return maker().decompress(window, WINDOW_BYTES)
    except (failure, OSError, EOFError, ValueError):
        return b""


def _zip_members(read_at: ReadAt, size_bytes: int) -> Iterator[bytes]:
    """Yield the beginnings of the members of a zip (APPNOTE 4.3), decompressed; stops where it is broken."""
    tail_bytes = min(size_bytes, _MAX_TAIL_BYTES)
    tail = read_at(size_bytes - tail_bytes, tail_bytes)
    mark = tail.rfind(b"PK\x05\x06")
    if mark < 0 or len(tail) - mark < 22:
        return
    directory_bytes, directory_offset = struct.unpack_from("<II", tail, mark + 12)
    if directory_offset == 0xFFFFFFFF:
        directory_bytes, directory_offset = _zip64_directory(read_at, tail, mark)
    directory = read_at(directory_offset, min(directory_bytes, _MAX_DIRECTORY_BYTES))
    position, seen = 0, set()
    for _ in range(_MAX_ZIP_ENTRIES):
        if directory[position : position + 4] != b"PK\x01\x02" or len(directory) - position < 46:
            return
        name, extra, comment = struct.unpack_from("<HHH", directory, position + 28)
        (offset,) = struct.unpack_from("<I", directory, position + 42)
        (method,) = struct.unpack_from("<H", directory, position + 10)
        # Many entries may name one member; it is looked at once.
        if (offset, method) not in seen:
            seen.add((offset, method))
            yield _zip_member(read_at, offset, method)
        position += 46 + name + extra + comment


def _zip64_directory(read_at: ReadAt, tail: bytes, mark: int) -> tuple[int, int]:
    if mark < 20 or tail[mark - 20 : mark - 16] != b"PK\x06\x07":
        return 0, 0
    (record_offset,) = struct.unpack_from("<Q", tail, mark - 12)
    record = read_at(record_offset, 56)
    if len(record) < 56 or record[:4] != b"PK\x06\x06":
        return 0, 0
    size, offset = struct.unpack_from("<QQ", record, 40)
    return int(size), int(offset)


def _zip_member(read_at: ReadAt, offset: int, method: int) -> bytes:
    header = read_at(offset, 30)
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        return b""
    name, extra = struct.unpack_from("<HH", header, 26)
    data = read_at(offset + 30 + name + extra, WINDOW_BYTES)
    if method == 8:
        try:
            return zlib.decompressobj(-15).decompress(data, WINDOW_BYTES)
        except zlib.error:
            return b""
    return data if method == 0 else b""
