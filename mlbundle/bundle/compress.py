"""Which layers are compressed, and compressing them before the bundle is written.

A group of small files is compressed where a probe promises that it pays; weights only on request, since a layer of
weights as it is can be mapped or linked. ModelPack compresses tars only, so compressed weights are a tar of one file.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from mlbundle.bundle import oci
from mlbundle.bundle.document import chunk_count
from mlbundle.bundle.hashing import BLOCK_BYTES, StreamHash
from mlbundle.bundle.output import storage_failure
from mlbundle.bundle.tarformat import split_name
from mlbundle.bundle.tarlayers import tar_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack
    from pathlib import Path
    from typing import IO

    from mlbundle.bundle.plan import Hashes, Plan, PlannedLayer
    from mlbundle.bundle.sources import SourceReader

PROBES = 16
PROBE_BYTES = 64 << 10
WORTHWHILE_RATIO = 0.8
WORTHWHILE_BYTES = 4 << 20
MAX_RATIO = 200
"""Above it a reader takes a layer for a bomb, so a writer leaves it as it is."""


class Spool:
    """A compressed layer in an unnamed file, or only its digest and size when there is no folder to write to."""

    def __init__(self, folder: Path | None, pool_of: SourceReader) -> None:
        self._file: IO[bytes] | None = None
        if folder is not None:
            try:
                self._file = tempfile.TemporaryFile(dir=folder, prefix=".mlbundle-")  # noqa: SIM115
            except OSError as error:
                raise storage_failure(error, f"can't write in {folder}") from error
        self._stream = StreamHash(None, pool_of.pool)
        self._buffer = bytearray()
        self.size_bytes = 0
        self.hex = ""
        self.chunks: tuple[str, ...] = ()

    def write(self, data: bytes) -> None:
        """Append compressed bytes."""
        self._buffer += data
        while len(self._buffer) >= BLOCK_BYTES:
            self._flush(BLOCK_BYTES)

    def finish(self) -> None:
        """Note digest and chunks."""
        self._flush(len(self._buffer))
        result = self._stream.finish()
        self.hex = result.sha256
        self.chunks = result.chunks if chunk_count(self.size_bytes) else ()

    def copy_to(self, put: Callable[[memoryview], None]) -> None:
        """Hand on all that was written."""
        for offset in range(0, self.size_bytes, BLOCK_BYTES):
            count = min(BLOCK_BYTES, self.size_bytes - offset)
            # Without a file nobody keeps the bytes, only their number counts.
            put(memoryview(os.pread(self._file.fileno(), count, offset) if self._file else bytes(count)))

    def close(self) -> None:
        """Drop the file."""
        if self._file is not None:
            self._file.close()

    def _flush(self, count: int) -> None:
        block = bytes(self._buffer[:count])
        del self._buffer[:count]
        self._stream.update(block)
        if self._file is not None:
            try:
                self._file.write(block)
                self._file.flush()
            except OSError as error:
                raise storage_failure(error, "can't write a compressed layer") from error
        self.size_bytes += len(block)


def compress_layers(
    plan: Plan, reader: SourceReader, hashes: Hashes, folder: Path | None, stack: ExitStack
) -> tuple[Plan, dict[int, Spool]]:
    """Compress what the plan allows and what pays; return the plan as it is then, and the compressed layers by index.

    The spools are closed by `stack`. Raises what reading sources raises, StorageFailed, ToolMissing.
    """
    layers, spooled = list(plan.layers), {}
    for place, layer in enumerate(layers):
        if not _worth_trying(layer, plan):
            continue
        spool, diff_hex = _compress(layer, reader, folder)
        stack.callback(spool.close)
        if not _pays(layer, spool.size_bytes):
            continue
        kind = oci.DATASET_GROUP_TYPE if layer.media_type == oci.DATASET_GROUP_TYPE else oci.WEIGHT_TAR_TYPE
        layers[place] = replace(layer, media_type=kind + oci.ZSTD, size_bytes=spool.size_bytes)
        spooled[layer.index] = spool
        hashes.layers[layer.index], hashes.diffs[layer.index] = spool.hex, diff_hex
        if spool.chunks:
            hashes.chunks[layer.path] = spool.chunks
    return replace(plan, layers=tuple(layers)), spooled


def _worth_trying(layer: PlannedLayer, plan: Plan) -> bool:
    compression = plan.content.compression
    if layer.media_type == oci.WEIGHT_TYPE:
        return compression.weights and layer.size_bytes > 0 and split_name(layer.path) is not None
    if layer.media_type != oci.DATASET_GROUP_TYPE or not compression.groups:
        return False
    if layer.size_bytes <= WORTHWHILE_BYTES:
        return False
    from mlbundle.bundle.zstdio import estimate_ratio

    ratio = estimate_ratio(probe(layer))
    return ratio < WORTHWHILE_RATIO and layer.size_bytes * (1 - ratio) > WORTHWHILE_BYTES


def _pays(layer: PlannedLayer, size_bytes: int) -> bool:
    unpacked = tar_bytes(file.size_bytes for file in layer.files)
    if unpacked > MAX_RATIO * size_bytes:
        return False
    if layer.media_type == oci.WEIGHT_TYPE:
        return size_bytes < layer.size_bytes
    return size_bytes < WORTHWHILE_RATIO * unpacked and unpacked - size_bytes > WORTHWHILE_BYTES


def _compress(layer: PlannedLayer, reader: SourceReader, folder: Path | None) -> tuple[Spool, str]:
    from mlbundle.bundle.zstdio import Compressor

    spool, frame = Spool(folder, reader), Compressor()
    before = StreamHash(0, reader.pool)

    def put(data: bytes | memoryview) -> None:
        before.update(data)
        spool.write(frame.compress(data))

    reader.read_tar(layer, put)
    spool.write(frame.finish())
    spool.finish()
    return spool, before.finish().sha256


def probe(layer: PlannedLayer) -> Iterator[bytes]:
    """Yield samples of 64 KiB from places spread evenly over the files of a layer."""
    ends = list(accumulate(file.size_bytes for file in layer.files))
    last = max(0, ends[-1] - PROBE_BYTES)
    for number in range(PROBES):
        yield b"".join(_stretch(layer, ends, last * number // (PROBES - 1)))


def _stretch(layer: PlannedLayer, ends: list[int], start: int) -> Iterator[bytes]:
    left, place = PROBE_BYTES, bisect_right(ends, start)
    while left > 0 and place < len(ends):
        file = layer.files[place]
        offset = start - (ends[place] - file.size_bytes)
        data = _read(file.source.source, offset, min(left, file.size_bytes - offset))
        yield data
        left, start, place = left - len(data), ends[place], place + 1
        if len(data) == 0 and file.size_bytes > offset:
            return


def _read(source: Path | bytes, offset: int, size_bytes: int) -> bytes:
    """Return bytes of a source; what can't be read is found out when the file is packed."""
    if isinstance(source, bytes):
        return source[offset : offset + size_bytes]
    try:
        with source.open("rb") as stream:
            stream.seek(offset)
            return stream.read(size_bytes)
    except OSError:
        return b""
