"""An entry of the library: one bundle, by name, with the blobs that it needs.

`<data>/library/<manifest hex>.json` holds exactly the bytes that `LibraryEntry.render` gives. Whoever reads an entry
renders it again and compares: so duplicate keys, numbers out of range and unknown members are found at the speed of
the stock parser, and 10,000 entries are read in well under a second.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.digests import HEX_LENGTH, PREFIX, is_digest
from mlbundle.bundle.strictjson import MAX_INTEGER
from mlbundle.errors import BundleCorrupt, StorageFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA = "mlbundle/library-entry/v1"
MAX_ENTRY_BYTES = 64 << 20
"""Room for the index (4 MiB at most, in base64) and 100,000 blobs, with more to spare."""

_ANY_SCHEMA = re.compile(rb'\{"schema":"mlbundle/library-entry/v([0-9]{1,6})"')
_HEX_DIGITS = re.compile(r"[a-f0-9]*", re.ASCII)
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_SHOWN_DIGITS = 12


@dataclass(frozen=True)
class LibraryEntry:
    """A bundle of the library.

    `added_at` is UTC, ISO 8601; `source` says in words where the bundle came from; `index` is its index.json;
    `blobs` are pairs (hex, size in bytes), each once.
    """

    name: str
    version: str
    manifest_digest: str
    set_digest: str
    added_at: str
    source: str
    index: bytes = field(repr=False)
    blobs: tuple[tuple[str, int], ...] = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """The sum of the sizes of the blobs."""
        return sum(size for _, size in self.blobs)

    @property
    def manifest_hex(self) -> str:
        """The hex form of the manifest digest."""
        return self.manifest_digest.removeprefix(PREFIX)

    @property
    def label(self) -> str:
        """`name:version`."""
        return f"{self.name}:{self.version}"

    @property
    def reference(self) -> str:
        """`name:version@sha256:<12 hex>`: finds this entry and no other, unless 12 digits are too few."""
        return f"{self.label}@{self.manifest_digest[: len(PREFIX) + _SHOWN_DIGITS]}"

    @property
    def mending_hint(self) -> str:
        """What to do when a blob of the bundle is damaged."""
        return (
            "`mlbundle repair` puts what is damaged aside; then add or pull the bundle again, "
            f"which came from {self.source}"
        )

    def to_document(self) -> dict[str, Any]:
        """Return the entry as its JSON document."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "version": self.version,
            "manifest_digest": self.manifest_digest,
            "set_digest": self.set_digest,
            "added_at": self.added_at,
            "source": self.source,
            "size": self.size_bytes,
            "index": base64.b64encode(self.index).decode("ascii"),
            "blobs": [list(blob) for blob in self.blobs],
        }

    def render(self) -> bytes:
        """Return the bytes of the entry's file."""
        return _ENCODER.encode(self.to_document()).encode("ascii") + b"\n"


def unique_blobs(blobs: Iterable[tuple[str, int]], *, where: str) -> tuple[tuple[str, int], ...]:
    """Return each blob once, in the order of first mention. Raises BundleCorrupt for one with two sizes."""
    sizes: dict[str, int] = {}
    for hexadecimal, size_bytes in blobs:
        if sizes.setdefault(hexadecimal, size_bytes) != size_bytes:
            raise BundleCorrupt(f"the blob {ascii(hexadecimal)[:100]} is said to have two sizes", where=where)
    return tuple(sizes.items())


def check_entry(entry: LibraryEntry, *, where: str) -> None:
    """Check what an entry promises: digests, whole sizes, each blob once. Raises BundleCorrupt."""
    texts = (entry.name, entry.version, entry.added_at, entry.source)
    if not all(type(text) is str for text in texts) or not (entry.name and entry.version):
        raise BundleCorrupt(
            "name, version, time and source must be texts, name and version not empty", where=where
        )
    for digest in (entry.manifest_digest, entry.set_digest):
        if not is_digest(digest):
            raise BundleCorrupt(f"{ascii(digest)[:100]} is no digest", where=where)
    names = [hexadecimal for hexadecimal, _ in entry.blobs]
    sizes = [size_bytes for _, size_bytes in entry.blobs]
    # At the speed of C, as a library has a million of them.
    if not set(map(type, names)) <= {str} or not set(map(len, names)) <= {HEX_LENGTH}:
        raise BundleCorrupt("a blob is not named by a sha256", where=where)
    if not _HEX_DIGITS.fullmatch("".join(names)) or len(set(names)) != len(names):
        raise BundleCorrupt("a blob is not named by a sha256, or stands twice", where=where)
    if (
        not set(map(type, sizes)) <= {int}
        or not 0 <= min(sizes, default=0) <= max(sizes, default=0) <= MAX_INTEGER
    ):
        raise BundleCorrupt("the size of a blob is no whole number of bytes", where=where)


def parse_entry(content: bytes, *, where: str) -> LibraryEntry:
    """Return the entry of a file. Raises StorageFailed for one of a newer version, BundleCorrupt for a damaged one."""
    match = _ANY_SCHEMA.match(content)
    if match is not None and int(match[1]) != 1:
        raise StorageFailed(
            f"the entry is of version {int(match[1])}, this mlbundle knows 1",
            where=where,
            hint="use a newer mlbundle",
        )
    try:
        document = json.loads(content)
        del document["schema"], document["size"]
        document["index"] = base64.b64decode(document["index"])
        document["blobs"] = tuple([(hexadecimal, size) for hexadecimal, size in document["blobs"]])
        entry = LibraryEntry(**document)
        check_entry(entry, where=where)
        sound = entry.render() == content
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, BundleCorrupt):
        sound = False
    if not sound:
        raise BundleCorrupt(
            "the entry is damaged: it is not as mlbundle wrote it",
            where=where,
            hint="move the file away and add or pull the bundle again",
        )
    return entry
