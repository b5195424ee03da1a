"""A container image from blobs of strangers into the engine: checked first, then sent under a name of ours.

The engine never sees the bundle. It gets a small archive made here, as `docker save` wrote it before version 25:
every engine from 20.10 on reads it, with layers that are plain tars. What is sent was unpacked and checked once
before the first byte, and is checked again on its way; the document that makes an image of it comes last.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.bundle import strictjson, tarformat
from mlbundle.bundle.digests import PREFIX, parse_digest, sha256_hex
from mlbundle.bundle.oci import IMAGE_CONFIG_TYPE, MANIFEST_TYPE, is_tag
from mlbundle.bundle.strictjson import Fields
from mlbundle.errors import BundleCorrupt, DigestMismatch, ImageMismatch, ImageMissing, UsageError
from mlbundle.runtime.image_engine import engine_calls, engine_failed, find_image, has_containerd_store
from mlbundle.runtime.image_layers import (
    DOCKER_CONFIG_TYPE,
    DOCKER_MANIFEST_TYPE,
    LAYER_ENCODINGS,
    Encoding,
    unpacker,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlbundle.bundle.blobs import BlobReader

    Progress = Callable[[int, int], None]

MAX_UNPACKED_BYTES = 64 << 30
"""The most that the layers of an image may unpack to, unless the caller says otherwise."""

MAX_RATIO = 200
"""The most that one layer may grow when it is unpacked."""

_SMALL_BYTES = 1 << 20
"""A layer may always unpack to this: the zeros at the end of a small tar shrink to nothing."""

_BLOCK_BYTES = 1 << 20
_MAX_LAYERS = 1000
_NAME = re.compile(r"mlbundle(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)+", re.ASCII)
_MAX_NAME_LENGTH = 255
_COMPARED_SETTINGS = ("User", "Env", "Entrypoint", "Cmd", "WorkingDir")


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer's blob, and the digest of the tar that is in it."""

    hex: str
    size_bytes: int
    encoding: Encoding
    diff_hex: str


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image in blobs: its config byte for byte, and its layers from the lowest to the highest."""

    config_hex: str
    config_bytes: bytes
    layers: tuple[StoredLayer, ...]

    @property
    def config_digest(self) -> str:
        """The digest of the config, which classic engines take as the id of the image."""
        return PREFIX + self.config_hex

    def distinct_layers(self) -> list[StoredLayer]:
        """Return the layers, one of each content."""
        return list({layer.diff_hex: layer for layer in self.layers}.values())


def read_image(manifest_bytes: bytes, reader: BlobReader) -> StoredImage:
    """Return what an image manifest of OCI or Docker names; the config is read and checked, layers are not.

    Raises BundleCorrupt for a manifest or config that breaks the rules, DigestMismatch for a config that is not the
    named one, ImageMissing when a blob is not there.
    """
    where = f"{reader.name}, image manifest"
    manifest = Fields(strictjson.loads(manifest_bytes, where=where), where)
    manifest.constant("schemaVersion", 2)
    if manifest.has("mediaType"):
        _one_of(manifest, "mediaType", (MANIFEST_TYPE, DOCKER_MANIFEST_TYPE))
    config_fields = manifest.object("config")
    _one_of(config_fields, "mediaType", (IMAGE_CONFIG_TYPE, DOCKER_CONFIG_TYPE))
    config_hex, config_size_bytes = _blob(config_fields, reader)
    config_bytes = _read_config(reader, config_hex, config_size_bytes)
    where = f"{reader.name}, image config"
    config = Fields(strictjson.loads(config_bytes, where=where), where)
    diffs = _diff_ids(config)
    descriptors = list(manifest.objects("layers", maximum=_MAX_LAYERS))
    if not descriptors or len(descriptors) != len(diffs):
        raise BundleCorrupt(
            f"{len(descriptors)} layers and {len(diffs)} diff ids", where=f"{config.where}/rootfs/diff_ids"
        )
    layers = []
    for fields, diff_hex in zip(descriptors, diffs, strict=True):
        encoding = LAYER_ENCODINGS[_one_of(fields, "mediaType", tuple(LAYER_ENCODINGS))]
        layers.append(StoredLayer(*_blob(fields, reader), encoding, diff_hex))
    return StoredImage(config_hex, config_bytes, tuple(layers))


def load_image(
    client: Any,
    manifest_bytes: bytes,
    reader: BlobReader,
    *,
    tag: str,
    max_unpacked_bytes: int = MAX_UNPACKED_BYTES,
    unpacked_bytes: int | None = None,
    progress: Progress | None = None,
) -> str:
    """Load an image into the engine as `tag` (`mlbundle/<name>:<tag>`) and return the engine's id of it.

    An image that is there already is not loaded, nor tagged again. Layers are held to a growth of 200:1 and to
    `max_unpacked_bytes` in all; `unpacked_bytes`, the size that a trusted table states, replaces the ratio.
    `progress` hears bytes of blobs read and in all: each is read twice, to check it and to send it.
    Raises what `read_image` raises, DigestMismatch and BundleCorrupt for a bad layer, before anything is loaded;
    ImageMismatch when the engine ends with another image, which is removed; EngineUnavailable; StorageFailed.
    """
    _check_name(tag)
    image = read_image(manifest_bytes, reader)
    with engine_calls(client, f"load the image {tag}"):
        found = _find(client, image, tag)
        if found is not None:
            return found
        transfer = _Transfer(image, reader, progress)
        transfer.verify(max_unpacked_bytes, unpacked_bytes)
        _send(client, transfer, tag)
        return _check_loaded(client, image, tag)


class _Transfer:
    """One image on its way: first checked layer by layer, then written as the archive that engines read."""

    def __init__(self, image: StoredImage, reader: BlobReader, progress: Progress | None) -> None:
        self._image = image
        self._reader = reader
        self._progress = progress
        self._layers = image.distinct_layers()
        self._done_bytes = 0
        self._total_bytes = 2 * sum(layer.size_bytes for layer in self._layers)
        self._unpacked_bytes: dict[str, int] = {}

    def verify(self, max_unpacked_bytes: int, stated_bytes: int | None) -> None:
        """Unpack every layer to nowhere: digests, diff ids, sizes within the limits."""
        left_bytes = max_unpacked_bytes if stated_bytes is None else min(stated_bytes, max_unpacked_bytes)
        for layer in self._layers:
            limit_bytes = left_bytes
            if stated_bytes is None:
                limit_bytes = min(left_bytes, max(_SMALL_BYTES, MAX_RATIO * layer.size_bytes))
            unpacked_bytes = sum(len(piece) for piece in self._unpack(layer, limit_bytes))
            self._unpacked_bytes[layer.diff_hex] = unpacked_bytes
            left_bytes -= unpacked_bytes

    def archive(self, tag: str) -> Iterator[memoryview | bytes]:
        """Yield the archive that makes the image under `tag`, layers first and what joins them last."""
        config_name = f"{self._image.config_hex}.json"
        listing = [
            {
                "Config": config_name,
                "RepoTags": [tag],
                "Layers": [_layer_name(layer) for layer in self._image.layers],
            }
        ]
        for layer in self._layers:
            size_bytes = self._unpacked_bytes[layer.diff_hex]
            yield tarformat.encode_header(_layer_name(layer), size_bytes)
            yield from self._unpack(layer, size_bytes)
            yield tarformat.padding(size_bytes)
        yield _member(config_name, self._image.config_bytes)
        yield _member("manifest.json", json.dumps(listing).encode())
        yield bytes(tarformat.END_BYTES)

    def _unpack(self, layer: StoredLayer, limit_bytes: int) -> Iterator[memoryview | bytes]:
        """Yield the tar of a layer; what was yielded is right only if the end is reached without an error."""
        where = self._reader.where(layer.hex)
        blob, tar = hashlib.sha256(), hashlib.sha256()
        unpack = unpacker(layer.encoding, limit_bytes, where)
        blocks = self._blocks(layer)
        try:
            for block in blocks:
                blob.update(block)
                for piece in unpack.feed(block):
                    tar.update(piece)
                    yield piece
            unpack.finish()
        except BundleCorrupt:
            # Bytes that are not the named ones may break any rule: say so rather than which one they broke.
            for block in blocks:
                blob.update(block)
            _check_digest("blob", blob.hexdigest(), layer.hex, where)
            raise
        _check_digest("blob", blob.hexdigest(), layer.hex, where)
        _check_digest("unpacked layer", tar.hexdigest(), layer.diff_hex, where)

    def _blocks(self, layer: StoredLayer) -> Iterator[bytes]:
        offset = 0
        while offset < layer.size_bytes:
            block = self._reader.read_at(layer.hex, offset, min(_BLOCK_BYTES, layer.size_bytes - offset))
            if not block:
                raise BundleCorrupt("the blob ends too early", where=self._reader.where(layer.hex, offset))
            offset += len(block)
            self._done_bytes += len(block)
            if self._progress is not None:
                self._progress(self._done_bytes, self._total_bytes)
            yield block


def _check_name(tag: str) -> None:
    name, _, version = tag.rpartition(":")
    if len(name) > _MAX_NAME_LENGTH or not _NAME.fullmatch(name) or not is_tag(version):
        raise UsageError(
            f"{ascii(tag)[:100]} is no name for a loaded image", hint="mlbundle/<name>:<tag>, in lower case"
        )


def _one_of(fields: Fields, key: str, allowed: tuple[str, ...]) -> str:
    value = fields.text(key)
    if value not in allowed:
        raise BundleCorrupt(
            f"{ascii(value)[:100]} is nothing that a container image holds", where=f"{fields.where}/{key}"
        )
    return value


def _blob(fields: Fields, reader: BlobReader) -> tuple[str, int]:
    """Return digest in hex and size of a descriptor whose blob is there with that size."""
    hexadecimal = parse_digest(fields.text("digest"), where=f"{fields.where}/digest")
    size_bytes = fields.integer("size")
    found_bytes = reader.size_of(hexadecimal)
    if found_bytes is None:
        raise ImageMissing(
            f"a part of the image is not in {reader.name}: {PREFIX}{hexadecimal}",
            where=fields.where,
            hint="fetch the image of this platform again",
        )
    if found_bytes != size_bytes:
        raise BundleCorrupt(
            f"the blob has {found_bytes} bytes, and {size_bytes} are stated", where=f"{fields.where}/size"
        )
    return hexadecimal, size_bytes


def _read_config(reader: BlobReader, config_hex: str, size_bytes: int) -> bytes:
    where = reader.where(config_hex)
    if size_bytes > strictjson.MAX_BYTES:
        raise BundleCorrupt(f"an image config of {size_bytes} bytes is over the cap", where=where)
    content = reader.read_at(config_hex, 0, size_bytes)
    _check_digest("image config", sha256_hex(content), config_hex, where)
    return content


def _diff_ids(config: Fields) -> list[str]:
    config.text("architecture")
    config.text("os")
    rootfs = config.object("rootfs")
    rootfs.constant("type", "layers")
    values = rootfs.array("diff_ids", maximum=_MAX_LAYERS)
    return [parse_digest(value, where=f"{rootfs.where}/diff_ids") for value in values]


def _check_digest(what: str, found_hex: str, stated_hex: str, where: str) -> None:
    if found_hex != stated_hex:
        raise DigestMismatch(
            f"the {what} has the digest {PREFIX}{found_hex}, and {PREFIX}{stated_hex} is stated", where=where
        )


def _layer_name(layer: StoredLayer) -> str:
    return f"{layer.diff_hex}.tar"


def _member(name: str, content: bytes) -> bytes:
    return tarformat.encode_header(name, len(content)) + content + tarformat.padding(len(content))


def _send(client: Any, transfer: _Transfer, tag: str) -> None:
    """Stream the archive to the engine; raises what the engine says against it."""
    for item in client.api.load_image(filter(len, transfer.archive(tag)), quiet=True):
        said = item if isinstance(item, dict) else {}
        problem = said.get("error") or said.get("message")
        if problem:
            raise engine_failed(f"load the image {tag}", str(problem))


def _find(client: Any, image: StoredImage, tag: str) -> str | None:
    """Return the engine's id of an image that it has already."""
    facts = find_image(client, image.config_digest)
    if facts is None:
        facts = find_image(client, tag)
    return str(facts["Id"]) if facts is not None and _is_same(client, image, facts) else None


def _check_loaded(client: Any, image: StoredImage, tag: str) -> str:
    facts = find_image(client, tag)
    if facts is not None and _is_same(client, image, facts):
        return str(facts["Id"])
    if facts is not None:
        client.api.remove_image(tag)
    raise ImageMismatch(
        "the engine made another image of what it was sent",
        where=f"sent {image.config_digest}, found {facts['Id'] if facts else 'nothing'} as {tag}",
        hint="see the log of the engine",
    )


def _is_same(client: Any, image: StoredImage, facts: dict[str, Any]) -> bool:
    """Whether the engine's image is ours: by its id, or by what is in it where containerd gives other ids."""
    if facts["Id"] == image.config_digest:
        return True
    if not has_containerd_store(client):
        return False
    config = strictjson.loads(image.config_bytes, where="image config")
    ours, theirs = config.get("config") or {}, facts.get("Config") or {}
    return (
        (facts.get("RootFS") or {}).get("Layers") == [PREFIX + layer.diff_hex for layer in image.layers]
        and (facts.get("Architecture"), facts.get("Os")) == (config["architecture"], config["os"])
        and all((ours.get(key) or None) == (theirs.get(key) or None) for key in _COMPARED_SETTINGS)
    )
