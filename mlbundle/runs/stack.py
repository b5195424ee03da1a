"""What software an image holds, read from its layers: for a bill of materials."""

from __future__ import annotations

import io
import re
import tarfile
from typing import TYPE_CHECKING

from mlbundle.errors import BundleCorrupt
from mlbundle.runtime.image_layers import LAYER_ENCODINGS, unpacker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlbundle.bundle.attachments import PlatformImage
    from mlbundle.bundle.blobs import BlobReader
    from mlbundle.bundle.oci import Descriptor
    from mlbundle.signing.packages import Package

_BLOCK_BYTES = 1 << 20
_MAX_LAYER_BYTES = 64 << 30
_MAX_TEXT_BYTES = 64 << 20
_DPKG_STATUS = "var/lib/dpkg/status"
_METADATA = re.compile(r".*\.dist-info/METADATA")
_WHITEOUT = ".wh."


def packages_of(image: PlatformImage, blobs: BlobReader) -> list[Package]:
    """Return the Debian packages and the Python distributions of an image, as its uppermost layers have them.

    Raises BundleCorrupt for a layer that can't be read.
    """
    from mlbundle.signing.packages import parse_dpkg_status, parse_metadata

    texts: dict[str, str] = {}
    for layer in image.layers:
        try:
            _read_layer(layer, blobs, texts)
        except tarfile.TarError as error:
            raise BundleCorrupt(f"a layer of the image is no tar: {error}", where=layer.digest) from error
    status = texts.pop(_DPKG_STATUS, None)
    found = parse_dpkg_status(status, where=_DPKG_STATUS) if status else []
    return [*found, *parse_metadata(texts.values(), where="METADATA")]


def _read_layer(layer: Descriptor, blobs: BlobReader, texts: dict[str, str]) -> None:
    """Take in the texts of one layer, and forget those that it removes."""
    with tarfile.open(fileobj=_Stream(_unpacked(layer, blobs)), mode="r|") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            folder, _, base = name.rpartition("/")
            if base.startswith(_WHITEOUT):
                _forget(texts, folder, base.removeprefix(_WHITEOUT))
            elif member.isreg() and (name == _DPKG_STATUS or _METADATA.fullmatch(name)):
                if member.size > _MAX_TEXT_BYTES:
                    raise BundleCorrupt(f"{name} has {member.size} bytes", where=layer.digest)
                stream = archive.extractfile(member)
                texts[name] = stream.read().decode("utf-8", "replace") if stream else ""


def _forget(texts: dict[str, str], folder: str, removed: str) -> None:
    """Apply a whiteout: of one name, or of all that lower layers have in a folder (`.wh..wh..opq`)."""
    inside = f"{folder}/" if folder else ""
    gone = inside if removed == f"{_WHITEOUT}.opq" else f"{inside}{removed}"
    for name in [name for name in texts if name == gone or name.startswith(gone.rstrip("/") + "/")]:
        del texts[name]


def _unpacked(layer: Descriptor, blobs: BlobReader) -> Iterator[bytes]:
    stream = unpacker(LAYER_ENCODINGS[layer.media_type], _MAX_LAYER_BYTES, layer.digest)
    for offset in range(0, layer.size_bytes, _BLOCK_BYTES):
        for piece in stream.feed(blobs.read_at(layer.hex, offset, _BLOCK_BYTES)):
            yield bytes(piece)


class _Stream(io.RawIOBase):
    """Pieces of bytes as a file that can only be read forwards."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._buffer = b""

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer only at the end."""
        parts, left = [], size
        while left > 0:
            if not self._buffer:
                self._buffer = next(self._pieces, b"")
                if not self._buffer:
                    break
            parts.append(self._buffer[:left])
            self._buffer = self._buffer[left:]
            left -= len(parts[-1])
        return b"".join(parts)
