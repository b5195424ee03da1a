"""Blobs from memory before those of another source: how something new is looked at before it is written anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlbundle.bundle.blobs import BlobReader


class OverlayBlobs:
    """A `BlobReader` that has `added` (by digest, hex) beside the blobs of `below`; closing closes `below`."""

    def __init__(self, below: BlobReader, added: Mapping[str, bytes]) -> None:
        self._below = below
        self._added = dict(added)

    @property
    def name(self) -> str:
        """How errors call the source."""
        return self._below.name

    def size_of(self, hexadecimal: str) -> int | None:
        """Return the size of a blob, or None."""
        added = self._added.get(hexadecimal)
        return self._below.size_of(hexadecimal) if added is None else len(added)

    def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes of a blob from `offset`."""
        added = self._added.get(hexadecimal)
        if added is None:
            return self._below.read_at(hexadecimal, offset, size_bytes)
        return added[offset : offset + size_bytes]

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset` of a blob."""
        added = self._added.get(hexadecimal)
        if added is None:
            self._below.read_into(hexadecimal, view, offset)
        else:
            view[:] = added[offset : offset + len(view)]

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        """Return the place of a byte of a blob, for errors."""
        if hexadecimal in self._added:
            return f"{self.name}!sha256:{hexadecimal}"
        return self._below.where(hexadecimal, offset)

    def close(self) -> None:
        """Close the source below."""
        self._below.close()
