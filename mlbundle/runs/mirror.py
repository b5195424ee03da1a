"""Copies the images that a bundle pins from their registries into the bundle's own repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.bundle.digests import PREFIX, is_digest
from mlbundle.bundle.oci import INDEX_TYPE, MANIFEST_TYPE
from mlbundle.bundle.strictjson import loads
from mlbundle.errors import RegistryAnswerInvalid, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlbundle.bundle.reader import BundleReader
    from mlbundle.registry.client import RegistryClient
    from mlbundle.registry.reference import RegistryReference
    from mlbundle.runs.network import Network

_DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_INDEXES = (INDEX_TYPE, _DOCKER_INDEX)
_ACCEPTED = (INDEX_TYPE, MANIFEST_TYPE, _DOCKER_INDEX, _DOCKER_MANIFEST)
_MAX_CHILDREN = 64


def mirror(
    reader: BundleReader,
    target: RegistryClient,
    network: Network,
    *,
    report: Callable[[str], None] = lambda _line: None,
) -> tuple[str, ...]:
    """Copy every image that is pinned by the digest of a manifest or index; return what was copied.

    An image is named by its digest there, so nothing can take its place. Images that are only known by a config
    digest were built somewhere and have no registry: embed them. Raises UsageError when no pin can be mirrored, and
    the errors of the client.
    """
    from mlbundle.runs.opening import client_of

    copied: list[str] = []
    for pin in reader.document.images:
        if pin.digest is None or pin.digest == pin.config:
            report(f"not mirrored: {pin.image} is pinned by its config only")
            continue
        source = source_of(pin.image, pin.digest)
        report(f"mirroring {source}")
        with client_of(source, network) as client:
            _copy(client, target, pin.digest)
        copied.append(str(target.reference.with_(digest=pin.digest)))
    if not copied:
        raise UsageError(
            "the bundle pins no image that has a registry",
            hint="images that were built here travel with --with-image",
        )
    return tuple(dict.fromkeys(copied))


def source_of(image: str, digest: str) -> RegistryReference:
    """Return where an image comes from; a name without a host is one of Docker Hub, as docker reads it."""
    from mlbundle.registry.reference import looks_like_registry, parse

    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    repository = head if colon and "/" not in tag else name
    if not looks_like_registry(repository):
        repository = f"docker.io/{repository if '/' in repository else f'library/{repository}'}"
    return parse(f"{repository}@{digest}")


def _copy(source: RegistryClient, target: RegistryClient, digest: str) -> None:
    """Copy a manifest with all that it names; what it names goes first."""
    from mlbundle.registry.blobs import RegistryBlobs
    from mlbundle.registry.transfer import BlobOrder, upload_many

    manifest = source.get_manifest(digest, _ACCEPTED)
    document: Any = loads(manifest.data, where=f"{source.name}@{digest}#")
    if manifest.media_type in _INDEXES:
        for child, _ in _descriptors(document, "manifests", digest):
            _copy(source, target, child)
    else:
        blobs = [
            *_descriptors({"config": [document.get("config")]}, "config", digest),
            *_descriptors(document, "layers", digest),
        ]
        orders = [BlobOrder(child.removeprefix(PREFIX), size_bytes) for child, size_bytes in blobs]
        same = source.reference.host == target.reference.host
        upload_many(
            target,
            orders,
            RegistryBlobs(source),
            from_repository=source.reference.repository if same else None,
        )
    target.put_manifest(digest, manifest.media_type, manifest.data)


def _descriptors(document: Any, key: str, where: str) -> Iterator[tuple[str, int]]:
    """Yield digest and size of each descriptor in a list of a foreign document."""
    entries = document.get(key) if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > _MAX_CHILDREN * 16:
        raise RegistryAnswerInvalid(f"the manifest has no list of {key}", where=where)
    for entry in entries:
        digest = entry.get("digest") if isinstance(entry, dict) else None
        size = entry.get("size") if isinstance(entry, dict) else None
        if not is_digest(digest) or not isinstance(size, int) or size < 0:
            raise RegistryAnswerInvalid(f"a descriptor of {key} is broken", where=where)
        yield str(digest), size
