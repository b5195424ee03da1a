"""Zstandard as a bundle uses it: one frame, a window of at most 8 MiB, no dictionary (RFC 8878).

The library is the standard one (`compression.zstd`, PEP 784) or its backport before Python 3.14, loaded only when
something is compressed. What is read comes from strangers: the header of the frame is checked by hand before the
library sees a byte, and it never produces more than 1 MiB at a time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

from mlbundle.errors import BundleCorrupt, ToolMissing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LEVEL = 3
WINDOW_LOG_MAX = 23
"""The largest window is 8 MiB: what every decoder must support by RFC 8878, section 3.1.1.1.2."""

PIECE_BYTES = 1 << 20
"""The most that is decompressed at a time."""

_MAX_LEVEL = 19
"""Higher levels take windows over 8 MiB."""

_INPUT_BYTES = 128 << 10
_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)


class Compressor:
    """Compresses a stream to one frame, in one thread, without a checksum: the digest of the blob is one.

    The same bytes give the same frame with the same version of libzstd, however they are cut.
    """

    def __init__(self, level: int = LEVEL) -> None:
        if not 1 <= level <= _MAX_LEVEL:
            raise ValueError(f"the level {level} is not from 1 to {_MAX_LEVEL}")
        zstd = _library()
        parameter = zstd.CompressionParameter
        options = {
            parameter.compression_level: level,
            parameter.content_size_flag: 0,
            parameter.checksum_flag: 0,
            parameter.dict_id_flag: 0,
        }
        self._compressor = zstd.ZstdCompressor(options=options)

    def compress(self, view: memoryview | bytes) -> bytes:
        """Take the next bytes and return what is ready of the frame."""
        return bytes(self._compressor.compress(view))

    def finish(self) -> bytes:
        """Return the rest of the frame."""
        return bytes(self._compressor.flush())


class Decompressor:
    """Decompresses one frame from a stranger that must hold `expected_bytes`, or at most that many if not `exact`.

    Raises BundleCorrupt, with `where`, for a window over 8 MiB, a dictionary, a skippable frame, a stated size that
    is not the expected one, broken or missing bytes, anything after the frame, more or fewer bytes than expected.
    """

    def __init__(self, expected_bytes: int, where: str, *, exact: bool = True) -> None:
        zstd = _library()
        self._error = zstd.ZstdError
        options = {zstd.DecompressionParameter.window_log_max: WINDOW_LOG_MAX}
        self._decompressor = zstd.ZstdDecompressor(options=options)
        self._expected_bytes = expected_bytes
        self._exact = exact
        self._where = where
        self._header = bytearray()
        self._header_checked = False
        self.produced_bytes = 0

    def feed(self, view: memoryview | bytes) -> Iterator[bytes]:
        """Yield what the next compressed bytes hold, in pieces of at most 1 MiB; to be used up before the next call."""
        header, rest = self._split_header(memoryview(view))
        yield from self._decompress(header) if header else ()
        for offset in range(0, len(rest), _INPUT_BYTES):
            yield from self._decompress(rest[offset : offset + _INPUT_BYTES])

    def finish(self) -> None:
        """Check that the frame has ended and held what it should."""
        if not self._decompressor.eof:
            self._fail("the zstd frame is cut off")
        if self._exact and self.produced_bytes != self._expected_bytes:
            self._fail(f"the zstd frame holds {self.produced_bytes} bytes instead of {self._expected_bytes}")

    def _split_header(self, view: memoryview) -> tuple[bytes, memoryview]:
        """Gather the header of the frame; return it when this view makes it whole, checked, and the bytes behind it."""
        if self._header_checked:
            return b"", view
        while (missing := _header_bytes(self._header) - len(self._header)) > 0:
            if not view:
                return b"", view
            self._header += view[:missing]
            view = view[missing:]
        self._check_header()
        self._header_checked = True
        return bytes(self._header), view

    def _check_header(self) -> None:
        header = self._header
        if header[:4] != _MAGIC:
            skippable = header[1:4] == _SKIPPABLE_MAGIC and header[0] >> 4 == 5
            self._fail("a skippable zstd frame" if skippable else "this is no zstd frame")
        if header[4] & 0b11:
            self._fail("the zstd frame needs a dictionary")
        if header[4] & 0b1000:
            self._fail("a reserved bit of the zstd frame header is set")
        content_bytes = _content_bytes(header)
        window_bytes = content_bytes if _is_single_segment(header) else _window_bytes(header[5])
        if window_bytes is None or window_bytes > 1 << WINDOW_LOG_MAX:
            self._fail(
                f"the zstd frame needs a window of {window_bytes} bytes, over the 8 MiB that are allowed"
            )
        too_big = content_bytes is not None and content_bytes > self._expected_bytes
        if too_big or (self._exact and content_bytes not in {None, self._expected_bytes}):
            limit = "instead of" if self._exact else "and not at most"
            self._fail(f"the zstd frame states {content_bytes} bytes {limit} {self._expected_bytes}")

    def _decompress(self, data: memoryview | bytes) -> Iterator[bytes]:
        while True:
            piece = self._next_piece(data)
            self.produced_bytes += len(piece)
            if self.produced_bytes > self._expected_bytes:
                self._fail(
                    f"the zstd frame holds more than the {self._expected_bytes} bytes that are expected"
                )
            if piece:
                yield piece
            if self._decompressor.eof and self._decompressor.unused_data:
                self._fail("there are bytes after the zstd frame")
            if self._decompressor.eof or self._decompressor.needs_input:
                return
            data = b""

    def _next_piece(self, data: memoryview | bytes) -> bytes:
        """Decompress at most 1 MiB, and at most one byte more than is expected."""
        if self._decompressor.eof:
            self._fail("there are bytes after the zstd frame")
        limit = min(PIECE_BYTES, self._expected_bytes - self.produced_bytes + 1)
        try:
            return bytes(self._decompressor.decompress(data, max_length=limit))
        except self._error as error:
            self._fail(f"the zstd frame is broken: {error}")

    def _fail(self, message: str) -> NoReturn:
        raise BundleCorrupt(message, where=self._where)


def estimate_ratio(samples: Iterable[bytes]) -> float:
    """Return compressed bytes / bytes of the samples together at level 3; 1.0 when there are none."""
    compressor = Compressor()
    raw_bytes = compressed_bytes = 0
    for sample in samples:
        raw_bytes += len(sample)
        compressed_bytes += len(compressor.compress(sample))
    compressed_bytes += len(compressor.finish())
    return compressed_bytes / raw_bytes if raw_bytes else 1.0


def _library() -> Any:
    """Return the module for Zstandard; raises ToolMissing."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError as error:
        raise ToolMissing(
            f"the library for Zstandard can't be imported: {error}",
            hint="reinstall mlbundle with its dependencies (backports.zstd before Python 3.14)",
        ) from error
    return zstd


def _is_single_segment(header: bytearray) -> bool:
    return bool(header[4] & 0b10_0000)


def _content_size_bytes(header: bytearray) -> int:
    """Return how many bytes state the content size (RFC 8878, section 3.1.1.1.1.1)."""
    flag = header[4] >> 6
    return 1 if flag == 0 and _is_single_segment(header) else _CONTENT_SIZE_BYTES[flag]


def _header_bytes(header: bytearray) -> int:
    """Return the size of the frame header: five bytes are enough to know it."""
    if len(header) < 5 or header[:4] != _MAGIC:
        return 5
    window = 0 if _is_single_segment(header) else 1
    return 5 + window + _DICTIONARY_ID_BYTES[header[4] & 0b11] + _content_size_bytes(header)


def _content_bytes(header: bytearray) -> int | None:
    """Return the stated size of the content, None when none is stated (section 3.1.1.1.4)."""
    size = _content_size_bytes(header)
    if size == 0:
        return None
    return int.from_bytes(header[-size:], "little") + (256 if size == 2 else 0)


def _window_bytes(descriptor: int) -> int:
    """Return the window size of a window descriptor (section 3.1.1.1.2)."""
    base = 1 << (10 + (descriptor >> 3))
    return base + (base >> 3) * (descriptor & 0b111)
