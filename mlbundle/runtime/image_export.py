"""A container image out of the engine: its config byte for byte, its layers compressed, and an OCI manifest.

`docker save` writes an archive whose layers come before the document that says what they are, in two shapes: up to
version 24 a folder a layer with links between equal ones, from 25 on an OCI layout. Both have a `manifest.json`.
The stream is read once; layers wait in a folder on disk, compressed, until their place is known.
"""

from __future__ import annotations

import hashlib
import io
import posixpath
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mlbundle.bundle import strictjson
from mlbundle.bundle.digests import PREFIX, parse_digest, sha256_hex
from mlbundle.bundle.oci import IMAGE_CONFIG_TYPE, INDEX_TYPE, MANIFEST_TYPE, Descriptor, go_json
from mlbundle.bundle.strictjson import Fields
from mlbundle.bundle.zstdio import Compressor
from mlbundle.errors import DigestMismatch, ImageMismatch, ImageMissing, UsageError
from mlbundle.files import storage_failed
from mlbundle.runtime.image_engine import engine_calls, engine_failed, find_image
from mlbundle.runtime.image_layers import TAR_TYPE, ZSTD_TYPE, encoding_of, unpacker
from mlbundle.store.copying import receive_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mlbundle.bundle.blobs import BlobSink

    Progress = Callable[[int, int], None]

_BLOCK_BYTES = 1 << 20
_MAX_MEMBERS = 100_000
_MAX_DOCUMENTS_BYTES = 64 << 20
_MAX_LAYERS = 1000
_MAX_LINKS = 128
_MAX_LAYER_BYTES = 1 << 40
_ARCHIVE = "the engine's archive"
_MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """A layer as a blob; `diff_hex` and `unpacked_bytes` are those of its tar."""

    media_type: str
    hex: str
    size_bytes: int
    diff_hex: str
    unpacked_bytes: int


@dataclass(frozen=True, slots=True)
class ExportedImage:
    """An image whose config, layers and manifest are blobs now; `ref` is a name of it, or its id when it has none."""

    ref: str
    architecture: str
    os: str
    config_hex: str
    config_size_bytes: int
    layers: tuple[ImageLayer, ...]
    manifest_hex: str
    manifest_bytes: bytes

    @property
    def unpacked_bytes(self) -> int:
        """The size of all layers as tars."""
        return sum(layer.unpacked_bytes for layer in self.layers)


def export_image(
    client: Any,
    image_id: str,
    blobs: BlobSink,
    *,
    compress: bool = True,
    scratch: Path | None = None,
    progress: Progress | None = None,
) -> ExportedImage:
    """Copy an image, named by id or reference, from the engine to `blobs`: layers, config, manifest.

    `scratch` is the folder for layers on their way (default: that for temporary files), `progress` hears bytes of
    layers done and in all, about. The same image and the same libzstd give the same bytes. Raises ImageMissing,
    ImageMismatch and DigestMismatch when the engine gives another image than it says, EngineUnavailable,
    StorageFailed.
    """
    doing = f"export the image {image_id}"
    with engine_calls(client, doing), _scratch_folder(scratch) as folder:
        facts = find_image(client, image_id)
        if facts is None:
            raise ImageMissing(f"the image {image_id} is not on this machine", hint="`mlbundle images list`")
        spool = _Spool(folder, compress, _Report(progress, int(facts.get("Size") or 0)))
        _read_archive(client.api.get_image(facts["Id"], chunk_size=_BLOCK_BYTES), spool, doing)
        listed = _listed_image(spool, facts)
        _check_identity(spool, str(facts["Id"]), listed)
        return _deliver(spool, listed, _name_of(facts, image_id), blobs)


def make_index(images: Sequence[ExportedImage]) -> bytes:
    """Return an OCI index of one image for several platforms; raises UsageError for two of one platform."""
    by_platform = {(image.architecture, image.os): image for image in images}
    if len(by_platform) != len(images):
        raise UsageError("two images are for the same platform", hint="name one image for each platform")
    entries = [
        {
            **Descriptor(MANIFEST_TYPE, image.manifest_hex, len(image.manifest_bytes)).to_document(),
            "platform": {"architecture": image.architecture, "os": image.os},
        }
        for _, image in sorted(by_platform.items())
    ]
    return go_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries})


@dataclass(frozen=True, slots=True)
class _Spooled:
    """A layer that waits on disk."""

    file: Path
    layer: ImageLayer


@dataclass(frozen=True, slots=True)
class _ListedImage:
    """An image as the archive lists it: its config, and its layers by name."""

    config_name: str
    config_bytes: bytes
    layer_names: tuple[str, ...]


class _Report:
    """Tells how many bytes of layers have come."""

    def __init__(self, progress: Progress | None, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = max(1, total_bytes)
        self._done_bytes = 0

    def add(self, size_bytes: int) -> None:
        # The engine counts files, not the headers between them: its size is a little less than that of the tars.
        self._done_bytes = min(self._total_bytes, self._done_bytes + size_bytes)
        if self._progress is not None:
            self._progress(self._done_bytes, self._total_bytes)


class _Spool:
    """What an archive held: small documents in memory, layers in files, links by name."""

    def __init__(self, folder: Path, compress: bool, report: _Report) -> None:
        self._folder = folder
        self._compress = compress
        self._report = report
        self._documents: dict[str, bytes] = {}
        self._documents_bytes = 0
        self._layers: dict[str, _Spooled] = {}
        self._links: dict[str, str] = {}

    def link(self, name: str, target: str) -> None:
        """Remember that `name` is another name of `target`."""
        self._links[name] = target

    def take(self, name: str, size_bytes: int, stream: BinaryIO) -> None:
        """Read a file to its end: JSON is kept, everything else is treated as a layer."""
        start = stream.read(_BLOCK_BYTES)
        if size_bytes <= strictjson.MAX_BYTES and start[:1] in {b"{", b"["}:
            self._documents_bytes += size_bytes
            if self._documents_bytes > _MAX_DOCUMENTS_BYTES:
                raise engine_failed("export an image", "its documents are larger than 64 MiB in all")
            self._documents[name] = start + stream.read()
        elif posixpath.basename(name) != "VERSION":
            self._layers[name] = self._spool_layer(name, start, stream)

    def document(self, name: str) -> bytes:
        """Return a document of the archive."""
        name = self._resolve(name)
        if name not in self._documents:
            raise engine_failed("export an image", f"its archive has no document {name[:100]}")
        return self._documents[name]

    def has_document(self, name: str) -> bool:
        """Whether the archive has a document of this name."""
        return name in self._documents

    def layer(self, name: str) -> _Spooled:
        """Return a layer of the archive."""
        name = self._resolve(name)
        if name in self._documents:
            # A tar may begin like JSON when its first file is named so.
            content = self._documents.pop(name)
            self._layers[name] = self._spool_layer(name, content, io.BytesIO())
        if name not in self._layers:
            raise engine_failed("export an image", f"its archive has no layer {name[:100]}")
        return self._layers[name]

    def _resolve(self, name: str) -> str:
        name = posixpath.normpath(name)
        for _ in range(_MAX_LINKS):
            if name not in self._links:
                break
            name = self._links[name]
        return name

    def _spool_layer(self, name: str, start: bytes, stream: BinaryIO) -> _Spooled:
        """Unpack a layer if need be, compress it, and hash both sides."""
        output = _LayerFile(self._folder / f"{len(self._layers)}")
        tar, unpacked_bytes = hashlib.sha256(), 0
        compressor = Compressor() if self._compress else None
        unpack = unpacker(encoding_of(start), _MAX_LAYER_BYTES, f"{_ARCHIVE}, {name[:100]}")
        with output:
            for block in _blocks(start, stream):
                for piece in unpack.feed(block):
                    tar.update(piece)
                    unpacked_bytes += len(piece)
                    self._report.add(len(piece))
                    output.write(piece if compressor is None else compressor.compress(piece))
            unpack.finish()
            output.write(b"" if compressor is None else compressor.finish())
        media_type = TAR_TYPE if compressor is None else ZSTD_TYPE
        layer = ImageLayer(
            media_type, output.blob.hexdigest(), output.size_bytes, tar.hexdigest(), unpacked_bytes
        )
        return _Spooled(output.path, layer)


class _LayerFile:
    """The file of a layer on its way; only its own failures are those of a disk, not the engine's beside them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blob = hashlib.sha256()
        self.size_bytes = 0
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise storage_failed(error, path) from error

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, piece: memoryview | bytes) -> None:
        """Append bytes and hash them; raises StorageFailed."""
        self.blob.update(piece)
        self.size_bytes += len(piece)
        view = memoryview(piece)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise storage_failed(error, self.path) from error


def _blocks(start: bytes, stream: BinaryIO) -> Iterator[bytes]:
    block = start
    while block:
        yield block
        block = stream.read(_BLOCK_BYTES)


class _Chunks:
    """The answer of the engine as something to read from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks

    def read(self, size_bytes: int) -> bytes:
        """Return the next chunk, however long; b'' at the end."""
        return next(self._chunks, b"")

    def drain(self) -> None:
        """Read to the end, so that the connection can be used again."""
        for _ in self._chunks:
            pass


def _read_archive(chunks: Iterator[bytes], spool: _Spool, doing: str) -> None:
    """Give every file and link of the archive to the spool."""
    source = _Chunks(chunks)
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=_BLOCK_BYTES) as archive:  # type: ignore[call-overload]
            for number, member in enumerate(archive):
                if number >= _MAX_MEMBERS:
                    raise engine_failed(doing, f"its archive has more than {_MAX_MEMBERS} entries")
                name = posixpath.normpath(member.name)
                if member.issym():
                    spool.link(
                        name, posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
                    )
                elif member.islnk():
                    spool.link(name, posixpath.normpath(member.linkname))
                elif member.isreg():
                    spool.take(name, member.size, archive.extractfile(member))
    except tarfile.TarError as error:
        raise engine_failed(doing, f"its archive is broken: {error}") from error
    source.drain()


def _listed_image(spool: _Spool, facts: dict[str, Any]) -> _ListedImage:
    """Return the image that the engine was asked for, of all that the archive may list."""
    entries = strictjson.loads(spool.document(_MANIFEST_FILE), where=_ARCHIVE)
    listing = Fields({"entries": entries}, f"{_ARCHIVE}, {_MANIFEST_FILE}")
    wanted = (facts.get("Architecture"), facts.get("Os"))
    found: dict[str, _ListedImage] = {}
    for entry in listing.objects("entries", maximum=_MAX_MEMBERS):
        name = entry.text("Config")
        content = spool.document(name)
        config = strictjson.loads(content, where=f"{_ARCHIVE}, {name[:100]}")
        if isinstance(config, dict) and (config.get("architecture"), config.get("os")) == wanted:
            layers = entry.array("Layers", maximum=_MAX_LAYERS)
            found[name] = _ListedImage(name, content, tuple(str(layer) for layer in layers))
    if len(found) != 1:
        raise ImageMismatch(
            f"the engine exports {len(found)} images for {wanted[1]}/{wanted[0]} where one is expected",
            where=str(facts["Id"]),
            hint="name the image of one platform by its digest",
        )
    return next(iter(found.values()))


def _check_identity(spool: _Spool, identifier: str, listed: _ListedImage) -> None:
    """Check that the archive is of the image that was asked for: its id is a digest of the config or of a manifest."""
    config_hex = sha256_hex(listed.config_bytes)
    if posixpath.basename(listed.config_name).removesuffix(".json") != config_hex:
        raise DigestMismatch(
            "the image's config does not have the digest in its name", where=listed.config_name[:100]
        )
    wanted = parse_digest(identifier, where="the engine's image id")
    if wanted == config_hex:
        return
    by_digest = f"blobs/sha256/{wanted}"
    if not spool.has_document(by_digest) or sha256_hex(spool.document(by_digest)) != wanted:
        raise ImageMismatch(
            "the engine exports another image than the one asked for",
            where=f"asked for {identifier}, got {PREFIX}{config_hex}",
        )


def _deliver(spool: _Spool, listed: _ListedImage, ref: str, blobs: BlobSink) -> ExportedImage:
    """Check the layers against the config and hand everything to `blobs`, the manifest last."""
    config_bytes, where = listed.config_bytes, f"{_ARCHIVE}, {listed.config_name[:100]}"
    config = Fields(strictjson.loads(config_bytes, where=where), where)
    spooled = [spool.layer(name) for name in listed.layer_names]
    layers = tuple(item.layer for item in spooled)
    diffs = config.object("rootfs").array("diff_ids", maximum=_MAX_LAYERS)
    if [PREFIX + layer.diff_hex for layer in layers] != diffs:
        raise DigestMismatch(
            "the layers that the engine exports are not those of the image's config",
            where=f"{ref}, {where}",
            hint="the engine's storage may be damaged: remove the image and build or pull it again",
        )
    config_hex = sha256_hex(config_bytes)
    manifest_bytes = _encode_manifest(Descriptor(IMAGE_CONFIG_TYPE, config_hex, len(config_bytes)), layers)
    manifest_hex = sha256_hex(manifest_bytes)
    for item in spooled:
        _receive_file(blobs, item)
    receive_bytes(blobs, config_hex, config_bytes)
    receive_bytes(blobs, manifest_hex, manifest_bytes)
    return ExportedImage(
        ref=ref,
        architecture=config.text("architecture"),
        os=config.text("os"),
        config_hex=config_hex,
        config_size_bytes=len(config_bytes),
        layers=layers,
        manifest_hex=manifest_hex,
        manifest_bytes=manifest_bytes,
    )


def _encode_manifest(config: Descriptor, layers: Sequence[ImageLayer]) -> bytes:
    descriptors = [Descriptor(layer.media_type, layer.hex, layer.size_bytes) for layer in layers]
    return go_json({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config.to_document(),
        "layers": [descriptor.to_document() for descriptor in descriptors],
    })  # fmt: skip


def _receive(blobs: BlobSink, item: _Spooled, stream: BinaryIO) -> bool:
    """Take in a layer; False when what an earlier try had left of it was spoilt, and is gone now."""
    left_bytes = 0
    try:
        with blobs.receive(item.layer.hex, item.layer.size_bytes) as partial:
            if partial is not None:
                left_bytes = partial.received_bytes
                stream.seek(left_bytes)
                while block := stream.read(_BLOCK_BYTES):
                    partial.write(memoryview(block))
    except DigestMismatch:
        if not left_bytes:
            raise
        return False
    return True


def _receive_file(blobs: BlobSink, item: _Spooled) -> None:
    try:
        stream = item.file.open("rb")
    except OSError as error:
        raise storage_failed(error, item.file) from error
    with stream:
        while not _receive(blobs, item, stream):
            pass


def _name_of(facts: dict[str, Any], image_id: str) -> str:
    """Return the name that was asked for if the image has it, else its first one, else its id."""
    names = sorted(facts.get("RepoTags") or ())
    if image_id in names:
        return image_id
    return str(names[0] if names else facts["Id"])


@contextmanager
def _scratch_folder(parent: Path | None) -> Iterator[Path]:
    try:
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix="mlbundle-image-", dir=parent)
    except OSError as error:
        raise storage_failed(error, parent or Path(tempfile.gettempdir())) from error
    with folder as name:
        yield Path(name)
