"""`push` and `pull`: a bundle to a registry, and from there into the library."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.bundle import oci
from mlbundle.bundle.agreement import check_names
from mlbundle.bundle.reader import open_blobs
from mlbundle.bundle.verify import check_tars
from mlbundle.errors import UsageError
from mlbundle.platforms import this_architecture
from mlbundle.registry.blobs import RegistryBlobs
from mlbundle.registry.client import ALL_MANIFEST_TYPES
from mlbundle.registry.transfer import BlobOrder, fetch_many, upload_many
from mlbundle.runs.remote import RESERVED_TAGS, RemoteBundle, look_up
from mlbundle.store.copying import receive_bytes
from mlbundle.store.library import Library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlbundle.bundle.attachments import EmbeddedImage
    from mlbundle.bundle.reader import BundleReader
    from mlbundle.config import Settings
    from mlbundle.registry.client import RegistryClient
    from mlbundle.registry.reference import RegistryReference
    from mlbundle.store.entries import LibraryEntry

    Progress = Callable[[int, int], None]

_MAX_TAG = 128


@dataclass(frozen=True)
class Pushed:
    """A bundle that is in a registry now: `sent_blobs` of its `blobs` were not there before.

    `size_bytes` and `sent_bytes` are the sums of their sizes; manifests do not count.
    """

    reference: str
    manifest_digest: str
    size_bytes: int
    blobs: int
    sent_bytes: int
    sent_blobs: int
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
            "sent_bytes": self.sent_bytes,
            "sent_blobs": self.sent_blobs,
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


def push_target(text: str, reader: BundleReader, *, images: bool = True) -> RegistryReference:
    """Return where a bundle goes: `HOST/` alone gets the model's name, and what has no tag gets the version.

    Raises UsageError for a tag that is taken, or too long for the images that go with it.
    """
    from mlbundle.registry.reference import parse, repository_name

    if text.endswith("/"):
        text += repository_name(reader.document.model_name)
    reference = parse(text)
    if reference.digest is not None:
        raise UsageError(
            "a bundle has its own digest and can't be pushed as another", hint="name a repository and a tag"
        )
    reference = reference if reference.tag else reference.with_(tag=reader.tag)
    _check_tag(reference, reader.structure.images if images else ())
    return reference


def _check_tag(reference: RegistryReference, images: tuple[EmbeddedImage, ...]) -> None:
    tag = reference.tag or ""
    if tag.startswith(RESERVED_TAGS):
        raise UsageError(
            f"tags that begin with {' or '.join(RESERVED_TAGS)} stand for images and referrers",
            where=str(reference),
            hint="name another tag: HOST/NAME:TAG",
        )
    longest = max((_image_tag(image, tag) for image in images), key=len, default=tag)
    if len(longest) > _MAX_TAG:
        raise UsageError(
            f"the tag of an image would have {len(longest)} characters, {_MAX_TAG} are allowed",
            where=longest,
            hint="name a shorter tag, or leave the images out with --without-images",
        )


def push(
    reader: BundleReader,
    client: RegistryClient,
    reference: RegistryReference,
    progress: Progress | None = None,
    *,
    images: bool = True,
    from_repository: str | None = None,
    force: bool = False,
) -> Pushed:
    """Send a bundle to the repository of `client`, under the tag of `reference` or else its version.

    Blobs go first, then what is attached, and the tag comes last, so nobody finds a bundle that is not whole or lacks
    its signature. Blobs are mounted from `from_repository` where the registry can. Raises UsageError when the tag
    names something else, unless with `force`; DigestMismatch and what the client raises.
    """
    tag = reference.tag or reader.tag
    if not force:
        _check_free(client, reference.with_(tag=tag), reader.manifest_digest)
    check_names(reader)
    check_tars(reader)
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
        if key in needed or (key not in manifests and key not in left_out)
    ]
    sent = upload_many(client, orders, reader.source, progress, from_repository=from_repository)
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
        sent_bytes=sent.size_bytes,
        sent_blobs=sent.blobs,
        images=tuple(_platforms(embedded)),
        referrers=len(structure.referrers),
    )


def _check_free(client: RegistryClient, reference: RegistryReference, digest: str) -> None:
    assert reference.tag is not None
    there = client.head_manifest(reference.tag, ALL_MANIFEST_TYPES)
    if there is not None and there != digest:
        raise UsageError(
            f"the tag names {there}, not {digest}",
            where=str(reference),
            hint="--force replaces it; HOST/NAME:TAG names another tag",
        )


def _push_image(reader: BundleReader, client: RegistryClient, image: EmbeddedImage, tag: str) -> None:
    for platform in image.platforms:
        client.put_manifest(platform.manifest.digest, oci.MANIFEST_TYPE, _read(reader, platform.manifest))
    client.put_manifest(_image_tag(image, tag), oci.INDEX_TYPE, _read(reader, image.index))


def _image_tag(image: EmbeddedImage, tag: str) -> str:
    return oci.image_ref(image.accelerator, tag, image.framework)


def _read(reader: BundleReader, descriptor: oci.Descriptor) -> bytes:
    return reader.source.read_at(descriptor.hex, 0, descriptor.size_bytes)


def _platforms(images: tuple[EmbeddedImage, ...]) -> Iterator[str]:
    for image in images:
        for platform in image.platforms:
            yield str(image.place(platform))


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
            images=tuple(str(image.place(platform)) for image, platform in self._chosen),
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
            documents = self._documents()
            for key, data in documents.items():
                receive_bytes(library.store, key, data)
            orders = [order for order in self._orders if order.hex not in documents]
            fetch_many(self._client, orders, library.store, progress)
            index = found.index(self._whole())
            reader = open_blobs(library.store, index)
            check_names(reader)
            check_tars(reader)
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

    def _documents(self) -> dict[str, bytes]:
        """Return the manifests that are wanted, and what of the blobs is one: nothing that is here is asked for."""
        found = self._found
        wanted = {found.model.hex, *(referrer.manifest.hex for referrer in found.referrers)}
        for image, platform in self._chosen:
            wanted |= {image.index.hex, platform.manifest.hex}
        wanted |= {order.hex for order in self._orders}
        return {key: data for key, data in found.documents.items() if key in wanted}

    def _make_orders(self) -> Iterator[BlobOrder]:
        found = self._found
        chunks = {entry.path: entry.sha256 for entry in found.document.chunks}
        yield BlobOrder(found.manifest.config.hex, found.manifest.config.size_bytes)
        for layer in found.manifest.layers:
            yield BlobOrder(layer.hex, layer.size_bytes, chunks.get(layer.path or "", ()))
        for referrer in found.referrers:
            for blob in referrer.blobs:
                yield BlobOrder(blob.hex, blob.size_bytes)
        for _, platform in self._chosen:
            for blob in (platform.config, *platform.layers):
                yield BlobOrder(blob.hex, blob.size_bytes)

    def _whole(self) -> list[EmbeddedImage]:
        """The images of which every platform is pulled: only those can be listed in the index."""
        chosen = Counter(image.entry for image, _ in self._chosen)
        return [image for image in self._found.images if chosen[image.entry] == len(image.platforms)]

    def _kept(self) -> Iterator[tuple[str, int]]:
        """Yield the blobs of single platforms, which no index lists: a run finds them by the framework table."""
        for image, platform in self._chosen:
            for blob in (image.index, platform.manifest, platform.config, *platform.layers):
                yield blob.hex, blob.size_bytes


def index_of(
    client: RegistryClient,
    blobs: RegistryBlobs,
    reference: RegistryReference,
    report: Callable[[str], None] = lambda _line: None,
) -> bytes:
    """Return the `index.json` that a bundle in a registry would have as a file.

    `report` is told, in a line each, what is attached there and can't be in a bundle.
    """
    found = look_up(client, blobs, reference)
    for line in found.passed_over:
        report(f"not taken: {line}")
    return found.index()


def add_to_library(
    reader: BundleReader, settings: Settings, progress: Progress | None = None
) -> LibraryEntry:
    """Copy an open bundle into the library, checking every blob; raises IntegrityError, StorageFailed."""
    check_names(reader)
    check_tars(reader)
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
