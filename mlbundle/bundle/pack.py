"""Writes a bundle in one pass over the assets, under a temporary name that is renamed when all is on disk."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from mlbundle.bundle import oci
from mlbundle.bundle.compress import Spool, compress_layers
from mlbundle.bundle.digests import PREFIX, sha256_hex
from mlbundle.bundle.hashing import StreamHash
from mlbundle.bundle.output import Output, already_there, check_space, publish, temporary_beside
from mlbundle.bundle.plan import Hashes, Plan, PlannedLayer, make_head, make_plan
from mlbundle.bundle.sources import Meter, SourceReader
from mlbundle.bundle.tarformat import END_BYTES, encode_header, header_bytes, padding
from mlbundle.bundle.verify import Copier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mlbundle.bundle.content import BundleContent
    from mlbundle.bundle.table import FileEntry

    Progress = Callable[[int, int], None]

_GATHERED_BYTES = 1 << 20


@dataclass(frozen=True)
class PackedLayer:
    """A layer of a bundle: what it is called, what it is, how large its blob is."""

    path: str
    media_type: str
    size_bytes: int


@dataclass(frozen=True)
class Preview:
    """What a bundle is or would be: its digests, its size, its layers and its files."""

    manifest_digest: str
    config_digest: str
    set_digest: str
    size_bytes: int
    layers: tuple[PackedLayer, ...]
    files: tuple[FileEntry, ...]


@dataclass(frozen=True)
class Packed(Preview):
    """A bundle that was written."""

    path: Path


def pack(
    content: BundleContent, destination: Path, progress: Progress | None = None, *, overwrite: bool = False
) -> Packed:
    """Write the bundle to `destination` and return its digests.

    The same content gives the same bytes everywhere; where layers are compressed, with the same version of libzstd.
    `progress` is called with (bytes done, bytes in all).
    Raises UsageError when `destination` exists and `overwrite` is not set, AssetUnavailable, DigestMismatch
    for a stated checksum that is wrong, SourceChanged when a file changes meanwhile, StorageFailed. After an
    error or an interruption `destination` is as it was.
    """
    if not overwrite and destination.exists():
        raise already_there(destination)
    plan = make_plan(content)
    check_space(plan.data_bytes, destination)
    with temporary_beside(destination) as (temporary, descriptor):
        written = _write(plan, Output(descriptor), progress, destination.parent)
        os.fsync(descriptor)
        publish(temporary, destination, overwrite=overwrite)
    return Packed(**{field.name: getattr(written, field.name) for field in fields(written)}, path=destination)


def preview(content: BundleContent, progress: Progress | None = None) -> Preview:
    """Return what `pack` would write, reading and checking every file and writing nothing."""
    return _write(make_plan(content), Output(None), progress, None)


def _write(plan: Plan, output: Output, progress: Progress | None, folder: Path | None) -> Preview:
    """Write data first and head last: the head holds the digests of the data.

    What is compressed is compressed before, into unnamed files in `folder`: the head must know its size.
    """
    hashes = Hashes()
    for layer in plan.author_layers:
        source = layer.files[0].source
        assert isinstance(source.source, bytes)
        hashes.layers[layer.index] = hashes.files[source.path] = sha256_hex(source.source)
    with ThreadPoolExecutor(max_workers=2) as pool, ExitStack() as spools:
        meter = Meter(progress, plan.data_bytes)
        reader = SourceReader(hashes, meter, pool)
        plan, spooled = compress_layers(plan, reader, hashes, folder, spools)
        output.skip(make_head(plan, hashes).size_bytes)
        blobs = _BlobWriter(plan, output, hashes, reader)
        for embedded in plan.content.embedded:
            copier = Copier(embedded.blobs, meter.add, pool)
            for hexadecimal, size_bytes in embedded.layers:
                blobs.copy(hexadecimal, size_bytes, copier)
        for layer in plan.data_layers:
            blobs.write(layer, spooled.get(layer.index))
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
        layers=tuple(PackedLayer(x.path, x.media_type, x.size_bytes) for x in plan.layers),
        files=head.files,
    )


class _BlobWriter:
    """Streams blobs into the output and notes their digests in `hashes`."""

    def __init__(self, plan: Plan, output: Output, hashes: Hashes, reader: SourceReader) -> None:
        self._output = output
        self._hashes = hashes
        self._reader = reader
        # What stands in the head is not written again, though a file may be equal to it.
        self._written = {hashes.layers[layer.index] for layer in plan.author_layers}
        for source in plan.content.embedded:
            self._written.update(map(sha256_hex, (source.index, *source.manifests, *source.configs)))

    def copy(self, hexadecimal: str, size_bytes: int, copier: Copier) -> None:
        """Copy a blob that has its digest already; raises DigestMismatch."""
        if hexadecimal not in self._written:
            self._written.add(hexadecimal)
            self._output.write(encode_header(oci.BLOB_FOLDER + hexadecimal, size_bytes))
            copier.copy_blob(hexadecimal, size_bytes, f"sha256:{hexadecimal}", self._output.write)
            self._output.write(padding(size_bytes))

    def write(self, layer: PlannedLayer, spool: Spool | None) -> None:
        """Write one layer, which is in `spool` if it is compressed; the second copy of a blob is taken back."""
        start = self._output.position
        self._output.skip(header_bytes(layer.size_bytes))
        hexadecimal = self._write_data(layer, spool)
        self._hashes.layers[layer.index] = hexadecimal
        if hexadecimal in self._written:
            self._output.rewind(start)
            return
        self._written.add(hexadecimal)
        self._output.write(padding(layer.size_bytes))
        self._output.patch(start, encode_header(oci.BLOB_FOLDER + hexadecimal, layer.size_bytes))

    def _write_data(self, layer: PlannedLayer, spool: Spool | None) -> str:
        if spool is not None:
            spool.copy_to(self._output.write)
            return spool.hex
        return self._group(layer) if layer.tar else self._raw(layer)

    def _raw(self, layer: PlannedLayer) -> str:
        result = self._reader.read_file(layer.files[0], self._output.write)
        if result.chunks:
            self._hashes.chunks[layer.path] = result.chunks
        return result.sha256

    def _group(self, layer: PlannedLayer) -> str:
        """Write a tar of small files, gathered in blocks that are hashed while the next files are read."""
        whole, block = StreamHash(0, self._reader.pool), bytearray()

        def flush() -> None:
            nonlocal block
            view = memoryview(block)
            whole.update(view)
            self._output.write(view)
            block = bytearray()

        def put(data: bytes | memoryview) -> None:
            nonlocal block
            block += data
            if len(block) >= _GATHERED_BYTES:
                flush()

        self._reader.read_tar(layer, put)
        flush()
        return whole.finish().sha256
