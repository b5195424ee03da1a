"""The OCI and ModelPack documents of a bundle, byte for byte as Go's encoding/json prints them.

Clients written in Go decode these documents, encode them again and compare digests, so the order of the
keys is the order of the Go structs: OCI image-spec v1.1 (manifest, index, descriptor) and the CNCF
ModelPack specification v1 (config).
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from mlbundle.bundle.digests import PREFIX, parse_digest
from mlbundle.bundle.layout import FURTHER_NAME
from mlbundle.bundle.strictjson import Fields, loads
from mlbundle.errors import BundleCorrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

LAYOUT_FILE = "oci-layout"
INDEX_FILE = "index.json"
BLOB_FOLDER = "blobs/sha256/"
LAYOUT_BYTES = b'{"imageLayoutVersion":"1.0.0"}'

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = "application/vnd.cncf.model.manifest.v1+json"
CONFIG_TYPE = "application/vnd.cncf.model.config.v1+json"
WEIGHT_TYPE = "application/vnd.cncf.model.weight.v1.raw"
WEIGHT_CONFIG_TYPE = "application/vnd.cncf.model.weight.config.v1.raw"
DOC_TYPE = "application/vnd.cncf.model.doc.v1.raw"
CODE_TYPE = "application/vnd.cncf.model.code.v1.raw"
DATASET_TYPE = "application/vnd.cncf.model.dataset.v1.raw"
DATASET_GROUP_TYPE = "application/vnd.cncf.model.dataset.v1.tar"
WEIGHT_TAR_TYPE = "application/vnd.cncf.model.weight.v1.tar"
"""A weight that is compressed: ModelPack compresses tars only, so it is a tar of the one file."""
ZSTD = "+zstd"
"""Suffix of the media type of a compressed layer."""

SIGNATURE_TYPES = (
    "application/vnd.dev.sigstore.bundle.v0.3+json",
    "application/vnd.mlbundle.signature.ssh.v1",
)
"""Artifact types of signatures: where there is no room for all referrers, these stay."""

IMAGE_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
IMAGE_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
IMAGE_LAYER_TYPES = (IMAGE_LAYER_TYPE, IMAGE_LAYER_TYPE + ZSTD)

REF_NAME = "org.opencontainers.image.ref.name"
TITLE = "org.opencontainers.image.title"
FILEPATH = "org.cncf.model.filepath"

MAX_LAYERS = 20_000
MAX_ENTRIES = 1_000
_IMAGE_OF = re.compile(rf"fw\.([a-z0-9]{{1,32}})(?:\.|-({FURTHER_NAME})--)", re.ASCII)
"""What stands before the tag in the name of an image: its accelerator and, if it is a further one, its framework."""
MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}", re.ASCII)
"""RFC 6838, in lower case."""
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_GO_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


class Role(StrEnum):
    """What a file is in the bundle; the order is the order of the layers."""

    MODEL = "model"
    FRAMEWORK = "framework"
    WEIGHT = "weight"
    CONFIG = "config"
    DOC = "doc"
    CODE = "code"
    DATASET = "dataset"


RAW_TYPES = {
    Role.MODEL: CODE_TYPE,
    Role.FRAMEWORK: CODE_TYPE,
    Role.WEIGHT: WEIGHT_TYPE,
    Role.CONFIG: WEIGHT_CONFIG_TYPE,
    Role.DOC: DOC_TYPE,
    Role.CODE: CODE_TYPE,
    Role.DATASET: DATASET_TYPE,
}
LAYER_RANKS = {
    WEIGHT_TYPE: 0,
    WEIGHT_TAR_TYPE + ZSTD: 0,
    WEIGHT_CONFIG_TYPE: 1,
    DOC_TYPE: 2,
    CODE_TYPE: 3,
    DATASET_TYPE: 4,
    DATASET_GROUP_TYPE: 5,
    DATASET_GROUP_TYPE + ZSTD: 5,
}
"""Media types of the layers after the four documents, and the order in which they stand."""
GROUP_TYPES = (DATASET_GROUP_TYPE, DATASET_GROUP_TYPE + ZSTD)
TAR_TYPES = (*GROUP_TYPES, WEIGHT_TAR_TYPE + ZSTD)


class Descriptor(NamedTuple):
    """A blob as a document names it; `path` is the file path in its annotations, of layers only."""

    media_type: str
    hex: str
    size_bytes: int
    path: str | None = None

    @property
    def digest(self) -> str:
        """The digest of the blob with its algorithm."""
        return PREFIX + self.hex

    def to_document(self) -> dict[str, Any]:
        """Return the descriptor as Go orders it."""
        document: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size_bytes,
        }
        if self.path is not None:
            document["annotations"] = {FILEPATH: self.path, TITLE: self.path}
        return document


class ImageEntry(NamedTuple):
    """Embedded images as `index.json` names them: the OCI index of one accelerator.

    They are of the top level's framework, or of the further one that `framework` names in lower case.
    """

    accelerator: str
    descriptor: Descriptor
    framework: str | None = None

    @property
    def order(self) -> tuple[str, str]:
        """By what the entries are sorted, each once: the top level's framework comes first."""
        return (self.framework or "", self.accelerator)


class ReferrerEntry(NamedTuple):
    """A manifest whose subject is the model manifest: a signature, an attestation, a report."""

    artifact_type: str
    descriptor: Descriptor


class Index(NamedTuple):
    """What `index.json` says: the model manifest with its tag, the images, the referrers."""

    model: Descriptor
    tag: str
    images: tuple[ImageEntry, ...] = ()
    referrers: tuple[ReferrerEntry, ...] = ()


class Manifest(NamedTuple):
    """The model manifest: its config and its layers in order."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


class ModelConfig(NamedTuple):
    """The part of a ModelPack config that a bundle states."""

    name: str
    version: str
    license: str | None = None
    description: str | None = None
    format: str | None = None


def go_json(value: Any) -> bytes:
    """Return compact JSON as Go's encoding/json prints it: `<`, `>`, `&`, U+2028 and U+2029 are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_GO_ESCAPES).encode("utf-8")


def ref_name(version: str) -> str:
    """Return the tag of a version: `+`, which no tag may hold, becomes `_`."""
    return version.replace("+", "_")


def is_tag(text: str) -> bool:
    """Return whether `text` is a tag by the OCI distribution specification."""
    return _TAG.fullmatch(text) is not None


def image_ref(accelerator: str, tag: str, framework: str | None = None) -> str:
    """Return the tag of the images for an accelerator in the bundle whose tag is `tag`.

    It is `fw.cpu.1.0.0`, of a further framework `fw.cpu-torch--1.0.0`. It can be read in one way only: an accelerator
    has neither dot nor hyphen, and the name of a further framework has no two hyphens in a row and none at its end.
    """
    return f"fw.{accelerator}.{tag}" if framework is None else f"fw.{accelerator}-{framework}--{tag}"


def encode_config(config: ModelConfig, diff_ids: Sequence[str]) -> bytes:
    """Return the ModelPack config; a diff id is the digest of a layer before compression."""
    descriptor: dict[str, Any] = {"name": config.name, "version": config.version}
    if config.license:
        descriptor["licenses"] = [config.license]
    if config.description:
        descriptor["description"] = config.description
    return go_json({
        "descriptor": descriptor,
        "modelfs": {"type": "layers", "diffIds": list(diff_ids)},
        "config": {"format": config.format} if config.format else {},
    })  # fmt: skip


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the model manifest."""
    return go_json({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": manifest.config.to_document(),
        "layers": [layer.to_document() for layer in manifest.layers],
    })  # fmt: skip


def encode_index(index: Index) -> bytes:
    """Return `index.json`: the model manifest, the images by framework and accelerator, the referrers by digest."""
    model = {
        **index.model.to_document(),
        "annotations": {REF_NAME: index.tag},
        "artifactType": ARTIFACT_TYPE,
    }
    images = [
        {
            **entry.descriptor.to_document(),
            "annotations": {REF_NAME: image_ref(entry.accelerator, index.tag, entry.framework)},
        }
        for entry in sorted(index.images, key=lambda entry: entry.order)
    ]
    referrers = [
        {**entry.descriptor.to_document(), "artifactType": entry.artifact_type}
        for entry in sorted(index.referrers, key=lambda entry: entry.descriptor.hex)
    ]
    return go_json({
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [model, *images, *referrers],
    })  # fmt: skip


def parse_index(document: Any, where: str) -> Index:
    """Return what `index.json` says; raises BundleCorrupt for anything but what `encode_index` writes."""
    fields = Fields(document, where, frozenset({"schemaVersion", "mediaType", "manifests"}))
    fields.constant("schemaVersion", 2)
    fields.constant("mediaType", INDEX_TYPE)
    entries = list(fields.objects("manifests", maximum=MAX_ENTRIES))
    if not entries:
        raise BundleCorrupt("there is no model manifest", where=f"{where}/manifests")
    model, others = entries[0], entries[1:]
    model.constant("artifactType", ARTIFACT_TYPE)
    tag = model.object("annotations", frozenset({REF_NAME})).text(REF_NAME)
    descriptor = parse_descriptor(model, MANIFEST_TYPE, extra=frozenset({"annotations", "artifactType"}))
    images = tuple(_image_entry(entry, tag) for entry in others if not entry.has("artifactType"))
    referrers = tuple(_referrer_entry(entry) for entry in others if entry.has("artifactType"))
    index = Index(descriptor, tag, images, referrers)
    _check_index_order(index, others, where)
    return index


def merge_indexes(old: bytes, new: bytes) -> bytes:
    """Return an `index.json` with the images and referrers of both, which are of one model manifest.

    Where they are more than an index may have, signatures stay before other referrers, and old ones before new ones.
    An old index that can't be read is replaced. Raises BundleCorrupt for a new one.
    """
    after = _parse_bytes(new)
    try:
        before = _parse_bytes(old)
    except BundleCorrupt:
        return new
    images = {entry.order: entry for entry in (*before.images, *after.images)}
    referrers = {entry.descriptor.hex: entry for entry in (*after.referrers, *before.referrers)}
    known = {entry.descriptor.hex for entry in before.referrers}
    ranked = sorted(
        referrers.values(),
        key=lambda entry: (
            entry.artifact_type not in SIGNATURE_TYPES,
            entry.descriptor.hex not in known,
            entry.descriptor.hex,
        ),
    )
    kept = tuple(ranked[: MAX_ENTRIES - 1 - len(images)])
    return encode_index(Index(after.model, after.tag, tuple(images.values()), kept))


def _parse_bytes(data: bytes) -> Index:
    where = f"{INDEX_FILE}#"
    return parse_index(loads(data, where=where), where)


def _image_entry(entry: Fields, tag: str) -> ImageEntry:
    name = entry.object("annotations", frozenset({REF_NAME})).text(REF_NAME)
    found = _IMAGE_OF.fullmatch(name.removesuffix(tag))
    if not found or name != image_ref(found[1], tag, found[2]):
        raise BundleCorrupt(
            f"{ascii(name)[:200]} is no name of an image of this bundle", where=f"{entry.where}/annotations"
        )
    descriptor = parse_descriptor(entry, INDEX_TYPE, extra=frozenset({"annotations"}))
    return ImageEntry(found[1], descriptor, found[2])


def _referrer_entry(entry: Fields) -> ReferrerEntry:
    artifact_type = entry.text("artifactType")
    check_referrer_type(artifact_type, f"{entry.where}/artifactType")
    return ReferrerEntry(
        artifact_type, parse_descriptor(entry, MANIFEST_TYPE, extra=frozenset({"artifactType"}))
    )


def check_referrer_type(artifact_type: str, where: str) -> None:
    """Raise BundleCorrupt unless an index can list referrers of this type."""
    if not MEDIA_TYPE.fullmatch(artifact_type) or artifact_type == ARTIFACT_TYPE:
        raise BundleCorrupt(f"{ascii(artifact_type)[:100]} is no type of a referrer", where=where)


def _check_index_order(index: Index, others: list[Fields], where: str) -> None:
    """One order only, so that the same content is the same bytes; nothing stands twice."""
    images = [entry.order for entry in index.images]
    digests = [entry.descriptor.hex for entry in index.referrers]
    in_order = images == sorted(set(images)) and digests == sorted(set(digests))
    images_first = all(not entry.has("artifactType") for entry in others[: len(images)])
    if not in_order or not images_first:
        raise BundleCorrupt("the entries are not in order, or one stands twice", where=f"{where}/manifests")


def parse_manifest(document: Any, where: str) -> Manifest:
    """Return the model manifest as values; raises BundleCorrupt for every deviation from what `pack` writes."""
    allowed = frozenset({"schemaVersion", "mediaType", "artifactType", "config", "layers"})
    fields = Fields(document, where, allowed)
    fields.constant("schemaVersion", 2)
    fields.constant("mediaType", MANIFEST_TYPE)
    fields.constant("artifactType", ARTIFACT_TYPE)
    config = parse_descriptor(fields.object("config"), CONFIG_TYPE)
    return Manifest(config, tuple(_layer(layer) for layer in fields.objects("layers", maximum=MAX_LAYERS)))


def parse_config(document: Any, where: str) -> tuple[ModelConfig, tuple[str, ...]]:
    """Return the ModelPack config as values, and the hex forms of its diff ids."""
    fields = Fields(document, where, frozenset({"descriptor", "modelfs", "config"}))
    descriptor = fields.object("descriptor", frozenset({"name", "version", "licenses", "description"}))
    files = fields.object("modelfs", frozenset({"type", "diffIds"}))
    files.constant("type", "layers")
    diff_ids = tuple(
        parse_digest(text, where=f"{files.where}/diffIds")
        for text in files.array("diffIds", maximum=MAX_LAYERS)
    )
    licenses = descriptor.array("licenses", maximum=1) if descriptor.has("licenses") else []
    if not all(isinstance(name, str) for name in licenses):
        raise BundleCorrupt("a licence is no string", where=f"{where}/descriptor/licenses")
    config = fields.object("config", frozenset({"format"}))
    model = ModelConfig(
        name=descriptor.text("name"),
        version=descriptor.text("version"),
        license=licenses[0] if licenses else None,
        description=descriptor.text("description") if descriptor.has("description") else None,
        format=config.text("format") if config.has("format") else None,
    )
    return model, diff_ids


def parse_descriptor(
    fields: Fields, media_type: str | None, *, extra: frozenset[str] = frozenset(), path: str | None = None
) -> Descriptor:
    """Return the descriptor in an object that has no keys but its own and `extra`."""
    fields.only(frozenset({"mediaType", "digest", "size"}) | extra)
    if media_type is not None:
        fields.constant("mediaType", media_type)
    hexadecimal = parse_digest(fields.text("digest"), where=f"{fields.where}/digest")
    return Descriptor(fields.text("mediaType"), hexadecimal, fields.integer("size"), path)


def _layer(fields: Fields) -> Descriptor:
    annotations = fields.object("annotations", frozenset({FILEPATH, TITLE}))
    path = annotations.text(FILEPATH)
    annotations.constant(TITLE, path)
    return parse_descriptor(fields, None, extra=frozenset({"annotations"}), path=path)
