"""A bundle as a registry holds it: the model manifest, and around it images and referrers, put together as an index."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlbundle.bundle import oci
from mlbundle.bundle.attachments import EmbeddedImage, Referrer, read_image
from mlbundle.bundle.checked import read_document
from mlbundle.bundle.digests import PREFIX
from mlbundle.bundle.document import BundleDocument, parse_bundle
from mlbundle.bundle.layout import BUNDLE_LAYER
from mlbundle.bundle.strictjson import MAX_BYTES, loads
from mlbundle.errors import MlbundleError, NotABundle, ReferenceNotFound, UsageError
from mlbundle.runs.attached import find_referrers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlbundle.bundle.blobs import BlobReader
    from mlbundle.registry.blobs import RegistryBlobs
    from mlbundle.registry.client import Manifest, RegistryClient
    from mlbundle.registry.reference import RegistryReference

RESERVED_TAGS = ("fw.", "sha256-")
"""How tags begin that are no versions: those of images, and of lists of referrers."""

_MAX_TAGS_SHOWN = 10
_NUMBER = re.compile(r"([0-9]+)")
_DIGITS = 128


@dataclass(frozen=True)
class RemoteBundle:
    """What was found in a repository.

    `documents` are the manifests by digest (hex), which registries do not serve as blobs; `images` and `referrers`
    are those that are there and acceptable, `passed_over` says which are not and why.
    """

    reference: str
    manifest: oci.Manifest
    model: oci.Descriptor
    document: BundleDocument
    documents: dict[str, bytes]
    images: tuple[EmbeddedImage, ...]
    referrers: tuple[Referrer, ...]
    passed_over: tuple[str, ...] = field(default=())

    def index(self, images: Sequence[EmbeddedImage] | None = None) -> bytes:
        """Return `index.json` with these of the images, all by default."""
        return oci.encode_index(
            oci.Index(
                model=self.model,
                tag=oci.ref_name(self.document.model_version),
                images=tuple(image.entry for image in (self.images if images is None else images)),
                referrers=tuple(
                    oci.ReferrerEntry(referrer.artifact_type, referrer.manifest)
                    for referrer in self.referrers
                ),
            )
        )


def look_up(client: RegistryClient, blobs: RegistryBlobs, reference: RegistryReference) -> RemoteBundle:
    """Return the bundle that a reference names, reading documents only; `blobs` has its manifests afterwards.

    Raises ReferenceNotFound, NotABundle for an artifact of another kind, BundleCorrupt, DigestMismatch, and the
    errors of the client.
    """
    found = _find(client, reference)
    where = f"{reference}#"
    _check_kind(found.media_type, found.data, str(reference))
    documents = {blobs.add_document(found.data): found.data}
    manifest = oci.parse_manifest(loads(found.data, where=where), where)
    model = oci.Descriptor(oci.MANIFEST_TYPE, found.digest.removeprefix(PREFIX), len(found.data))
    document = _read_bundle(blobs, manifest.layers[0])

    def keep(digest: str, media_type: str) -> oci.Descriptor:
        """Fetch a further manifest by digest and remember its bytes."""
        data = client.get_manifest(digest).data
        documents[blobs.add_document(data)] = data
        # What counts is what the manifest says of itself, whatever type it is served as.
        return oci.Descriptor(media_type, digest.removeprefix(PREFIX), len(data))

    images = _images(blobs, document, keep)
    attached = find_referrers(client, blobs, model)
    documents.update(attached.documents)
    return RemoteBundle(
        reference=str(reference),
        manifest=manifest,
        model=model,
        document=document,
        documents=documents,
        images=images,
        referrers=attached.referrers,
        passed_over=attached.passed_over,
    )


def _find(client: RegistryClient, reference: RegistryReference) -> Manifest:
    try:
        return client.get_manifest(reference.manifest or _only_tag(client))
    except ReferenceNotFound as error:
        versions: list[str] = []
        # Not every registry that gives manifests gives lists, too.
        with suppress(MlbundleError):
            versions = versions_in(client) if reference.manifest else []
        if not versions:
            raise
        shown = ", ".join(versions[-_MAX_TAGS_SHOWN:])
        raise ReferenceNotFound(error.message, where=str(reference), hint=f"it has: {shown}") from error


def versions_in(client: RegistryClient) -> list[str]:
    """Return the tags of bundles, 1.9 before 1.10: registries list them in any order."""
    tags = [tag for tag in client.tags() if not tag.startswith(RESERVED_TAGS)]
    return sorted(
        tags, key=lambda tag: [(part.isdigit(), part.zfill(_DIGITS)) for part in _NUMBER.split(tag)]
    )


def _only_tag(client: RegistryClient) -> str:
    versions = versions_in(client)
    if len(versions) == 1:
        return versions[0]
    if not versions:
        raise ReferenceNotFound(f"there is no bundle in {client.name}", hint="`mlbundle push` puts one there")
    shown = ", ".join(versions[-_MAX_TAGS_SHOWN:])
    raise UsageError(f"{client.name} has {len(versions)} versions", hint=f"name one of them: {shown}")


def _check_kind(media_type: str, data: bytes, where: str) -> None:
    document: Any = loads(data, where=f"{where}#")
    kind = document.get("artifactType") if isinstance(document, dict) else None
    if media_type != oci.MANIFEST_TYPE or kind != oci.ARTIFACT_TYPE:
        raise NotABundle(
            f"this is no bundle but {ascii(kind or media_type)[:100]}",
            where=where,
            hint="name the repository and the version of a bundle",
        )
    # Models of other tools may have keys that bundles have not, so they are told apart before all keys are checked.
    if _first_path(document) != BUNDLE_LAYER:
        raise NotABundle(
            "the model in the registry is not packed as a bundle",
            where=where,
            hint="another tool made it; `mlbundle pack` makes bundles",
        )


def _first_path(document: dict[str, Any]) -> Any:
    """Return the path of the first layer of a manifest that may be anybody's, None where it has none."""
    layers = document.get("layers")
    first = layers[0] if isinstance(layers, list) and layers else None
    annotations = first.get("annotations") if isinstance(first, dict) else None
    return annotations.get(oci.FILEPATH) if isinstance(annotations, dict) else None


def _read_bundle(blobs: BlobReader, layer: oci.Descriptor) -> BundleDocument:
    where = f"{blobs.name}!{BUNDLE_LAYER}#"
    return parse_bundle(loads(read_document(blobs, layer, MAX_BYTES, BUNDLE_LAYER), where=where), where)


def _images(
    blobs: BlobReader, document: BundleDocument, keep: Callable[[str, str], oci.Descriptor]
) -> tuple[EmbeddedImage, ...]:
    """Return the images of the framework table that are in the repository; a bundle may be pushed without them."""
    images = []
    indexes = {
        (pin.framework or "", pin.accelerator): pin.index for pin in document.images if pin.index is not None
    }
    for (framework, accelerator), digest in sorted(indexes.items()):
        try:
            entry = oci.ImageEntry(accelerator, keep(digest, oci.INDEX_TYPE), framework or None)
        except ReferenceNotFound:
            continue
        for pin in document.images:
            same = (pin.framework, pin.accelerator) == (entry.framework, accelerator)
            if same and pin.manifest is not None:
                keep(pin.manifest, oci.MANIFEST_TYPE)
        images.append(read_image(blobs, entry, document.images, whole=False))
    return tuple(images)
