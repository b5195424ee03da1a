"""OCI referrers: small manifests with a `subject`, as image-spec v1.1 describes them.

A referrer travels with the manifest that it is about, inside a bundle file and to registries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.digests import PREFIX, parse_digest, sha256_hex
from mlbundle.bundle.oci import MANIFEST_TYPE, go_json
from mlbundle.bundle.strictjson import MAX_BYTES, Fields, loads
from mlbundle.errors import BundleCorrupt, DigestMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlbundle.bundle.blobs import BlobReader

EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY_BYTES = b"{}"
EMPTY_HEX = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
MAX_LAYERS = 64
MAX_ANNOTATIONS = 256
MAX_LAYER_BYTES = 32 << 20
"""The largest blob that a referrer may have."""

_DESCRIPTOR = frozenset({"mediaType", "digest", "size", "annotations"})
_KEYS = frozenset({
    "schemaVersion", "mediaType", "artifactType", "config", "layers", "subject", "annotations",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layer:
    """Bytes that a referrer carries."""

    media_type: str
    data: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Subject:
    """The manifest that a referrer is about."""

    media_type: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Referrer:
    """A referrer's manifest and the blobs it names, by the hex form of their sha256."""

    manifest: bytes
    blobs: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """The digest of the manifest."""
        return PREFIX + sha256_hex(self.manifest)


@dataclass(frozen=True, slots=True)
class LayerDescriptor:
    """A layer as a referrer's manifest names it."""

    media_type: str
    hex: str
    size_bytes: int
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ParsedReferrer:
    """What a referrer's manifest says."""

    artifact_type: str
    config: LayerDescriptor
    layers: tuple[LayerDescriptor, ...]
    subject: Subject
    annotations: Mapping[str, str]


def make_referrer(
    artifact_type: str,
    layers: Sequence[Layer],
    subject: Subject,
    annotations: Mapping[str, str] | None = None,
) -> Referrer:
    """Return a referrer; its JSON is what Go's encoding/json prints for the manifest of OCI image-spec v1.1."""
    blobs = {EMPTY_HEX: EMPTY_BYTES, **{sha256_hex(layer.data): layer.data for layer in layers}}
    document: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": artifact_type,
        "config": _descriptor(EMPTY_TYPE, EMPTY_HEX, len(EMPTY_BYTES)),
        "layers": [
            _descriptor(layer.media_type, sha256_hex(layer.data), len(layer.data), layer.annotations)
            for layer in layers
        ],
        "subject": {
            "mediaType": subject.media_type,
            "digest": subject.digest,
            "size": subject.size_bytes,
        },
    }
    if annotations:
        document["annotations"] = dict(sorted(annotations.items()))
    return Referrer(go_json(document), blobs)


def parse_referrer(data: bytes, *, where: str = "referrer") -> ParsedReferrer:
    """Return what the manifest of a referrer says.

    Others may give a referrer a config of its own; ours have the empty one. Raises BundleCorrupt for anything that is
    no referrer, more than 4 MiB, repeated keys, unknown keys outside of annotations, and digests that are not sha256.
    """
    document = loads(data, where=where)
    fields = Fields(document, f"{where}#", _KEYS)
    fields.constant("schemaVersion", 2)
    fields.constant("mediaType", MANIFEST_TYPE)
    config = fields.object("config", _DESCRIPTOR | {"data"})
    subject = fields.object("subject", frozenset({"mediaType", "digest", "size"}))
    layers = fields.objects("layers", _DESCRIPTOR, maximum=MAX_LAYERS)
    return ParsedReferrer(
        artifact_type=fields.text("artifactType"),
        config=_layer(config, document["config"]),
        layers=tuple(_layer(layer, raw) for layer, raw in zip(layers, document["layers"], strict=True)),
        subject=Subject(
            subject.text("mediaType"), PREFIX + _hex(subject), subject.integer("size", maximum=MAX_BYTES)
        ),
        annotations=_annotations(document, fields.where),
    )


def layer_bytes(referrer: Referrer, layer: LayerDescriptor) -> bytes:
    """Return the bytes of a layer; raises BundleCorrupt when they are absent, DigestMismatch when they are others."""
    data = referrer.blobs.get(layer.hex)
    if data is None:
        raise BundleCorrupt("a layer of a referrer is not there", where=f"{PREFIX}{layer.hex}")
    if len(data) != layer.size_bytes or sha256_hex(data) != layer.hex:
        raise DigestMismatch("a layer of a referrer has other bytes", where=f"{PREFIX}{layer.hex}")
    return data


def load_referrer(reader: BlobReader, digest: str, *, most_bytes: int = MAX_LAYER_BYTES) -> Referrer:
    """Read a referrer's manifest, config and layers by their digests; config and layers in all `most_bytes` at most.

    Raises BundleCorrupt (absent, too large, malformed) or DigestMismatch.
    """
    manifest = _load(reader, parse_digest(digest, where=reader.name), MAX_BYTES)
    parsed = parse_referrer(manifest, where=f"{reader.name}: {digest}")
    blobs = {EMPTY_HEX: EMPTY_BYTES}
    wanted = {layer.hex: layer for layer in (parsed.config, *parsed.layers) if layer.hex != EMPTY_HEX}
    in_all = sum(layer.size_bytes for layer in wanted.values())
    if in_all > most_bytes:
        raise BundleCorrupt(
            f"a referrer of {in_all} bytes is over the cap of {most_bytes}", where=f"{reader.name}: {digest}"
        )
    for key, layer in wanted.items():
        blobs[key] = load_blob(reader, key, layer.size_bytes)
    return Referrer(manifest, blobs)


def load_blob(reader: BlobReader, hexadecimal: str, stated_bytes: int) -> bytes:
    """Read a blob of a referrer by its digest; raises BundleCorrupt (absent, other size, too large), DigestMismatch."""
    return _load(reader, hexadecimal, MAX_LAYER_BYTES, stated_bytes)


def _load(reader: BlobReader, hexadecimal: str, most_bytes: int, stated_bytes: int | None = None) -> bytes:
    size_bytes = reader.size_of(hexadecimal)
    where = reader.where(hexadecimal)
    if size_bytes is None:
        raise BundleCorrupt(f"the blob {PREFIX}{hexadecimal} of a referrer is not there", where=where)
    if stated_bytes is not None and size_bytes != stated_bytes:
        raise BundleCorrupt(f"{size_bytes} bytes where {stated_bytes} are stated", where=where)
    if size_bytes > most_bytes:
        raise BundleCorrupt(f"a referrer of {size_bytes} bytes is over the cap of {most_bytes}", where=where)
    buffer = bytearray(size_bytes)
    reader.read_into(hexadecimal, memoryview(buffer), 0)
    data = bytes(buffer)
    if sha256_hex(data) != hexadecimal:
        raise DigestMismatch("the bytes of a referrer do not have its digest", where=where)
    return data


def _descriptor(
    media_type: str, hexadecimal: str, size_bytes: int, annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "mediaType": media_type,
        "digest": PREFIX + hexadecimal,
        "size": size_bytes,
    }
    if annotations:
        document["annotations"] = dict(sorted(annotations.items()))
    return document


def _layer(fields: Fields, raw: dict[str, Any]) -> LayerDescriptor:
    annotations = _annotations(raw, fields.where)
    return LayerDescriptor(fields.text("mediaType"), _hex(fields), fields.integer("size"), annotations)


def _hex(fields: Fields) -> str:
    return parse_digest(fields.text("digest"), where=f"{fields.where}/digest")


def _annotations(raw: dict[str, Any], where: str) -> dict[str, str]:
    annotations = raw.get("annotations", {})
    if not isinstance(annotations, dict) or len(annotations) > MAX_ANNOTATIONS:
        raise BundleCorrupt(
            f"a mapping of at most {MAX_ANNOTATIONS} texts is expected", where=f"{where}/annotations"
        )
    if not all(isinstance(value, str) for value in annotations.values()):
        raise BundleCorrupt("the value of an annotation is no text", where=f"{where}/annotations")
    return annotations
