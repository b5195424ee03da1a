"""Checks every byte of a bundle against the digests that name it."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.agreement import check_names
from mlbundle.bundle.document import CHUNK_BYTES
from mlbundle.bundle.hashing import DEPTH, StreamHash
from mlbundle.bundle.output import require_room
from mlbundle.bundle.pickles import find_pickles
from mlbundle.bundle.reader import BundleReader, Layer, open_bundle
from mlbundle.bundle.tarlayers import TarChecker
from mlbundle.errors import BundleCorrupt, DigestMismatch, StorageFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import IO, Self

    from mlbundle.bundle.blobs import BlobReader
    from mlbundle.bundle.document import Chunks
    from mlbundle.bundle.table import FileEntry

    Progress = Callable[[int, int], None]
    Sink = Callable[[memoryview], None]

_MORE_ROOM = "make room, or set TMPDIR to a folder on another disk"
_READ_BYTES = 256 << 10
_MAX_THREADS = 4
SCHEMA = "mlbundle/verification/v1"


@dataclass(frozen=True)
class Verified:
    """A bundle of which every byte is what it should be.

    `images` are the platforms of the embedded images (`amd64/cpu`, of a further framework `torch/amd64/cpu`),
    `referrers` what is attached to the model manifest (predicate types, else artifact types), `pickles` the paths of
    files that hold Python pickles.
    """

    name_of_source: str
    manifest_digest: str
    config_digest: str
    set_digest: str
    name: str
    version: str
    size_bytes: int
    files: tuple[FileEntry, ...]
    images: tuple[str, ...]
    referrers: tuple[str, ...]
    pickles: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the document that `verify --json` prints."""
        return {
            "schema": SCHEMA,
            "file": self.name_of_source,
            "name": self.name,
            "version": self.version,
            "manifest_digest": self.manifest_digest,
            "config_digest": self.config_digest,
            "set_digest": self.set_digest,
            "size": self.size_bytes,
            "files": len(self.files),
            "images": list(self.images),
            "referrers": list(self.referrers),
            "pickles": list(self.pickles),
            "verified": True,
        }


class Copier:
    """Hashes layers and hands the bytes of their files on; used by one thread at a time.

    With a pool, hashing goes on while the bytes are handed on and the next ones are read. `chunks` are those to
    be checked too, by the hex of their blob.
    """

    def __init__(
        self,
        source: BlobReader,
        report: Callable[[int], None],
        pool: ThreadPoolExecutor | None = None,
        chunks: Mapping[str, Sequence[Chunks]] | None = None,
    ) -> None:
        self._source = source
        self._report = report
        self._pool = pool
        self._chunks = chunks or {}
        self._buffers = tuple(memoryview(bytearray(_READ_BYTES)) for _ in range(DEPTH + 1 if pool else 1))
        self._turn = 0

    def copy_layer(self, layer: Layer, sinks: Iterator[Sink | None], raw: Sink | None = None) -> None:
        """Read a layer once, giving each of its files to the next of `sinks`, and the blob as it is to `raw`.

        Raises DigestMismatch when a file does not have the sha256 of the table, or the layer its digest, and
        BundleCorrupt for a tar or a compressed frame that is not as it must be.
        """
        if layer.compressed:
            self._copy_compressed(layer, sinks, raw)
        elif layer.tar:
            checker = TarChecker([file.entry for file in layer.files], sinks, self._where(layer))
            self.copy_blob(layer.hex, layer.size_bytes, layer.path, _both(checker.feed, raw))
            checker.finish()
        else:
            sink = next(sinks, None)
            self.copy_blob(layer.hex, layer.size_bytes, layer.path, raw if sink is None else _both(sink, raw))

    def copy_blob(self, hexadecimal: str, size_bytes: int, what: str, sink: Sink | None = None) -> None:
        """Read a blob once and hand it on as it is; raises DigestMismatch at its end."""
        expected = self._chunks.get(hexadecimal, ())
        stream = StreamHash(size_bytes if expected else 0, self._pool)
        for view in self._read(hexadecimal, size_bytes):
            stream.update(view)
            if sink is not None:
                sink(view)
        result = stream.finish()
        if result.sha256 != hexadecimal:
            raise self._mismatch(what, hexadecimal, 0)
        for chunks in expected:
            self._compare_chunks(chunks, result.chunks, hexadecimal)

    def _compare_chunks(self, chunks: Chunks, actual: tuple[str, ...], hexadecimal: str) -> None:
        for number, (stated, found) in enumerate(zip(chunks.sha256, actual, strict=True)):
            if stated != found:
                raise self._mismatch(f"chunk {number} of {chunks.path}", hexadecimal, number * CHUNK_BYTES)

    def _copy_compressed(self, layer: Layer, sinks: Iterator[Sink | None], raw: Sink | None) -> None:
        from mlbundle.bundle.zstdio import Decompressor

        where = self._where(layer)
        checker = TarChecker([file.entry for file in layer.files], sinks, where)
        inflated = hashlib.sha256()
        frame = Decompressor(layer.unpacked_bytes, where)

        def feed(view: memoryview) -> None:
            for piece in frame.feed(view):
                inflated.update(piece)
                checker.feed(memoryview(piece))

        self.copy_blob(layer.hex, layer.size_bytes, layer.path, _both(feed, raw))
        frame.finish()
        checker.finish()
        if inflated.hexdigest() != layer.diff_hex:
            raise BundleCorrupt("the layer does not have the diff id that the config states", where=where)

    def _where(self, layer: Layer) -> str:
        return f"{self._source.name}!{layer.path}"

    def _read(self, hexadecimal: str, size_bytes: int) -> Iterator[memoryview]:
        """Yield the bytes of a blob, from the buffers by turns."""
        offset = 0
        while offset < size_bytes:
            self._turn += 1
            view = self._buffers[self._turn % len(self._buffers)][: size_bytes - offset]
            self._source.read_into(hexadecimal, view, offset)
            yield view
            offset += len(view)
            self._report(len(view))

    def _mismatch(self, what: str, hexadecimal: str, offset: int) -> DigestMismatch:
        return DigestMismatch(
            f"{what} does not have the digest that names it",
            where=self._source.where(hexadecimal, offset),
            hint="the file was damaged or changed; copy or fetch it again",
        )


def _both(one: Sink, other: Sink | None) -> Sink:
    if other is None:
        return one

    def put(view: memoryview) -> None:
        one(view)
        other(view)

    return put


def verify(path: Path, progress: Progress | None = None) -> Verified:
    """Check structure and every byte of a bundle file.

    `progress` is called with (bytes done, bytes in all), from several threads but one at a time. Raises
    what `open_bundle` raises, and DigestMismatch.
    """
    with open_bundle(path) as reader:
        return verify_reader(reader, progress)


def verify_reader(reader: BundleReader, progress: Progress | None = None) -> Verified:
    """Check every byte of an open bundle, and what its manifests are called; raises BundleCorrupt, DigestMismatch.

    StorageFailed when there is too little room for what compressed layers hold.
    """
    check_names(reader)
    with _Inflated(reader.layers) as inflated:
        _check_blobs(reader, progress, inflated)
        pickles = find_pickles(reader, inflated.read_at)
    return Verified(
        name_of_source=reader.name,
        manifest_digest=reader.manifest_digest,
        config_digest=reader.config_digest,
        set_digest=reader.set_digest,
        name=reader.document.model_name,
        version=reader.document.model_version,
        size_bytes=reader.size_bytes,
        files=reader.files,
        images=tuple(str(image.place(platform)) for image in reader.images for platform in image.platforms),
        referrers=tuple(referrer.predicate_type or referrer.artifact_type for referrer in reader.referrers),
        pickles=pickles,
    )


class _Inflated:
    """The files of compressed layers, in unnamed temporary files, for the search for pickles."""

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        compressed = [layer for layer in layers if layer.compressed]
        self._layers = {layer.index for layer in compressed}
        self._folder = Path(tempfile.gettempdir())
        needed_bytes = sum(layer.unpacked_bytes for layer in compressed)
        require_room(self._folder, needed_bytes, "the compressed layers hold", _MORE_ROOM)
        self._files: dict[int, IO[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def sinks(self, layer: Layer) -> Iterator[Sink | None]:
        """Yield where the files of a layer go: nowhere, unless the layer is compressed."""
        if layer.index not in self._layers:
            yield from [None] * len(layer.files)
            return
        file = self._files[layer.index] = tempfile.TemporaryFile(prefix="mlbundle-verify-")  # noqa: SIM115

        def write(view: memoryview) -> None:
            try:
                file.write(view)
            except OSError as error:
                raise StorageFailed(
                    f"can't write what a compressed layer holds: {error.strerror}",
                    where=str(self._folder),
                    hint=_MORE_ROOM,
                ) from error

        for placed in layer.files:
            file.seek(placed.offset)
            yield write

    def read_at(self, layer: Layer, offset: int, size_bytes: int) -> bytes:
        """Return bytes of a layer that was compressed."""
        file = self._files[layer.index]
        file.flush()
        return os.pread(file.fileno(), size_bytes, offset)


def check_tars(reader: BundleReader) -> None:
    """Check that each file in a tar is the one of the file table; raises BundleCorrupt, DigestMismatch.

    The digest of a layer does not say so: whoever takes in blobs by their digests alone calls this as well.
    """
    copier = Copier(reader.source, lambda _count: None)
    for layer in reader.layers:
        if layer.tar:
            copier.copy_layer(layer, repeat(None))


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


def _check_blobs(reader: BundleReader, progress: Progress | None, inflated: _Inflated) -> None:
    """Check all blobs and chunks in threads, the largest first; a blob that serves several layers once.

    A tar is checked for every layer: it is the right one only for the layer whose files it names.
    """
    layers = {(layer.hex, layer.path if layer.tar else None): layer for layer in reader.layers}.values()
    attached = dict(reader.structure.blobs())
    for layer in reader.layers:
        attached.pop(layer.hex, None)
    count = meter(progress, sum(layer.size_bytes for layer in layers) + sum(attached.values()))
    stop, local, chunks = threading.Event(), threading.local(), chunks_by_blob(reader)

    def report(size_bytes: int) -> None:
        if stop.is_set():
            raise _Stopped
        count(size_bytes)

    def copier() -> Copier:
        if not hasattr(local, "copier"):
            local.copier = Copier(reader.source, report, hashing, chunks)
        made: Copier = local.copier
        return made

    def check_layer(layer: Layer) -> None:
        copier().copy_layer(layer, inflated.sinks(layer))

    def check_blob(hexadecimal: str, size_bytes: int) -> None:
        copier().copy_blob(hexadecimal, size_bytes, f"sha256:{hexadecimal}")

    jobs: list[tuple[int, Callable[[], None]]] = [
        (layer.size_bytes, partial(check_layer, layer)) for layer in layers
    ]
    jobs += [(size_bytes, partial(check_blob, key, size_bytes)) for key, size_bytes in attached.items()]
    threads = min(_MAX_THREADS, os.cpu_count() or 1)
    # Hashing has threads of its own: those that read wait for it.
    hashing, reading = ThreadPoolExecutor(threads), ThreadPoolExecutor(threads)
    try:
        for done in [reading.submit(job) for _, job in sorted(jobs, key=lambda job: -job[0])]:
            done.result()
    finally:
        stop.set()
        reading.shutdown(cancel_futures=True)
        hashing.shutdown()


def chunks_by_blob(reader: BundleReader) -> dict[str, list[Chunks]]:
    """Return the chunks that a bundle states, by the digest (hex) of their blob."""
    blobs = {layer.path: layer.hex for layer in reader.layers}
    found: dict[str, list[Chunks]] = {}
    for chunks in reader.document.chunks:
        found.setdefault(blobs[chunks.path], []).append(chunks)
    return found
