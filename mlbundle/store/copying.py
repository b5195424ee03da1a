"""Bringing the blobs of a bundle into the store: checked while they are copied, two at a time."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from mlbundle.errors import BundleCorrupt, DigestMismatch
from mlbundle.store.partial import BLOCK_BYTES, check_space

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlbundle.bundle.blobs import BlobReader, BlobSink, PartialBlob
    from mlbundle.store.blobs import BlobStore

_THREADS = 2


def copy_blobs(
    store: BlobStore,
    reader: BlobReader | None,
    blobs: Sequence[tuple[str, int]],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """See that all blobs, pairs (hex, size in bytes), are in the store, from `reader` where they are missing.

    The first error stops the others. Raises DigestMismatch and BundleCorrupt for a source that is damaged or lacks a
    blob, StorageFailed.
    """
    lacking_bytes = sum(size for hexadecimal, size in blobs if store.size_of(hexadecimal) is None)
    if lacking_bytes and reader is not None:
        store.make_folders()
        check_space(store.partial, lacking_bytes)
    copy = _Copy(store, reader, sum(size for _, size in blobs), progress)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="add") as pool:
        futures = [pool.submit(copy.bring, hexadecimal, size) for hexadecimal, size in blobs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            copy.stop()
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, _Stopped)):
        raise error


def receive_bytes(sink: BlobSink, hexadecimal: str, data: bytes) -> None:
    """See that a blob that is in memory is on disk too; what an earlier try left and a power cut spoilt is forgotten.

    Raises DigestMismatch when the bytes do not have the digest, StorageFailed.
    """
    while not _received(sink, hexadecimal, data):
        pass


def _received(sink: BlobSink, hexadecimal: str, data: bytes) -> bool:
    """Take bytes in; False when what an earlier try had left was wrong, and is gone now."""
    left_bytes = 0
    try:
        with sink.receive(hexadecimal, len(data)) as partial:
            if partial is not None:
                left_bytes = partial.received_bytes
                partial.write(memoryview(data)[left_bytes:])
    except DigestMismatch:
        if not left_bytes:
            raise
        return False
    return True


class _Stopped(Exception):
    """Another blob failed, or the user has had enough."""


class _Copy:
    def __init__(
        self,
        store: BlobStore,
        reader: BlobReader | None,
        total_bytes: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._store = store
        self._reader = reader
        self._total_bytes = total_bytes
        self._progress = progress
        self._done_bytes = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def bring(self, hexadecimal: str, size_bytes: int) -> None:
        """See that one blob is in the store."""
        self._go_on()
        if self._reader is None:
            if not self._store.is_intact(hexadecimal):
                raise _lacks(hexadecimal, self._store.name)
            self._advance(size_bytes)
            return
        while not self._copied(self._reader, hexadecimal, size_bytes):
            pass

    def _copied(self, reader: BlobReader, hexadecimal: str, size_bytes: int) -> bool:
        """Copy one blob; False when what an earlier try had left was spoilt, as by a power cut, and is gone now."""
        left_bytes = 0
        try:
            with self._store.receive(hexadecimal, size_bytes, waiting=self._go_on) as part:
                if part is None:
                    self._advance(size_bytes)
                else:
                    left_bytes = part.received_bytes
                    self._advance(left_bytes)
                    self._fill(part, reader, hexadecimal)
        except DigestMismatch:
            if not left_bytes:
                raise
            self._advance(-size_bytes)
            return False
        return True

    def _fill(self, part: PartialBlob, reader: BlobReader, hexadecimal: str) -> None:
        found_bytes = reader.size_of(hexadecimal)
        if found_bytes is None:
            raise _lacks(hexadecimal, reader.name)
        if found_bytes != part.size_bytes:
            raise BundleCorrupt(
                f"the blob has {found_bytes} bytes, not {part.size_bytes}", where=reader.where(hexadecimal)
            )
        buffer = memoryview(bytearray(min(part.size_bytes, BLOCK_BYTES)))
        while part.received_bytes < part.size_bytes:
            self._go_on()
            block = buffer[: part.size_bytes - part.received_bytes]
            reader.read_into(hexadecimal, block, part.received_bytes)
            part.write(block)
            self._advance(len(block))

    def _advance(self, count: int) -> None:
        with self._lock:
            self._done_bytes += count
            if self._progress is not None:
                self._progress(self._done_bytes, self._total_bytes)

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise _Stopped


def _lacks(hexadecimal: str, name: str) -> BundleCorrupt:
    return BundleCorrupt(
        f"the blob sha256:{hexadecimal} is missing or damaged",
        where=name,
        hint="pull the bundle again, or add it from a file that is whole",
    )
