"""Reads source files for a bundle: once, whole, unchanged, and with the checksum that the author stated."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mlbundle.bundle.hashing import BLOCK_BYTES, DEPTH, HashResult, StreamHash
from mlbundle.bundle.plan import Hashes, Identity, PlannedFile, PlannedLayer
from mlbundle.bundle.tarformat import END_BYTES, encode_header, padding
from mlbundle.errors import AssetUnavailable, DigestMismatch, SourceChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import ThreadPoolExecutor

    Progress = Callable[[int, int], None]
    Put = Callable[[bytes | memoryview], None]


class Meter:
    """Counts bytes for whoever watches."""

    def __init__(self, progress: Progress | None, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Count bytes that were read; what is read a second time never makes more than the total."""
        self._done_bytes = min(self._done_bytes + size_bytes, self._total_bytes)
        if self._progress is not None:
            self._progress(self._done_bytes, self._total_bytes)


class SourceReader:
    """Hands on the bytes of source files and notes their digests in `hashes`."""

    def __init__(self, hashes: Hashes, meter: Meter, pool: ThreadPoolExecutor) -> None:
        self._hashes = hashes
        self._meter = meter
        self.pool = pool

    def read_file(self, file: PlannedFile, put: Put) -> HashResult:
        """Read one file; raises AssetUnavailable, SourceChanged, DigestMismatch for a stated checksum."""
        stream = StreamHash(file.size_bytes, self.pool, _weak_algorithm(file))
        for view in _read_source(file):
            stream.update(view)
            put(view)
            self._meter.add(len(view))
        result = stream.finish()
        _check_stated(file, result)
        self._hashes.files[file.source.path] = result.sha256
        return result

    def read_tar(self, layer: PlannedLayer, put: Put) -> None:
        """Read the files of a layer as the tar that holds them."""
        for file in layer.files:
            put(encode_header(file.source.path, file.size_bytes, file.source.mode))
            self.read_file(file, put)
            put(padding(file.size_bytes))
        put(bytes(END_BYTES))


def _weak_algorithm(file: PlannedFile) -> str | None:
    checksum = file.source.checksum
    return checksum.algorithm if checksum is not None and checksum.algorithm != "sha256" else None


def _check_stated(file: PlannedFile, result: HashResult) -> None:
    checksum = file.source.checksum
    if checksum is None:
        return
    actual = result.weak or result.sha256
    if actual != checksum.hex:
        raise DigestMismatch(
            f"{file.source.path} has the {checksum.algorithm} {actual}, and the manifest states {checksum.hex}",
            where=file.source.pointer or file.source.path,
            hint="the file was changed or damaged, or the manifest was not brought up to date",
        )


def _read_source(file: PlannedFile) -> Iterator[memoryview]:
    """Yield the bytes of a source in blocks; each stays as it is while the next `DEPTH` are yielded.

    Raises SourceChanged unless it is, from beginning to end, the file that was planned.
    """
    source = file.source.source
    if isinstance(source, bytes):
        for start in range(0, len(source), BLOCK_BYTES):
            yield memoryview(source)[start : start + BLOCK_BYTES]
        return
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise AssetUnavailable(
            f"can't read {source}: {error.strerror}", where=file.source.pointer or file.source.path
        ) from error
    try:
        _check_identity(file, descriptor)
        yield from _read_planned(descriptor, file)
        _check_identity(file, descriptor)
    finally:
        os.close(descriptor)


def _read_planned(descriptor: int, file: PlannedFile) -> Iterator[memoryview]:
    buffer_bytes = min(BLOCK_BYTES, max(file.size_bytes, 1))
    count = min(DEPTH + 1, -(-file.size_bytes // buffer_bytes))
    buffers = [memoryview(bytearray(buffer_bytes)) for _ in range(count)]
    offset, turn = 0, 0
    while offset < file.size_bytes:
        view = buffers[turn % len(buffers)][: file.size_bytes - offset]
        filled = 0
        while filled < len(view):
            count = os.preadv(descriptor, [view[filled:]], offset + filled)
            if count == 0:
                raise _changed(file)
            filled += count
        yield view
        offset, turn = offset + filled, turn + 1


def _check_identity(file: PlannedFile, descriptor: int) -> None:
    if Identity.of(os.fstat(descriptor)) != file.identity:
        raise _changed(file)


def _changed(file: PlannedFile) -> SourceChanged:
    return SourceChanged(
        f"{file.source.path} changed while it was packed",
        where=str(file.source.source),
        hint="wait until nothing writes to it, then pack again",
    )
