"""Writes a bundle in one pass over the assets, under a temporary name that is renamed when all is on disk."""

from __future__ import annotations

import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from mlbundle.bundle import oci
from mlbundle.bundle.digests import PREFIX, sha256_hex
from mlbundle.bundle.hashing import BLOCK_BYTES as COPY_BYTES
from mlbundle.bundle.hashing import HashResult, StreamHash
from mlbundle.bundle.plan import Hashes, Identity, Plan, PlannedFile, PlannedLayer, make_head, make_plan
from mlbundle.bundle.tarformat import END_BYTES, encode_header, header_bytes, padding
from mlbundle.errors import AssetUnavailable, DigestMismatch, SourceChanged, StorageFailed, UsageError
from mlbundle.files import sync_folder
from mlbundle.platforms import free_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mlbundle.bundle.content import BundleContent
    from mlbundle.bundle.table import FileEntry

    Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Preview:
    """What a bundle is or would be: its digests, its size and its files."""

    manifest_digest: str
    config_digest: str
    set_digest: str
    size_bytes: int
    files: tuple[FileEntry, ...]


@dataclass(frozen=True)
class Packed(Preview):
    """A bundle that was written."""

    path: Path


def pack(
    content: BundleContent, destination: Path, progress: Progress | None = None, *, overwrite: bool = False
) -> Packed:
    """Write the bundle to `destination` and return its digests.

    The same content gives the same bytes everywhere. `progress` is called with (bytes done, bytes in all).
    Raises UsageError when `destination` exists and `overwrite` is not set, AssetUnavailable, DigestMismatch
    for a stated checksum that is wrong, SourceChanged when a file changes meanwhile, StorageFailed. After an
    error or an interruption `destination` is as it was.
    """
    if not overwrite and destination.exists():
        raise _exists(destination)
    plan = make_plan(content)
    _check_space(plan, destination)
    with _temporary(destination) as (temporary, descriptor):
        written = _write(plan, _Output(descriptor), progress)
        os.fsync(descriptor)
        _publish(temporary, destination, overwrite=overwrite)
    return Packed(**{field.name: getattr(written, field.name) for field in fields(written)}, path=destination)


def preview(content: BundleContent, progress: Progress | None = None) -> Preview:
    """Return what `pack` would write, reading and checking every file and writing nothing."""
    return _write(make_plan(content), _Output(None), progress)


class _Output:
    """The file being written, or only its length when there is no descriptor."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()
        self.position = 0

    def skip(self, size_bytes: int) -> None:
        """Leave room that `patch` fills later."""
        self._flush()
        self.position += size_bytes

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; small ones are gathered."""
        if self._descriptor is not None:
            if len(self._buffer) + len(data) > COPY_BYTES:
                self._flush()
            if len(data) >= COPY_BYTES // 4:
                self._write_at(data, self.position)
            else:
                self._buffer += data
        self.position += len(data)

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite bytes at `offset`, which lies in room left by `skip`."""
        if self._descriptor is not None:
            self._write_at(data, offset)

    def rewind(self, offset: int) -> None:
        """Forget everything from `offset` on."""
        self._flush()
        self.position = offset

    def finish(self) -> None:
        """Bring the file to its final length with all bytes handed to the system."""
        self._flush()
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, self.position)

    def _flush(self) -> None:
        if self._descriptor is not None and self._buffer:
            self._write_at(self._buffer, self.position - len(self._buffer))
            self._buffer = bytearray()

    def _write_at(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        assert self._descriptor is not None
        view = memoryview(data)
        while view:
            try:
                written = os.pwrite(self._descriptor, view, offset)
            except OSError as error:
                raise _storage(error, "can't write the bundle") from error
            view, offset = view[written:], offset + written


class _Meter:
    """Counts the bytes of the sources for whoever watches."""

    def __init__(self, progress: Progress | None, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0

    def add(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if self._progress is not None:
            self._progress(self._done_bytes, self._total_bytes)


def _write(plan: Plan, output: _Output, progress: Progress | None) -> Preview:
    """Write data first and head last: the head holds the digests of the data."""
    hashes = Hashes()
    for layer in plan.layers[:2]:
        source = layer.files[0].source
        assert isinstance(source.source, bytes)
        hashes.layers[layer.index] = hashes.files[source.path] = sha256_hex(source.source)
    output.skip(make_head(plan, hashes).size_bytes)
    with ThreadPoolExecutor(max_workers=2) as pool:
        blobs = _BlobWriter(output, hashes, _Meter(progress, plan.data_bytes), pool)
        for layer in plan.data_layers:
            blobs.write(layer)
    head = make_head(plan, hashes)
    offset = 0
    for name, data in head.members:
        member = encode_header(name, len(data)) + data + padding(len(data))
        output.patch(offset, member)
        offset += len(member)
    output.write(bytes(END_BYTES))
    output.finish()
    return Preview(
        manifest_digest=PREFIX + head.manifest_hex,
        config_digest=PREFIX + head.config_hex,
        set_digest=head.set_digest,
        size_bytes=output.position,
        files=head.files,
    )


class _BlobWriter:
    """Streams layers into the output and notes their digests in `hashes`."""

    def __init__(self, output: _Output, hashes: Hashes, meter: _Meter, pool: ThreadPoolExecutor) -> None:
        self._output = output
        self._hashes = hashes
        self._meter = meter
        self._pool = pool
        self._written = set(hashes.layers.values())

    def write(self, layer: PlannedLayer) -> None:
        """Write one layer; the second copy of a blob is taken back."""
        start = self._output.position
        self._output.skip(header_bytes(layer.size_bytes))
        hexadecimal = self._group(layer) if layer.group else self._raw(layer)
        self._hashes.layers[layer.index] = hexadecimal
        if hexadecimal in self._written:
            self._output.rewind(start)
            return
        self._written.add(hexadecimal)
        self._output.write(padding(layer.size_bytes))
        self._output.patch(start, encode_header(oci.BLOB_FOLDER + hexadecimal, layer.size_bytes))

    def _raw(self, layer: PlannedLayer) -> str:
        result = self._file(layer.files[0], self._output.write)
        if result.chunks:
            self._hashes.chunks[layer.path] = result.chunks
        return result.sha256

    def _group(self, layer: PlannedLayer) -> str:
        whole = StreamHash(layer.size_bytes, self._pool)

        def put(data: bytes | memoryview) -> None:
            whole.update(data)
            self._output.write(data)

        for file in layer.files:
            put(encode_header(file.source.path, file.size_bytes, file.source.mode))
            self._file(file, put)
            put(padding(file.size_bytes))
        put(bytes(END_BYTES))
        return whole.finish().sha256

    def _file(self, file: PlannedFile, put: Callable[[memoryview], None]) -> HashResult:
        stream = StreamHash(file.size_bytes, self._pool, _weak_algorithm(file))
        for view in _read_source(file):
            stream.update(view)
            put(view)
            self._meter.add(len(view))
        result = stream.finish()
        _check_stated(file, result)
        self._hashes.files[file.source.path] = result.sha256
        return result


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
    """Yield the bytes of a source in blocks, from two buffers by turns.

    Raises SourceChanged unless it is, from beginning to end, the file that was planned.
    """
    source = file.source.source
    if isinstance(source, bytes):
        for start in range(0, len(source), COPY_BYTES):
            yield memoryview(source)[start : start + COPY_BYTES]
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
    buffer_bytes = min(COPY_BYTES, max(file.size_bytes, 1))
    buffers = [bytearray(buffer_bytes) for _ in range(2 if file.size_bytes > buffer_bytes else 1)]
    offset, turn = 0, 0
    while offset < file.size_bytes:
        view = memoryview(buffers[turn % len(buffers)])[: file.size_bytes - offset]
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


def _check_space(plan: Plan, destination: Path) -> None:
    if not destination.parent.is_dir():
        raise UsageError(f"the folder {destination.parent} does not exist", where=str(destination))
    needed, free = plan.data_bytes, free_bytes(destination.parent)
    if needed > free:
        raise StorageFailed(
            f"the bundle takes more than {needed} bytes and {free} are free",
            where=str(destination.parent),
            hint="make room or write it to another disk with -o",
        )


@contextmanager
def _temporary(destination: Path) -> Iterator[tuple[Path, int]]:
    """Open a hidden new file beside `destination`; it is gone at the end unless it was renamed."""
    path = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}.partial")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        raise _storage(error, f"can't write in {destination.parent}") from error
    try:
        yield path, descriptor
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _publish(temporary: Path, destination: Path, *, overwrite: bool) -> None:
    try:
        if overwrite:
            if destination.exists() and not destination.is_file():
                raise UsageError(f"{destination} is no regular file", hint="name a file with -o")
            temporary.replace(destination)
        else:
            _rename_new(temporary, destination)
        sync_folder(destination.parent)
    except FileExistsError:
        raise _exists(destination) from None
    except OSError as error:
        raise _storage(error, f"can't write {destination}") from error


def _rename_new(temporary: Path, destination: Path) -> None:
    """Rename without ever replacing a file; where there are no hard links, as well as can be."""
    try:
        os.link(temporary, destination, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        if destination.exists():
            raise FileExistsError(destination) from None
        temporary.rename(destination)


def _exists(destination: Path) -> UsageError:
    return UsageError(f"{destination} exists already", hint="--force replaces it; -o writes somewhere else")


def _storage(error: OSError, what: str) -> StorageFailed:
    return StorageFailed(f"{what}: {error.strerror}", hint="check free space and permissions")
