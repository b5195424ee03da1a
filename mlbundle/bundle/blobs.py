"""Blobs by digest: what a reader of bundles needs, and what a receiver of blobs offers.

The reader of a bundle, `push` and `diff` see blobs only through `BlobReader`, so a file, the store, a registry and a
web address are read alike. `add` and `pull` write only through `BlobSink`, which the store implements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class BlobReader(Protocol):
    """Blobs named by the hex form of their sha256, read at offsets; safe to use from several threads.

    Nothing says that the bytes have the digest: whoever reads them checks.
    """

    @property
    def name(self) -> str:
        """How errors and tables call the source: a path, a library name, an address."""

    def size_of(self, hexadecimal: str) -> int | None:
        """Return the size in bytes of a blob, or None when it is not there."""

    def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes of a blob from `offset`; fewer only at its end."""

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset` of a blob; raises BundleCorrupt when it ends before."""

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        """Return the place of a byte of a blob, for errors."""

    def close(self) -> None:
        """Let go of files and connections."""


class PartialBlob(Protocol):
    """A blob on its way in: bytes are appended in order and hashed as they come."""

    @property
    def size_bytes(self) -> int:
        """The size that the blob will have."""

    @property
    def received_bytes(self) -> int:
        """How many bytes are here already, from the beginning; more than 0 at first when an earlier try left some."""

    def write(self, view: memoryview) -> None:
        """Append bytes; raises DigestMismatch beyond `size_bytes`, StorageFailed when the disk refuses."""

    def mark(self) -> None:
        """Remember this place for `rollback`: everything before it is known to be right."""

    def rollback(self) -> None:
        """Forget everything after the last mark, or everything when there is none."""


class BlobSink(Protocol):
    """Takes blobs in: under a temporary name, checked, synced, renamed."""

    def size_of(self, hexadecimal: str) -> int | None:
        """Return the size of a blob that is here whole, or None."""

    def receive(self, hexadecimal: str, size_bytes: int) -> AbstractContextManager[PartialBlob | None]:
        """Take a blob in; gives None when it is here already (or came from another process meanwhile).

        At the end of the block the blob is whole, has its digest, is on disk and has its name; else DigestMismatch is
        raised and what was received is gone. After an exception in the block what was received stays for the next try.
        """
