"""`push` and `pull`: a bundle to a registry, and from there into the library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.bundle import oci
from mlbundle.bundle.reader import open_blobs
from mlbundle.errors import UsageError
from mlbundle.platforms import this_architecture
from mlbundle.registry.blobs import RegistryBlobs
from mlbundle.registry.transfer import BlobOrder, fetch_many, upload_many
from mlbundle.runs.remote import RemoteBundle, look_up
from mlbundle.store.library import Library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlbundle.bundle.attachments import EmbeddedImage, PlatformImage
    from mlbundle.bundle.reader import BundleReader
    from mlbundle.config import Settings
    from mlbundle.registry.client import RegistryClient
    from mlbundle.registry.reference import RegistryReference
    from mlbundle.store.entries import LibraryEntry

    Progress = Callable[[int, int], None]

IMAGE_CHOICES = ("auto", "all", "none")


@dataclass(frozen=True)
class Pushed:
    """A bundle that is in a registry now; `size_bytes` is the sum of its blobs, sent or there already."""

    reference: str
    manifest_digest: str
    size_bytes: int
    blobs: int
    images: tuple[str, ...]
    referrers: int

    def to_document(self) -> dict[str, Any]:
        """Return the document that `push --json` prints."""
        return {
            "schema": "mlbundle/push/v1",
            "reference": self.reference,
            "manifest_digest": self.manifest_digest,
            "size": self.size_bytes,
            "blobs": self.blobs,
            "images": list(self.images),
            "referrers": self.referrers,
        }


@dataclass(frozen=True)
class PullPlan:
    """What a pull will bring: `here_bytes` of it are in the store already."""

    reference: str
    manifest_digest: str
    name: str
    version: str
    size_bytes: int
    here_bytes: int
    images: tuple[str, ...]
    referrers: int
    passed_over: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the plan as JSON-ready values."""
        return {
            "reference": self.reference,
            "manifest_digest": self.manifest_digest,
            "name": self.name,
            "version": self.version,
            "size": self.size_bytes,
            "already_here": self.here_bytes,
            "images": list(self.images),
            "referrers": self.referrers,
            "passed_over": list(self.passed_over),
        }


def push_target(text: str, reader: BundleReader) -> RegistryReference:
    """Return where a bundle goes: `HOST/` alone gets the model's name, and what has no tag gets the version."""
    from mlbundle.registry.reference import parse, repository_name

    if text.endswith("/"):
        text += repository_name(reader.document.model_name)
    reference = parse(text)
    if reference.digest is not None:
        raise UsageError(
            "a bundle has its own digest and can't be pushed as another", hint="name a repository and a tag"
        )
    return reference if reference.tag else reference.with_(tag=reader.tag)


def push(
    reader: BundleReader,
    client: RegistryClient,
    reference: RegistryReference,
    progress: Progress | None = None,
    *,
    images: bool = True,
    from_repository: str | None = None,
) -> Pushed:
    """Send a bundle to the repository of `client`, under the tag of `reference` or else its version.

    Blobs go first, then what is attached, and the tag comes last, so nobody finds a bundle that is not whole or lacks
    its signature. Blobs are mounted from
    `from_repository` where the registry can. Raises DigestMismatch and what the client raises.
    """
    tag = reference.tag or reader.tag
    structure = reader.structure
    embedded = structure.images if images else ()
    # Registries keep manifests apart from blobs.
    manifests = {structure.index.model.hex, *(referrer.manifest.hex for referrer in structure.referrers)}
    left_out: set[str] = set()
    for image in structure.images:
        manifests.update(document.hex for document in (image.index, *(p.manifest for p in image.platforms)))
        if not images:
            left_out.update(blob.hex for blob in (*image.layers, *(p.config for p in image.platforms)))
    needed = {layer.hex for layer in (*structure.manifest.layers, structure.manifest.config)}
    orders = [
        BlobOrder(key, size)
        for key, size in structure.blobs().items()
        if key not in manifests and (key in needed or key not in left_out)
    ]
    upload_many(client, orders, reader.source, progress, from_repository=from_repository)
    for image in embedded:
        _push_image(reader, client, image, tag)
    if structure.referrers:
        client.put_manifest(reader.manifest_digest, oci.MANIFEST_TYPE, reader.manifest_bytes)
    for referrer in structure.referrers:
        client.put_referrer(oci.MANIFEST_TYPE, _read(reader, referrer.manifest), reader.manifest_digest)
    digest = client.put_manifest(tag, oci.MANIFEST_TYPE, reader.manifest_bytes)
    return Pushed(
        reference=str(reference.with_(tag=tag, digest=digest)),
        manifest_digest=digest,
        size_bytes=sum(order.size_bytes for order in orders),
        blobs=len(orders),
        images=tuple(_platforms(embedded)),
        referrers=len(structure.referrers),
    )


def _push_image(reader: BundleReader, client: RegistryClient, image: EmbeddedImage, tag: str) -> None:
    for platform in image.platforms:
        client.put_manifest(platform.manifest.digest, oci.MANIFEST_TYPE, _read(reader, platform.manifest))
    client.put_manifest(oci.image_ref(image.accelerator, tag), oci.INDEX_TYPE, _read(reader, image.index))


def _read(reader: BundleReader, descriptor: oci.Descriptor) -> bytes:
    return reader.source.read_at(descriptor.hex, 0, descriptor.size_bytes)


def _platforms(images: tuple[EmbeddedImage, ...]) -> Iterator[str]:
    for image in images:
        for platform in image.platforms:
            yield f"{platform.architecture}/{image.accelerator}"


class Pull:
    """A bundle in a registry that is about to be pulled: look first (`plan`), then `fetch`.

    `images` is `none`, `all`, or `auto`: those of this machine's architecture.
    """

    def __init__(
        self,
        client: RegistryClient,
        reference: RegistryReference,
        settings: Settings,
        *,
        images: str = "auto",
    ) -> None:
        self._client = client
        self._library = Library(settings.data_dir)
        self._blobs = RegistryBlobs(client)
        self._found: RemoteBundle = look_up(client, self._blobs, reference)
        self._chosen = [
            (image, platform)
            for image in self._found.images
            for platform in image.platforms
            if images == "all" or (images == "auto" and platform.architecture == this_architecture())
        ]
        self._orders = list(self._make_orders())

    @property
    def plan(self) -> PullPlan:
        """What will be fetched, and what of it is here."""
        found, store = self._found, self._library.store
        orders = {order.hex: order for order in self._orders}.values()
        here = sum(order.size_bytes for order in orders if store.size_of(order.hex) == order.size_bytes)
        return PullPlan(
            reference=found.reference,
            manifest_digest=found.model.digest,
            name=found.document.model_name,
            version=found.document.model_version,
            size_bytes=sum(order.size_bytes for order in orders),
            here_bytes=here,
            images=tuple(f"{p.architecture}/{image.accelerator}" for image, p in self._chosen),
            referrers=len(found.referrers),
            passed_over=found.passed_over,
        )

    def fetch(self, progress: Progress | None = None) -> LibraryEntry:
        """Bring all blobs into the store, check that they make a bundle, and add it to the library.

        What is here already is not fetched again, and a transfer that broke off goes on where it was.
        Raises DigestMismatch, BundleCorrupt, StorageFailed and what the client raises.
        """
        library, found = self._library, self._found
        with library.adding():
            for key, data in found.documents.items():
                with library.store.receive(key, len(data)) as partial:
                    if partial is not None:
                        partial.write(memoryview(data)[partial.received_bytes :])
            fetch_many(self._client, self._orders, library.store, progress)
            index = found.index(self._whole_accelerators())
            reader = open_blobs(library.store, index)
            blobs = {**reader.structure.blobs(), **dict(self._kept())}
            return library.add(
                name=reader.document.model_name,
                version=reader.document.model_version,
                manifest_digest=reader.manifest_digest,
                set_digest=reader.set_digest,
                index=index,
                blobs=list(blobs.items()),
                source=found.reference,
                reader=None,
                merge_index=oci.merge_indexes,
            )

    def _make_orders(self) -> Iterator[BlobOrder]:
        found = self._found
        chunks = {entry.path: entry.sha256 for entry in found.document.chunks}
        yield BlobOrder(found.manifest.config.hex, found.manifest.config.size_bytes)
        for layer in found.manifest.layers:
            yield BlobOrder(layer.hex, layer.size_bytes, chunks.get(layer.path or "", ()))
        for referrer in found.referrers:
            for blob in (referrer.config, *referrer.layers):
                yield BlobOrder(blob.hex, blob.size_bytes)
        for _, platform in self._chosen:
            for blob in (platform.config, *platform.layers):
                yield BlobOrder(blob.hex, blob.size_bytes)

    def _whole_accelerators(self) -> frozenset[str]:
        """The accelerators of which every platform is pulled: only those can be listed in the index."""
        chosen: dict[str, list[PlatformImage]] = {}
        for image, platform in self._chosen:
            chosen.setdefault(image.accelerator, []).append(platform)
        return frozenset(
            image.accelerator
            for image in self._found.images
            if len(chosen.get(image.accelerator, [])) == len(image.platforms)
        )

    def _kept(self) -> Iterator[tuple[str, int]]:
        """Yield the blobs of single platforms, which no index lists: a run finds them by the framework table."""
        for image, platform in self._chosen:
            for blob in (image.index, platform.manifest, platform.config, *platform.layers):
                yield blob.hex, blob.size_bytes


def index_of(client: RegistryClient, blobs: RegistryBlobs, reference: RegistryReference) -> bytes:
    """Return the `index.json` that a bundle in a registry would have as a file."""
    return look_up(client, blobs, reference).index()


def add_to_library(
    reader: BundleReader, settings: Settings, progress: Progress | None = None
) -> LibraryEntry:
    """Copy an open bundle into the library, checking every blob; raises IntegrityError, StorageFailed."""
    return Library(settings.data_dir).add(
        name=reader.document.model_name,
        version=reader.document.model_version,
        manifest_digest=reader.manifest_digest,
        set_digest=reader.set_digest,
        index=reader.index_bytes,
        blobs=list(reader.structure.blobs().items()),
        source=reader.name,
        reader=reader.source,
        progress=progress,
        merge_index=oci.merge_indexes,
    )
