"""A registry read like a bundle file: blobs at offsets, by Range requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from mlbundle.bundle.digests import PREFIX, sha256_hex
from mlbundle.errors import BundleCorrupt

if TYPE_CHECKING:
    from mlbundle.registry.client import RegistryClient

_DOCUMENT_BYTES = 4 << 20
_KEPT_BYTES = 16 << 20


class RegistryBlobs:
    """A BlobReader over a client, which stays the caller's to close; safe to use from several threads.

    Blobs up to 4 MiB are fetched whole and the last of them are kept: documents are read in small pieces.
    """

    def __init__(self, client: RegistryClient) -> None:
        self._client = client
        self._sizes: dict[str, int] = {}
        self._given: dict[str, bytes] = {}
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The address of the repository."""
        return self._client.name

    def add_document(self, data: bytes) -> str:
        """Have a document that is at hand, as a manifest, which registries do not serve as a blob; returns its hex."""
        hexadecimal = sha256_hex(data)
        self._given[hexadecimal] = data
        return hexadecimal

    def size_of(self, hexadecimal: str) -> int | None:
        """Return the size in bytes of a blob, or None when the repository does not hold it."""
        if hexadecimal in self._given:
            return len(self._given[hexadecimal])
        if hexadecimal not in self._sizes:
            size_bytes = self._client.blob_size(hexadecimal)
            if size_bytes is None:
                return None
            self._sizes[hexadecimal] = size_bytes
        return self._sizes[hexadecimal]

    def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes of a blob from `offset`; fewer only at its end."""
        total_bytes = self._size(hexadecimal)
        size_bytes = max(0, min(size_bytes, total_bytes - offset))
        if total_bytes <= _DOCUMENT_BYTES:
            return self._document(hexadecimal, total_bytes)[offset : offset + size_bytes]
        blocks = self._client.read_blob(hexadecimal, offset, size_bytes, total_bytes=total_bytes)
        return b"".join(blocks)

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset` of a blob; raises BundleCorrupt when it ends before."""
        total_bytes = self._size(hexadecimal)
        if offset + len(view) > total_bytes:
            raise BundleCorrupt("a blob ends before it should", where=self.where(hexadecimal, total_bytes))
        if total_bytes <= _DOCUMENT_BYTES:
            view[:] = self._document(hexadecimal, total_bytes)[offset : offset + len(view)]
            return
        filled = 0
        for block in self._client.read_blob(hexadecimal, offset, len(view), total_bytes=total_bytes):
            view[filled : filled + len(block)] = block
            filled += len(block)

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        """Return the place of a byte of a blob, for errors."""
        place = f", byte {offset}" if offset else ""
        return f"{self.name}@{PREFIX}{hexadecimal}{place}"

    def close(self) -> None:
        """Forget what was kept."""
        with self._lock:
            self._kept.clear()

    def _size(self, hexadecimal: str) -> int:
        size_bytes = self.size_of(hexadecimal)
        if size_bytes is None:
            raise BundleCorrupt("the repository lacks a blob", where=self.where(hexadecimal))
        return size_bytes

    def _document(self, hexadecimal: str, size_bytes: int) -> bytes:
        if hexadecimal in self._given:
            return self._given[hexadecimal]
        with self._lock:
            if hexadecimal in self._kept:
                self._kept.move_to_end(hexadecimal)
                return self._kept[hexadecimal]
        data = b"".join(self._client.read_blob(hexadecimal, 0, size_bytes, total_bytes=size_bytes))
        with self._lock:
            self._kept[hexadecimal] = data
            while sum(map(len, self._kept.values())) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        return data
