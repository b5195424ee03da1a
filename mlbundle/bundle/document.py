"""The document `mlbundle/bundle.json`: what a bundle says about itself, covered by the manifest digest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from mlbundle.bundle.digests import PREFIX, is_hex, parse_digest
from mlbundle.bundle.layout import (
    DOCUMENT_LAYERS,
    MAX_FURTHER_FRAMEWORKS,
    further_framework_path,
    is_further_name,
)
from mlbundle.bundle.oci import MAX_LAYERS, go_json
from mlbundle.bundle.paths import check_path
from mlbundle.bundle.strictjson import Fields
from mlbundle.bundle.table import MAX_FILES, MAX_TABLE_BYTES
from mlbundle.errors import BundleCorrupt

SCHEMA = "mlbundle/bundle/v1"
MAX_NAME = 128
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
CHUNK_BYTES = 64 << 20

_PLATFORM = re.compile(r"[a-z0-9]{1,32}", re.ASCII)
_REFERENCE = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,511}", re.ASCII)
_MAX_CHUNKS = 1 << 17
MAX_IMAGES = 64
"""The most entries that a framework table has."""
_KEYS = frozenset({
    "schema", "model", "framework", "frameworks", "files", "set_digest", "unpacked_size", "assets", "chunks", "images",
})  # fmt: skip
_NAME_KEYS = frozenset({"name", "version"})
_IMAGE_KEYS = frozenset(
    {"framework", "architecture", "accelerator", "image", "digest", "index", "manifest", "config", "size"}
)


class Asset(NamedTuple):
    """Which file a place of the model manifest means: a JSON pointer into it and a path in the bundle."""

    pointer: str
    path: str


class Chunks(NamedTuple):
    """The sha256 (hex) of every 64 MiB of a large layer, so that a broken transfer can be mended in part."""

    path: str
    sha256: tuple[str, ...]


class Place(NamedTuple):
    """A further framework (None for that of the top level), an architecture and an accelerator."""

    framework: str | None
    architecture: str
    accelerator: str

    @property
    def order(self) -> tuple[str, str, str]:
        """By what the framework table is sorted: the top level's framework comes first."""
        return (self.framework or "", self.architecture, self.accelerator)

    def __str__(self) -> str:
        """Return `amd64/cpu`, or `torch/amd64/cpu` of a further framework."""
        return "/".join(part for part in self if part is not None)


@dataclass(frozen=True, slots=True)
class ImagePin:
    """A container image for one platform and accelerator, named by every digest that is known.

    `digest` is what the framework manifest states, whichever of the three it is. `index`, `manifest` and `config`
    were read from the image itself: engines with the classic store know an image by its config, others by its
    manifest or index. `size_bytes` is the sum of the compressed layers. `framework` is the name, in lower case, of
    the further framework whose image it is, None for that of the top level.
    """

    architecture: str
    accelerator: str
    image: str
    digest: str | None = None
    index: str | None = None
    manifest: str | None = None
    config: str | None = None
    size_bytes: int | None = None
    framework: str | None = None

    @property
    def place(self) -> Place:
        """What the image is for: of one framework there is one image for one platform."""
        return Place(self.framework, self.architecture, self.accelerator)

    @property
    def digests(self) -> tuple[str, ...]:
        """All digests of the image, each once."""
        known = (self.digest, self.index, self.manifest, self.config)
        return tuple(dict.fromkeys(digest for digest in known if digest is not None))

    @property
    def well_named(self) -> bool:
        """Whether architecture, accelerator and reference are names: none can be an option, a path, a shell's word."""
        names = _PLATFORM.fullmatch(self.architecture) and _PLATFORM.fullmatch(self.accelerator)
        return bool(names and _REFERENCE.fullmatch(self.image))

    def to_document(self) -> dict[str, Any]:
        """Return the pin as JSON-ready values; what is not known is left out."""
        values = {
            "framework": self.framework,
            "architecture": self.architecture,
            "accelerator": self.accelerator,
            "image": self.image,
            "digest": self.digest,
            "index": self.index,
            "manifest": self.manifest,
            "config": self.config,
            "size": self.size_bytes,
        }
        return {key: value for key, value in values.items() if value is not None}


class BundleDocument(NamedTuple):
    """The values of `bundle.json`.

    `files_hex`, `files_bytes`, `files_count` describe the file table; `frameworks` are (name, version) of the further
    frameworks, in the order of their layers.
    """

    model_name: str
    model_version: str
    framework_name: str
    framework_version: str
    files_hex: str
    files_bytes: int
    files_count: int
    set_digest: str
    unpacked_bytes: int
    assets: tuple[Asset, ...]
    chunks: tuple[Chunks, ...]
    images: tuple[ImagePin, ...]
    frameworks: tuple[tuple[str, str], ...] = ()

    @property
    def further_paths(self) -> dict[str, str]:
        """Paths of the manifests of further frameworks by their names in lower case, in the order of the layers."""
        return {name.lower(): further_framework_path(name) for name, _ in self.frameworks}

    @property
    def document_paths(self) -> tuple[str, ...]:
        """Paths of the layers that come first, the four and the manifests of further frameworks: they are documents."""
        return (*DOCUMENT_LAYERS, *self.further_paths.values())

    def to_document(self) -> dict[str, Any]:
        """Return the document as JSON-ready values, in the order of the file."""
        frameworks = [{"name": name, "version": version} for name, version in self.frameworks]
        return {
            "schema": SCHEMA,
            "model": {"name": self.model_name, "version": self.model_version},
            "framework": {"name": self.framework_name, "version": self.framework_version},
            **({"frameworks": frameworks} if frameworks else {}),
            "files": {
                "digest": PREFIX + self.files_hex,
                "size": self.files_bytes,
                "count": self.files_count,
            },
            "set_digest": self.set_digest,
            "unpacked_size": self.unpacked_bytes,
            "assets": [{"pointer": asset.pointer, "path": asset.path} for asset in self.assets],
            "chunks": [{"path": chunks.path, "sha256": list(chunks.sha256)} for chunks in self.chunks],
            "images": [pin.to_document() for pin in self.images],
        }


def is_name(text: str) -> bool:
    """Return whether a name or version of a model or framework may stand in a bundle: 1 to 128 printable characters."""
    return 0 < len(text) <= MAX_NAME and not UNPRINTABLE.search(text)


def encode_bundle(bundle: BundleDocument) -> bytes:
    """Return `bundle.json` as bytes."""
    return go_json(bundle.to_document())


def chunk_count(size_bytes: int) -> int:
    """Return how many chunks are recorded for a layer: none up to 64 MiB."""
    return -(-size_bytes // CHUNK_BYTES) if size_bytes > CHUNK_BYTES else 0


def parse_bundle(document: Any, where: str) -> BundleDocument:
    """Return `bundle.json` as values; raises BundleCorrupt or UnsafePath, with a JSON pointer."""
    fields = Fields(document, where, _KEYS)
    fields.constant("schema", SCHEMA)
    model = fields.object("model", _NAME_KEYS)
    framework = fields.object("framework", _NAME_KEYS)
    files = fields.object("files", frozenset({"digest", "size", "count"}))
    framework_name = _name(framework, "name")
    frameworks = _frameworks(fields, framework_name)
    return BundleDocument(
        model_name=_name(model, "name"),
        model_version=_name(model, "version"),
        framework_name=framework_name,
        framework_version=_name(framework, "version"),
        files_hex=parse_digest(files.text("digest"), where=f"{files.where}/digest"),
        files_bytes=files.integer("size", maximum=MAX_TABLE_BYTES),
        files_count=files.integer("count", maximum=MAX_FILES),
        set_digest=PREFIX + parse_digest(fields.text("set_digest"), where=f"{where}/set_digest"),
        unpacked_bytes=fields.integer("unpacked_size"),
        assets=_assets(fields),
        chunks=_chunks(fields),
        images=_images(fields, frameworks),
        frameworks=frameworks,
    )


def _name(fields: Fields, key: str) -> str:
    text = fields.text(key)
    if not is_name(text):
        raise BundleCorrupt(
            f"{text[:80]!a} is empty, too long or not printable", where=f"{fields.where}/{key}"
        )
    return text


def _frameworks(fields: Fields, first: str) -> tuple[tuple[str, str], ...]:
    """Return the further frameworks; the names become paths, so what is no part of one is refused here."""
    if not fields.has("frameworks"):
        return ()
    where = f"{fields.where}/frameworks"
    found = tuple(
        (_further_name(entry), _name(entry, "version"))
        for entry in fields.objects("frameworks", _NAME_KEYS, maximum=MAX_FURTHER_FRAMEWORKS)
    )
    if not found:
        raise BundleCorrupt("there is no further framework, and the list is not left out", where=where)
    if first.lower() in {name.lower() for name, _ in found}:
        raise BundleCorrupt(f"{first!a} is the framework of the top level and a further one", where=where)
    paths = [further_framework_path(name).encode() for name, _ in found]
    if paths != sorted(set(paths)):
        raise BundleCorrupt("the further frameworks are not in order, or one stands twice", where=where)
    return found


def _further_name(entry: Fields) -> str:
    name = _name(entry, "name")
    if not is_further_name(name):
        raise BundleCorrupt(f"{name!a} is no name of a further framework", where=f"{entry.where}/name")
    return name


def _assets(fields: Fields) -> tuple[Asset, ...]:
    entries = fields.objects("assets", frozenset({"pointer", "path"}), maximum=MAX_FILES)
    return tuple(
        Asset(entry.text("pointer"), check_path(entry.text("path"), where=f"{entry.where}/path"))
        for entry in entries
    )


def _chunks(fields: Fields) -> tuple[Chunks, ...]:
    result = []
    for entry in fields.objects("chunks", frozenset({"path", "sha256"}), maximum=MAX_LAYERS):
        hexes = entry.array("sha256", maximum=_MAX_CHUNKS)
        if not all(is_hex(value) for value in hexes):
            raise BundleCorrupt("a chunk has no sha256", where=f"{entry.where}/sha256")
        result.append(Chunks(check_path(entry.text("path"), where=f"{entry.where}/path"), tuple(hexes)))
    return tuple(result)


def _images(fields: Fields, frameworks: tuple[tuple[str, str], ...]) -> tuple[ImagePin, ...]:
    pins = tuple(_image(entry) for entry in fields.objects("images", _IMAGE_KEYS, maximum=MAX_IMAGES))
    known = {None, *(name.lower() for name, _ in frameworks)}
    for number, pin in enumerate(pins):
        if pin.framework not in known:
            raise BundleCorrupt(
                f"{ascii(pin.framework)[:60]} is none of the further frameworks",
                where=f"{fields.where}/images/{number}/framework",
            )
    places = [pin.place.order for pin in pins]
    if places != sorted(set(places)):
        raise BundleCorrupt(
            "the images are not in order, or one stands twice", where=f"{fields.where}/images"
        )
    return pins


def _image(entry: Fields) -> ImagePin:
    def digest(key: str) -> str | None:
        if not entry.has(key):
            return None
        return PREFIX + parse_digest(entry.text(key), where=f"{entry.where}/{key}")

    pin = ImagePin(
        architecture=entry.text("architecture"),
        accelerator=entry.text("accelerator"),
        image=entry.text("image"),
        digest=digest("digest"),
        index=digest("index"),
        manifest=digest("manifest"),
        config=digest("config"),
        size_bytes=entry.integer("size") if entry.has("size") else None,
        framework=entry.text("framework") if entry.has("framework") else None,
    )
    if not pin.digests:
        raise BundleCorrupt("an image without a digest", where=entry.where)
    if not pin.well_named:
        raise BundleCorrupt(
            f"{ascii(pin.image)[:60]} for {ascii(pin.architecture)[:40]} and {ascii(pin.accelerator)[:40]} "
            "is no image reference for a platform",
            where=entry.where,
        )
    return pin
