"""What a bundle carries beside its model: framework images and referrers, as documents of the OCI image-spec v1.1.

Both are written by us, so the keys of their documents are known; what is held against them is the framework table of
`bundle.json` for an image, and the model manifest as the subject of a referrer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mlbundle.bundle import oci
from mlbundle.bundle.checked import check_present, read_document
from mlbundle.bundle.document import Place
from mlbundle.bundle.oci import ImageEntry
from mlbundle.bundle.strictjson import MAX_BYTES as MAX_DOCUMENT_BYTES
from mlbundle.bundle.strictjson import Fields, loads
from mlbundle.errors import BundleCorrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlbundle.bundle.blobs import BlobReader
    from mlbundle.bundle.document import ImagePin
    from mlbundle.bundle.oci import Descriptor, ReferrerEntry

PREDICATE_TYPE = "dev.sigstore.bundle.predicateType"
_MAX_PLATFORMS = 16
_MAX_IMAGE_LAYERS = 1_000
_MAX_REFERRER_LAYERS = 64
MAX_REFERRER_BYTES = 32 << 20
"""The most that one blob of a referrer may have: a bill of materials of a large image is a few MiB."""


class PlatformImage(NamedTuple):
    """The image of one architecture: its manifest, its config and its layers."""

    architecture: str
    os: str
    manifest: Descriptor
    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class EmbeddedImage:
    """The images of a framework for one accelerator, one for each architecture, under one OCI index.

    `framework` is the name of a further framework in lower case, None for that of the top level.
    """

    accelerator: str
    index: Descriptor
    platforms: tuple[PlatformImage, ...]
    framework: str | None = None

    @property
    def entry(self) -> ImageEntry:
        """The images as `index.json` names them."""
        return ImageEntry(self.accelerator, self.index, self.framework)

    def place(self, platform: PlatformImage) -> Place:
        """Return what the image of a platform is for."""
        return Place(self.framework, platform.architecture, self.accelerator)

    @property
    def documents(self) -> tuple[Descriptor, ...]:
        """The index, the manifests and the configs."""
        manifests = tuple(image.manifest for image in self.platforms)
        return (self.index, *manifests, *(image.config for image in self.platforms))

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """The layers of all platforms, in order."""
        return tuple(layer for image in self.platforms for layer in image.layers)


class Referrer(NamedTuple):
    """A manifest that refers to the model manifest, with the blobs it is about.

    `predicate_type` says what a signed statement states, where the manifest says so; nothing vouches for it.
    """

    artifact_type: str
    predicate_type: str | None
    manifest: Descriptor
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """The config and the layers."""
        return (self.config, *self.layers)


def read_image(
    source: BlobReader, entry: ImageEntry, pins: Sequence[ImagePin], *, whole: bool
) -> EmbeddedImage:
    """Return an embedded image after holding it against the framework table.

    With `whole`, its layers must be there too. Raises BundleCorrupt, DigestMismatch.
    """
    what = f"the image index for {' and '.join(filter(None, (entry.framework, entry.accelerator)))}"
    fields = _document(source, entry.descriptor, what, {"schemaVersion", "mediaType", "manifests"})
    fields.constant("mediaType", oci.INDEX_TYPE)
    platforms = [
        _read_platform(source, found, whole=whole)
        for found in fields.objects("manifests", maximum=_MAX_PLATFORMS)
    ]
    names = [image.architecture for image in platforms]
    if not names or names != sorted(set(names)):
        raise BundleCorrupt(
            "the platforms are not in order, or there is none", where=f"{fields.where}/manifests"
        )
    embedded = EmbeddedImage(entry.accelerator, entry.descriptor, tuple(platforms), entry.framework)
    pinned = {pin.place: pin for pin in pins}
    for image in platforms:
        place = embedded.place(image)
        pin = pinned.get(place)
        stated = (pin.index, pin.manifest, pin.config) if pin else None
        found = (entry.descriptor.digest, image.manifest.digest, image.config.digest)
        if stated != found:
            raise BundleCorrupt(
                f"the image for {ascii(str(place))[1:-1]} is not the one of the framework table",
                where=fields.where,
            )
    return embedded


def read_referrer(source: BlobReader, entry: ReferrerEntry, subject: Descriptor, *, whole: bool) -> Referrer:
    """Return a referrer after checking that it refers to `subject` and has room in a bundle.

    With `whole`, its blobs must be there too. Raises BundleCorrupt, DigestMismatch.
    """
    oci.check_referrer_type(entry.artifact_type, f"{entry.descriptor.digest}#/artifactType")
    keys = {"schemaVersion", "mediaType", "artifactType", "config", "layers", "subject", "annotations"}
    fields = _document(source, entry.descriptor, f"the referrer {entry.descriptor.digest}", keys)
    fields.constant("mediaType", oci.MANIFEST_TYPE)
    fields.constant("artifactType", entry.artifact_type)
    stated = oci.parse_descriptor(fields.object("subject"), oci.MANIFEST_TYPE)
    if (stated.hex, stated.size_bytes) != (subject.hex, subject.size_bytes):
        raise BundleCorrupt("the referrer is about another manifest", where=f"{fields.where}/subject")
    extra = frozenset({"annotations"})
    config = oci.parse_descriptor(fields.object("config"), None, extra=frozenset({"data", "annotations"}))
    layers = tuple(
        oci.parse_descriptor(layer, None, extra=extra)
        for layer in fields.objects("layers", maximum=_MAX_REFERRER_LAYERS)
    )
    for blob in (config, *layers):
        if blob.size_bytes > MAX_REFERRER_BYTES:
            raise BundleCorrupt(f"a referrer of {blob.size_bytes} bytes is over the cap", where=fields.where)
    referrer = Referrer(entry.artifact_type, _predicate_type(fields), entry.descriptor, config, layers)
    if whole:
        check_referrer_blobs(source, referrer)
    return referrer


def check_referrer_blobs(source: BlobReader, referrer: Referrer) -> None:
    """Raise BundleCorrupt unless the blobs of a referrer are there, of the sizes that it states."""
    for blob in referrer.blobs:
        check_present(source, blob, f"a blob of the referrer {referrer.manifest.digest}")


def _predicate_type(fields: Fields) -> str | None:
    if not fields.has("annotations"):
        return None
    annotations = fields.object("annotations")
    return annotations.text(PREDICATE_TYPE) if annotations.has(PREDICATE_TYPE) else None


def _document(source: BlobReader, descriptor: Descriptor, what: str, keys: set[str]) -> Fields:
    data = read_document(source, descriptor, MAX_DOCUMENT_BYTES, what)
    where = f"{source.name}!{descriptor.digest}#"
    document: Any = loads(data, where=where)
    fields = Fields(document, where, frozenset(keys))
    fields.constant("schemaVersion", 2)
    return fields


def _read_platform(source: BlobReader, entry: Fields, *, whole: bool) -> PlatformImage:
    platform = entry.object("platform", frozenset({"architecture", "os"}))
    descriptor = oci.parse_descriptor(entry, oci.MANIFEST_TYPE, extra=frozenset({"platform"}))
    what = f"the image manifest {descriptor.digest}"
    fields = _document(source, descriptor, what, {"schemaVersion", "mediaType", "config", "layers"})
    fields.constant("mediaType", oci.MANIFEST_TYPE)
    config = oci.parse_descriptor(fields.object("config"), oci.IMAGE_CONFIG_TYPE)
    layers = tuple(
        oci.parse_descriptor(layer, None) for layer in fields.objects("layers", maximum=_MAX_IMAGE_LAYERS)
    )
    for layer in layers:
        if layer.media_type not in oci.IMAGE_LAYER_TYPES:
            raise BundleCorrupt(
                f"the media type {ascii(layer.media_type)[:100]} is unknown", where=f"{fields.where}/layers"
            )
    if whole:
        for blob in (config, *layers):
            check_present(source, blob, what)
    return PlatformImage(platform.text("architecture"), platform.text("os"), descriptor, config, layers)
