"""Copies the images that a bundle pins from their registries into the bundle's own repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle.bundle.digests import PREFIX, parse_digest
from mlbundle.bundle.oci import INDEX_TYPE
from mlbundle.bundle.strictjson import Fields, loads
from mlbundle.errors import BundleCorrupt, RegistryAnswerInvalid, UsageError
from mlbundle.registry.client import ALL_MANIFEST_TYPES, DOCKER_INDEX_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlbundle.bundle.reader import BundleReader
    from mlbundle.registry.client import Manifest, RegistryClient
    from mlbundle.registry.reference import RegistryReference
    from mlbundle.runs.network import Network

_INDEXES = (INDEX_TYPE, DOCKER_INDEX_TYPE)
_MAX_DEPTH = 2
_MAX_MANIFESTS = 256
_MAX_LAYERS = 1_000


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
            copy_image(client, target, pin.digest)
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


def copy_image(source: RegistryClient, target: RegistryClient, digest: str) -> None:
    """Copy a manifest with all that it names; what it names goes first.

    Raises RegistryAnswerInvalid for what is no image, and the errors of the client.
    """
    _Copy(source, target).run(digest, depth=0)


class _Copy:
    """One image on its way: an index, its manifests, and what those name."""

    def __init__(self, source: RegistryClient, target: RegistryClient) -> None:
        from mlbundle.registry.blobs import RegistryBlobs

        self._source = source
        self._target = target
        self._blobs = RegistryBlobs(source)
        self._seen: set[str] = set()

    def run(self, digest: str, depth: int) -> None:
        """Copy a manifest, unless it was copied before."""
        if digest in self._seen:
            return
        self._seen.add(digest)
        where = f"{self._source.name}@{digest}#"
        if depth > _MAX_DEPTH or len(self._seen) > _MAX_MANIFESTS:
            raise RegistryAnswerInvalid(
                f"an image is an index of at most {_MAX_MANIFESTS} manifests", where=where
            )
        manifest = self._source.get_manifest(digest, ALL_MANIFEST_TYPES)
        kind, named = _read(manifest, where)
        if kind in _INDEXES:
            for child, _ in named:
                self.run(child, depth + 1)
        else:
            self._copy_blobs(named)
        self._target.put_manifest(digest, kind, manifest.data)

    def _copy_blobs(self, named: list[tuple[str, int]]) -> None:
        from mlbundle.registry.transfer import BlobOrder, upload_many

        same = self._source.reference.host == self._target.reference.host
        upload_many(
            self._target,
            [BlobOrder(digest.removeprefix(PREFIX), size_bytes) for digest, size_bytes in named],
            self._blobs,
            from_repository=self._source.reference.repository if same else None,
        )


def _read(manifest: Manifest, where: str) -> tuple[str, list[tuple[str, int]]]:
    """Return the media type of a foreign manifest, and (digest, size in bytes) of all that it names."""
    try:
        fields = Fields(loads(manifest.data, where=where), where)
        # Of the two types the one inside is covered by the digest; it may be absent.
        kind = fields.text("mediaType") if fields.has("mediaType") else manifest.media_type
        if kind not in ALL_MANIFEST_TYPES:
            raise RegistryAnswerInvalid(f"{ascii(kind)[:100]} is no type of an image", where=where)
        if kind in _INDEXES:
            entries = list(fields.objects("manifests", maximum=_MAX_MANIFESTS))
        else:
            entries = [fields.object("config"), *fields.objects("layers", maximum=_MAX_LAYERS)]
        return kind, [
            (PREFIX + parse_digest(entry.text("digest"), where=entry.where), entry.integer("size"))
            for entry in entries
        ]
    except BundleCorrupt as error:
        raise RegistryAnswerInvalid(error.message, where=error.where or where) from error
