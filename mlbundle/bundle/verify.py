"""Checks every byte of a bundle against the digests that name it."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.document import CHUNK_BYTES
from mlbundle.bundle.hashing import StreamHash
from mlbundle.bundle.pickles import find_pickles
from mlbundle.bundle.reader import BundleReader, Layer, open_bundle
from mlbundle.errors import DigestMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mlbundle.bundle.table import FileEntry

    Progress = Callable[[int, int], None]

_READ_BYTES = 1 << 20
_MAX_THREADS = 4
SCHEMA = "mlbundle/verification/v1"


@dataclass(frozen=True)
class Verified:
    """A bundle of which every byte is what it should be; `pickles` are paths that hold Python pickles."""

    path: Path
    manifest_digest: str
    config_digest: str
    set_digest: str
    name: str
    version: str
    size_bytes: int
    files: tuple[FileEntry, ...]
    pickles: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the document that `verify --json` prints."""
        return {
            "schema": SCHEMA,
            "file": str(self.path),
            "name": self.name,
            "version": self.version,
            "manifest_digest": self.manifest_digest,
            "config_digest": self.config_digest,
            "set_digest": self.set_digest,
            "size": self.size_bytes,
            "files": len(self.files),
            "pickles": list(self.pickles),
            "verified": True,
        }


class Copier:
    """Hashes layers and hands the bytes of their files on; used by one thread at a time.

    With a pool, hashing goes on while the bytes are handed on and the next ones are read.
    """

    def __init__(
        self, reader: BundleReader, report: Callable[[int], None], pool: ThreadPoolExecutor | None = None
    ) -> None:
        self._reader = reader
        self._report = report
        self._pool = pool
        self._buffers = tuple(memoryview(bytearray(_READ_BYTES)) for _ in range(2 if pool else 1))
        self._turn = 0

    def copy_layer(self, layer: Layer, sinks: Iterator[Callable[[memoryview], None] | None]) -> None:
        """Read a layer once, giving each of its files to the next of `sinks`.

        Raises DigestMismatch when a file does not have the sha256 of the table, or the layer its digest.
        """
        whole = StreamHash(0, self._pool)
        position, end = layer.offset, layer.offset + layer.size_bytes
        for file in layer.files:
            for view in self._read(position, file.offset):
                whole.update(view)
            position = file.offset + file.entry.size_bytes
            inner = StreamHash(0, None)
            sink = next(sinks)
            for view in self._read(file.offset, position):
                whole.update(view)
                if layer.group:
                    inner.update(view)
                if sink is not None:
                    sink(view)
            if layer.group and inner.finish().sha256 != file.entry.sha256:
                raise self._mismatch(file.entry.path, file.offset)
        for view in self._read(position, end):
            whole.update(view)
        if whole.finish().sha256 != layer.hex:
            raise self._mismatch(layer.path, layer.offset)

    def check_chunk(self, layer: Layer, number: int, expected: str) -> None:
        """Check one chunk of 64 MiB; raises DigestMismatch."""
        start = layer.offset + number * CHUNK_BYTES
        end = min(start + CHUNK_BYTES, layer.offset + layer.size_bytes)
        chunk = StreamHash(0, None)
        for view in self._read(start, end, count=False):
            chunk.update(view)
        if chunk.finish().sha256 != expected:
            raise self._mismatch(f"chunk {number} of {layer.path}", start)

    def _read(self, start: int, end: int, *, count: bool = True) -> Iterator[memoryview]:
        """Yield the bytes from `start` to `end`, from the buffers by turns."""
        while start < end:
            self._turn += 1
            view = self._buffers[self._turn % len(self._buffers)][: end - start]
            self._reader.read_into(view, start)
            yield view
            start += len(view)
            self._report(len(view) if count else 0)

    def _mismatch(self, what: str, offset: int) -> DigestMismatch:
        return DigestMismatch(
            f"{what} does not have the digest that names it",
            where=f"{self._reader.path}, byte {offset}",
            hint="the file was damaged or changed; copy or fetch it again",
        )


def verify(path: Path, progress: Progress | None = None) -> Verified:
    """Check structure and every byte of a bundle.

    `progress` is called with (bytes done, bytes in all), from several threads but one at a time. Raises
    what `open_bundle` raises, and DigestMismatch.
    """
    with open_bundle(path) as reader:
        _check_blobs(reader, progress)
        return Verified(
            path=path,
            manifest_digest=reader.manifest_digest,
            config_digest=reader.config_digest,
            set_digest=reader.set_digest,
            name=reader.document.model_name,
            version=reader.document.model_version,
            size_bytes=reader.size_bytes,
            files=reader.files,
            pickles=find_pickles(reader),
        )


def meter(progress: Progress | None, total_bytes: int) -> Callable[[int], None]:
    """Return a function that adds up bytes and tells `progress`; safe to call from threads."""
    done, lock = 0, threading.Lock()

    def report(size_bytes: int) -> None:
        nonlocal done
        with lock:
            done += size_bytes
            if progress is not None:
                progress(done, total_bytes)

    return report


class _Stopped(Exception):
    """The other threads have nothing left to find out."""


def _check_blobs(reader: BundleReader, progress: Progress | None) -> None:
    """Check layers and chunks in threads, the largest first; a blob that serves several layers once."""
    unique = {(layer.hex, layer.group): layer for layer in reader.layers}.values()
    count = meter(progress, sum(layer.size_bytes for layer in unique))
    stop, local = threading.Event(), threading.local()

    def report(size_bytes: int) -> None:
        if stop.is_set():
            raise _Stopped
        count(size_bytes)

    def copier() -> Copier:
        if not hasattr(local, "copier"):
            local.copier = Copier(reader, report)
        made: Copier = local.copier
        return made

    def check_layer(layer: Layer) -> None:
        copier().copy_layer(layer, iter([None] * len(layer.files)))

    def check_chunk(layer: Layer, number: int, expected: str) -> None:
        copier().check_chunk(layer, number, expected)

    pool = ThreadPoolExecutor(max_workers=min(_MAX_THREADS, os.cpu_count() or 1))
    try:
        jobs = [pool.submit(check_layer, layer) for layer in sorted(unique, key=lambda x: -x.size_bytes)]
        by_path = {layer.path: layer for layer in reader.layers}
        for chunks in reader.document.chunks:
            for number, expected in enumerate(chunks.sha256):
                jobs.append(pool.submit(check_chunk, by_path[chunks.path], number, expected))
        for job in jobs:
            job.result()
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
