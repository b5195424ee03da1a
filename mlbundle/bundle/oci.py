"""The OCI and ModelPack documents of a bundle, byte for byte as Go's encoding/json prints them.

Clients written in Go decode these documents, encode them again and compare digests, so the order of the
keys is the order of the Go structs: OCI image-spec v1.1 (manifest, index, descriptor) and the CNCF
ModelPack specification v1 (config).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.digests import PREFIX, parse_digest
from mlbundle.bundle.strictjson import Fields
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

REF_NAME = "org.opencontainers.image.ref.name"
TITLE = "org.opencontainers.image.title"
FILEPATH = "org.cncf.model.filepath"

MAX_LAYERS = 20_000
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
LAYER_ORDER = (WEIGHT_TYPE, WEIGHT_CONFIG_TYPE, DOC_TYPE, CODE_TYPE, DATASET_TYPE, DATASET_GROUP_TYPE)
"""Media types of the layers after the four documents, in the order in which they stand."""


@dataclass(frozen=True, slots=True)
class Descriptor:
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


@dataclass(frozen=True, slots=True)
class Manifest:
    """The model manifest: its config and its layers in order."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class ModelConfig:
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


def encode_config(config: ModelConfig, layer_digests: Sequence[str]) -> bytes:
    """Return the ModelPack config; a diff id is the layer's digest since no layer is compressed."""
    descriptor: dict[str, Any] = {"name": config.name, "version": config.version}
    if config.license:
        descriptor["licenses"] = [config.license]
    if config.description:
        descriptor["description"] = config.description
    return go_json({
        "descriptor": descriptor,
        "modelfs": {"type": "layers", "diffIds": list(layer_digests)},
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


def encode_index(manifest_hex: str, size_bytes: int, version: str) -> bytes:
    """Return `index.json` with the model manifest as its only entry."""
    entry = {
        "mediaType": MANIFEST_TYPE,
        "digest": PREFIX + manifest_hex,
        "size": size_bytes,
        "annotations": {REF_NAME: ref_name(version)},
        "artifactType": ARTIFACT_TYPE,
    }
    return go_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]})


def parse_index(document: Any, where: str) -> tuple[Descriptor, str]:
    """Return the descriptor of the model manifest and its tag.

    Raises BundleCorrupt for anything but one entry that is a ModelPack manifest.
    """
    index = Fields(document, where, frozenset({"schemaVersion", "mediaType", "manifests"}))
    index.constant("schemaVersion", 2)
    index.constant("mediaType", INDEX_TYPE)
    entries = list(index.objects("manifests", maximum=64))
    if len(entries) != 1:
        raise BundleCorrupt(
            f"{len(entries)} entries where one model manifest is expected",
            where=f"{where}/manifests",
            hint="a newer version of mlbundle may know the others",
        )
    entry = entries[0]
    entry.constant("artifactType", ARTIFACT_TYPE)
    tag = entry.object("annotations", frozenset({REF_NAME})).text(REF_NAME)
    return _descriptor(entry, MANIFEST_TYPE, extra=frozenset({"annotations", "artifactType"})), tag


def parse_manifest(document: Any, where: str) -> Manifest:
    """Return the model manifest as values; raises BundleCorrupt for every deviation from what `pack` writes."""
    allowed = frozenset({"schemaVersion", "mediaType", "artifactType", "config", "layers"})
    fields = Fields(document, where, allowed)
    fields.constant("schemaVersion", 2)
    fields.constant("mediaType", MANIFEST_TYPE)
    fields.constant("artifactType", ARTIFACT_TYPE)
    config = _descriptor(fields.object("config"), CONFIG_TYPE)
    return Manifest(config, tuple(_layer(layer) for layer in fields.objects("layers", maximum=MAX_LAYERS)))


def parse_config(document: Any, where: str, layer_digests: Sequence[str]) -> ModelConfig:
    """Return the ModelPack config as values; raises BundleCorrupt when its diff ids are not the layers'."""
    fields = Fields(document, where, frozenset({"descriptor", "modelfs", "config"}))
    descriptor = fields.object("descriptor", frozenset({"name", "version", "licenses", "description"}))
    files = fields.object("modelfs", frozenset({"type", "diffIds"}))
    files.constant("type", "layers")
    if files.array("diffIds", maximum=MAX_LAYERS) != list(layer_digests):
        raise BundleCorrupt(
            "the diff ids are not the digests of the layers", where=f"{where}/modelfs/diffIds"
        )
    licenses = descriptor.array("licenses", maximum=1) if descriptor.has("licenses") else []
    if not all(isinstance(name, str) for name in licenses):
        raise BundleCorrupt("a licence is no string", where=f"{where}/descriptor/licenses")
    config = fields.object("config", frozenset({"format"}))
    return ModelConfig(
        name=descriptor.text("name"),
        version=descriptor.text("version"),
        license=licenses[0] if licenses else None,
        description=descriptor.text("description") if descriptor.has("description") else None,
        format=config.text("format") if config.has("format") else None,
    )


def _descriptor(
    fields: Fields, media_type: str | None, *, extra: frozenset[str] = frozenset(), path: str | None = None
) -> Descriptor:
    fields.only(frozenset({"mediaType", "digest", "size"}) | extra)
    if media_type is not None:
        fields.constant("mediaType", media_type)
    hexadecimal = parse_digest(fields.text("digest"), where=f"{fields.where}/digest")
    return Descriptor(fields.text("mediaType"), hexadecimal, fields.integer("size"), path)


def _layer(fields: Fields) -> Descriptor:
    annotations = fields.object("annotations", frozenset({FILEPATH, TITLE}))
    path = annotations.text(FILEPATH)
    annotations.constant(TITLE, path)
    return _descriptor(fields, None, extra=frozenset({"annotations"}), path=path)
