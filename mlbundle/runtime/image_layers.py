"""The blobs of a container image: media types, and layers unpacked as they come, with a limit.

OCI image specification 1.1, "Image Layer Filesystem Changeset", and what Docker calls the same things.
"""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn, Protocol

from mlbundle.bundle.oci import IMAGE_LAYER_TYPES
from mlbundle.bundle.zstdio import PIECE_BYTES, Decompressor
from mlbundle.errors import BundleCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

TAR_TYPE, ZSTD_TYPE = IMAGE_LAYER_TYPES
DOCKER_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
_DOCKER_LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar"

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# A frame of gzip may be twenty bytes: small slices keep what is copied for each of them small.
_GZIP_INPUT_BYTES = 16 << 10
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS


class Encoding(StrEnum):
    """How the tar of a layer is compressed."""

    TAR = "tar"
    GZIP = "gzip"
    ZSTD = "zstd"


LAYER_ENCODINGS = {
    TAR_TYPE: Encoding.TAR,
    TAR_TYPE + "+gzip": Encoding.GZIP,
    ZSTD_TYPE: Encoding.ZSTD,
    _DOCKER_LAYER_TYPE: Encoding.TAR,
    _DOCKER_LAYER_TYPE + ".gzip": Encoding.GZIP,
    _DOCKER_LAYER_TYPE + ".zstd": Encoding.ZSTD,
}


class Unpacker(Protocol):
    """Turns the bytes of a layer's blob into those of its tar."""

    def feed(self, view: memoryview | bytes) -> Iterator[memoryview | bytes]:
        """Yield what the next bytes hold, in pieces of at most 1 MiB; to be used up before the next call."""

    def finish(self) -> None:
        """Check that the blob was whole."""


def unpacker(encoding: Encoding, limit_bytes: int, where: str) -> Unpacker:
    """Return what unpacks a layer to at most `limit_bytes`; it raises BundleCorrupt, with `where`."""
    if encoding is Encoding.GZIP:
        return _Gunzip(limit_bytes, where)
    if encoding is Encoding.ZSTD:
        return Decompressor(limit_bytes, where, exact=False)
    return _Plain(limit_bytes, where)


def encoding_of(start: bytes) -> Encoding:
    """Return how a blob is compressed, by its first four bytes."""
    if start.startswith(_GZIP_MAGIC):
        return Encoding.GZIP
    return Encoding.ZSTD if start.startswith(_ZSTD_MAGIC) else Encoding.TAR


class _Plain:
    """Passes a tar on."""

    def __init__(self, limit_bytes: int, where: str) -> None:
        self._left_bytes = limit_bytes
        self._where = where

    def feed(self, view: memoryview | bytes) -> Iterator[memoryview]:
        self._left_bytes -= len(view)
        if self._left_bytes < 0:
            raise BundleCorrupt("the layer is larger than allowed", where=self._where)
        rest = memoryview(view)
        for offset in range(0, len(rest), PIECE_BYTES):
            yield rest[offset : offset + PIECE_BYTES]

    def finish(self) -> None:
        """Nothing can be missing that the digest does not show."""


class _Gunzip:
    """Decompresses gzip: one member or several, as builders that work in parallel write them (RFC 1952)."""

    def __init__(self, limit_bytes: int, where: str) -> None:
        self._left_bytes = limit_bytes
        self._where = where
        self._member = zlib.decompressobj(_GZIP_WINDOW_BITS)

    def feed(self, view: memoryview | bytes) -> Iterator[bytes]:
        rest = memoryview(view)
        for offset in range(0, len(rest), _GZIP_INPUT_BYTES):
            yield from self._inflate(bytes(rest[offset : offset + _GZIP_INPUT_BYTES]))

    def finish(self) -> None:
        if not self._member.eof:
            self._fail("the gzip stream is cut off")

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        # What a full piece leaves behind needs no call of its own: the checksum at the end is always still to come.
        while data:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP_WINDOW_BITS)
            try:
                piece = self._member.decompress(data, min(PIECE_BYTES, self._left_bytes + 1))
            except zlib.error as error:
                self._fail(f"the gzip stream is broken: {error}")
            self._left_bytes -= len(piece)
            if self._left_bytes < 0:
                self._fail("the gzip stream holds more bytes than allowed")
            if piece:
                yield piece
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail

    def _fail(self, message: str) -> NoReturn:
        raise BundleCorrupt(message, where=self._where)
