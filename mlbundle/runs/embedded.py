"""Framework images and bundles: from the engine into a bundle, and from a bundle into the engine."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mlbundle.bundle.content import EmbeddedSource
from mlbundle.bundle.digests import PREFIX, digest_of
from mlbundle.bundle.document import ImagePin, Place
from mlbundle.bundle.strictjson import MAX_BYTES
from mlbundle.errors import DigestMismatch, ImageMismatch, ImageMissing, UsageError
from mlbundle.manifest.select import select_image
from mlbundle.platforms import normalise_architecture, this_architecture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from mlbundle.bundle.blobs import BlobReader
    from mlbundle.bundle.content import BundleContent
    from mlbundle.config import Settings
    from mlbundle.manifest.framework import FrameworkManifest
    from mlbundle.runtime.image_export import ExportedImage

    _Keyed = tuple[str | None, FrameworkManifest]
    Report = Callable[[str], None]
    Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Platform:
    """An architecture and an accelerator, written `amd64/cpu`."""

    architecture: str
    accelerator: str

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Return the platform that a text writes; raises UsageError."""
        architecture, slash, accelerator = text.partition("/")
        if not slash or not architecture or not accelerator:
            raise UsageError(f"{text!r} is no platform", hint="write for example amd64/cpu")
        return cls(normalise_architecture(architecture), accelerator)

    @classmethod
    def here(cls) -> Platform:
        """Return the platform of this machine without accelerators."""
        return cls(this_architecture(), "cpu")

    def __str__(self) -> str:
        """Return the platform as users write it."""
        return f"{self.architecture}/{self.accelerator}"


def with_pins(content: BundleContent, framework: FrameworkManifest, settings: Settings) -> BundleContent:
    """Return the content with the images that were built here pinned by config digest.

    They are those of `framework`, which is the top level's, and of the further frameworks in the content. What the
    framework manifests state themselves is kept as it is. Raises ImageMissing when nothing was built here.
    """
    from mlbundle.runtime.lock import read_images_lock

    frameworks = _frameworks(content, framework)
    lock = read_images_lock(settings.images_lock)
    built = [
        ImagePin(
            place.architecture,
            place.accelerator,
            select_image(manifest, place.architecture, place.accelerator).image,
            config=entry.config_digest,
            framework=place.framework,
        )
        for place, manifest in _places(frameworks)
        for key, entry in lock.items()
        if (key.framework, key.version) == (manifest.name, manifest.version)
        and (key.architecture, key.accelerator) == (place.architecture, place.accelerator)
    ]
    stated = {pin.place for pin in content.images}
    further = [pin for pin in built if pin.place not in stated]
    if not content.images and not further:
        names = " or ".join(f"{manifest.name} {manifest.version}" for _, manifest in frameworks)
        raise ImageMissing(
            f"no image of {names} was built here, and no framework manifest pins one",
            hint=f"mlbundle images build {framework.name}",
        )
    return replace(content, images=(*content.images, *further))


def check_frozen(content: BundleContent, framework: FrameworkManifest) -> None:
    """Raise UsageError unless every image of all framework manifests is pinned; `framework` is the top level's."""
    pinned = {pin.place for pin in content.images}
    loose = [str(place) for place, _ in _places(_frameworks(content, framework)) if place not in pinned]
    if loose:
        raise UsageError(
            f"the image for {', '.join(loose)} is not pinned by a digest",
            hint="state the digest in the framework manifest, or pin what is here: --pin, --with-image",
        )


def _frameworks(content: BundleContent, framework: FrameworkManifest) -> list[_Keyed]:
    """Return the manifest of the top level's framework and those of further ones, with what pins call them."""
    from mlbundle.runs.packing import framework_manifests

    further = framework_manifests(content)[1:]
    return [(None, framework), *((manifest.name.lower(), manifest) for manifest in further)]


def _places(frameworks: Sequence[_Keyed]) -> Iterator[tuple[Place, FrameworkManifest]]:
    """Yield every place for which a manifest names an image."""
    for key, framework in frameworks:
        for architecture, choices in framework.containers.items():
            for accelerator in choices:
                yield Place(key, architecture, accelerator), framework


class _Wanted(NamedTuple):
    """The images of a framework for one accelerator that are to be embedded; `key` is what a pin calls it."""

    key: str | None
    framework: FrameworkManifest
    accelerator: str
    architectures: tuple[str, ...]


def _wanted(frameworks: Sequence[_Keyed], platforms: Sequence[Platform], report: Report) -> Iterator[_Wanted]:
    """Yield what there is to embed: of a further framework only what its manifest names an image for."""
    for key, framework in frameworks:
        chosen: dict[str, set[str]] = {}
        for platform in platforms:
            if key is None or platform.accelerator in framework.containers.get(platform.architecture, {}):
                chosen.setdefault(platform.accelerator, set()).add(platform.architecture)
            else:
                report(f"not embedded: {framework.name} has no image for {platform}")
        for accelerator in sorted(chosen):
            yield _Wanted(key, framework, accelerator, tuple(sorted(chosen[accelerator])))


def with_images(
    content: BundleContent,
    framework: FrameworkManifest,
    platforms: Sequence[Platform],
    settings: Settings,
    *,
    stack: ExitStack,
    report: Report = lambda _line: None,
    progress: Progress | None = None,
) -> BundleContent:
    """Return the content with the images of these platforms embedded, taken from the engine.

    They are of `framework`, which is the top level's, and of the further frameworks in the content; one of those whose
    manifest names no image for a platform is passed over, and `report` is told. The blobs are kept in the store, so
    that the next bundle with the same image is quick, and are not collected until `stack` is closed. Raises
    ImageMissing, EngineUnavailable, StorageFailed.
    """
    from mlbundle.runtime.image_export import export_image, make_index
    from mlbundle.runtime.images import engine_client, resolve_image
    from mlbundle.store.library import Library

    library = Library(settings.data_dir)
    stack.enter_context(library.adding())
    pins = {pin.place: pin for pin in content.images}
    embedded = []
    with closing(engine_client()) as client:
        for wanted in _wanted(_frameworks(content, framework), platforms, report):
            own = [pin for pin in content.images if pin.framework == wanted.key]
            exported: list[ExportedImage] = []
            for architecture in wanted.architectures:
                image = resolve_image(
                    wanted.framework, architecture, wanted.accelerator, settings, client, pins=own
                )
                report(f"embedding {image.ref} ({Place(wanted.key, architecture, wanted.accelerator)})")
                exported.append(
                    export_image(
                        client, image.image_id, library.store, scratch=_scratch(settings), progress=progress
                    )
                )
            index = make_index(exported)
            for made in exported:
                place = Place(wanted.key, made.architecture, wanted.accelerator)
                pins[place] = _pin(made, place, wanted.framework, digest_of(index), pins.get(place))
            embedded.append(_source(wanted, index, exported, library.store))
    return replace(content, images=tuple(pins.values()), embedded=tuple(embedded))


def _scratch(settings: Settings) -> Path:
    settings.cache_dir.mkdir(parents=True, exist_ok=True)
    return settings.cache_dir


def load_embedded(
    reference: str,
    pins: Sequence[ImagePin],
    accelerator: str,
    settings: Settings,
    client: Any,
    *,
    architecture: str | None = None,
    framework: str | None = None,
    report: Report = lambda _line: None,
) -> str | None:
    """Load the image that a bundle carries for a platform, unless the engine has it or the bundle has none.

    `pins` is its framework table; `framework` is what that calls a further framework, None for the one of the top
    level; without `architecture` it is that of this machine. The image is taken from the bundle that `reference`
    means, or from the store. Returns the engine's id of it when it was compared with the bundle just now. Raises
    DigestMismatch, ImageMismatch, EngineUnavailable, StorageFailed.
    """
    from mlbundle.runs.opening import open_reference
    from mlbundle.runtime.image_load import load_image, read_image
    from mlbundle.runtime.images import embedded_tag, has_image
    from mlbundle.store.blobs import BlobStore

    wanted = Place(framework, architecture or this_architecture(), accelerator)
    pin = next((pin for pin in pins if pin.place == wanted), None)
    if pin is None or pin.manifest is None or has_image(pin, client):
        return None
    with ExitStack() as stack:
        blobs: BlobReader = BlobStore(settings.data_dir)
        stack.callback(blobs.close)
        if not _carried(pin, blobs):
            blobs = stack.enter_context(open_reference(reference, settings)).source
            if not _carried(pin, blobs):
                return None
        manifest = _checked_manifest(pin, blobs)
        report(f"loading the image that the bundle carries ({pin.image})")
        return load_image(
            client, manifest, blobs, tag=embedded_tag(read_image(manifest, blobs).config_digest)
        )


def _carried(pin: ImagePin, blobs: BlobReader) -> bool:
    """Return whether the whole image is among the blobs: of one that was not pulled, documents may be there alone."""
    from mlbundle.runtime.image_load import read_image

    assert pin.manifest is not None
    wanted = [digest.removeprefix(PREFIX) for digest in (pin.manifest, pin.config) if digest is not None]
    if any(blobs.size_of(key) is None for key in wanted):
        return False
    try:
        image = read_image(_checked_manifest(pin, blobs), blobs)
    except ImageMissing:
        return False
    return all(blobs.size_of(layer.hex) is not None for layer in image.layers)


def _checked_manifest(pin: ImagePin, blobs: BlobReader) -> bytes:
    """Return the manifest of a pinned image, held against the pin: a bundle may hold any blob of any name.

    Raises DigestMismatch for other bytes, ImageMismatch for another config.
    """
    from mlbundle.runtime.image_load import read_image

    assert pin.manifest is not None
    key = pin.manifest.removeprefix(PREFIX)
    manifest = blobs.read_at(key, 0, min(blobs.size_of(key) or 0, MAX_BYTES))
    if digest_of(manifest) != pin.manifest:
        raise DigestMismatch(
            "the manifest of the image does not have the digest that names it",
            where=blobs.where(key),
            hint="get the bundle again; `mlbundle repair` looks at the store",
        )
    config_digest = read_image(manifest, blobs).config_digest
    if config_digest != pin.config:
        raise ImageMismatch(
            f"the image in the bundle has the config {config_digest}; the framework table says {pin.config}",
            where=pin.image,
        )
    return manifest


def _pin(
    made: ExportedImage,
    place: Place,
    framework: FrameworkManifest,
    index_digest: str,
    stated: ImagePin | None,
) -> ImagePin:
    """Return the pin of an image that is embedded, under the name that the framework manifest gives it."""
    return ImagePin(
        architecture=place.architecture,
        accelerator=place.accelerator,
        image=select_image(framework, place.architecture, place.accelerator).image,
        digest=stated.digest if stated else None,
        index=index_digest,
        manifest=PREFIX + made.manifest_hex,
        config=PREFIX + made.config_hex,
        size_bytes=sum(layer.size_bytes for layer in made.layers),
        framework=place.framework,
    )


def _source(
    wanted: _Wanted, index: bytes, images: Sequence[ExportedImage], blobs: BlobReader
) -> EmbeddedSource:
    ordered = sorted(images, key=lambda image: image.architecture)
    return EmbeddedSource(
        accelerator=wanted.accelerator,
        framework=wanted.key,
        index=index,
        manifests=tuple(image.manifest_bytes for image in ordered),
        configs=tuple(blobs.read_at(image.config_hex, 0, image.config_size_bytes) for image in ordered),
        layers=tuple((layer.hex, layer.size_bytes) for image in ordered for layer in image.layers),
        blobs=blobs,
    )
