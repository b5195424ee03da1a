"""Blobs from memory before those of another source: how something new is looked at before it is written anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlbundle.bundle.blobs import BlobReader


class MemoryBlobs:
    """A `BlobReader` over bytes in memory, by digest (hex)."""

    name = "memory"

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        self._blobs = dict(blobs)

    def size_of(self, hexadecimal: str) -> int | None:
        """Return the size of a blob, or None."""
        data = self._blobs.get(hexadecimal)
        return None if data is None else len(data)

    def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes of a blob from `offset`."""
        return self._blobs[hexadecimal][offset : offset + size_bytes]

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset` of a blob."""
        view[:] = self._blobs[hexadecimal][offset : offset + len(view)]

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        """Return the place of a byte of a blob, for errors."""
        return f"sha256:{hexadecimal}, byte {offset}"

    def close(self) -> None:
        """Nothing is held."""


class OverlayBlobs:
    """A `BlobReader` that has `added` (by digest, hex) beside the blobs of `below`; closing closes `below`."""

    def __init__(self, below: BlobReader, added: Mapping[str, bytes]) -> None:
        self._below = below
        self._added = MemoryBlobs(added)
        self.name = below.name
        self.close = below.close

    def size_of(self, hexadecimal: str) -> int | None:
        """Return the size of a blob, or None."""
        return self._of(hexadecimal).size_of(hexadecimal)

    def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes of a blob from `offset`."""
        return self._of(hexadecimal).read_at(hexadecimal, offset, size_bytes)

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset` of a blob."""
        self._of(hexadecimal).read_into(hexadecimal, view, offset)

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        """Return the place of a byte of a blob, for errors."""
        return self._of(hexadecimal).where(hexadecimal, offset)

    def _of(self, hexadecimal: str) -> BlobReader:
        return self._below if self._added.size_of(hexadecimal) is None else self._added


class NamedBlobs:
    """The blobs of another source under a name that people know; `close` closes what the source stands on."""

    def __init__(self, below: BlobReader, name: str, close: Callable[[], None] | None = None) -> None:
        self.name = name
        self.size_of = below.size_of
        self.read_at = below.read_at
        self.read_into = below.read_into
        self.close = close or below.close

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        """Return the place of a byte of a blob, for errors."""
        return f"{self.name}!sha256:{hexadecimal}, byte {offset}"
