"""Which image a user means: a framework, for a platform, or a name or digest that the engine knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import ImageMissing
from mlbundle.manifest.framework import ImageChoice
from mlbundle.manifest.select import select_image
from mlbundle.runtime.image_facts import digests_of, inspect_image, repository_of
from mlbundle.runtime.image_list import check_known, known_frameworks
from mlbundle.runtime.images import find_locked, find_stated
from mlbundle.runtime.lock import ImageKey, LockedImage, read_images_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlbundle.config import Settings
    from mlbundle.manifest.framework import FrameworkManifest


@dataclass(frozen=True)
class Wanted:
    """What a framework's name means on a platform: `stated` is the digest that its manifest pins.

    `image` is what the manifest calls the image, `built` whether there is a recipe for it; `entry` is what the images
    lock knows.
    """

    key: ImageKey
    image: str | None = None
    stated: str | None = None
    built: bool = False
    entry: LockedImage | None = None


@dataclass(frozen=True)
class ImageHere:
    """An image that the engine has: its id, the name to call it by, and the lock entry when it has one."""

    id: str
    ref: str
    facts: dict[str, Any]
    key: ImageKey | None = None
    entry: LockedImage | None = None


def is_framework(text: str, settings: Settings, manifests: Sequence[FrameworkManifest] = ()) -> bool:
    """Return whether a text is the name of a framework that a manifest or the images lock knows."""
    return text in _names(settings, manifests)


def want(
    name: str,
    architecture: str,
    accelerator: str,
    settings: Settings,
    manifests: Sequence[FrameworkManifest] = (),
) -> Wanted:
    """Return what the name of a framework means for a platform, by its manifest, else by the images lock.

    Raises ReferenceNotFound for an unknown name, ImageMissing when there is no image for the platform.
    """
    check_known(name, _names(settings, manifests))
    recorded = read_images_lock(settings.images_lock)
    # The last one is the user's own.
    framework = next((f for f in reversed(known_frameworks(manifests)) if f.name == name), None)
    if framework is not None:
        choice = select_image(framework, architecture, accelerator)
        key = ImageKey(framework.name, framework.version, architecture, accelerator)
        return Wanted(key, choice.image, choice.digest, choice.build is not None, recorded.get(key))
    for key, entry in recorded.items():
        if (key.framework, key.architecture, key.accelerator) == (name, architecture, accelerator):
            return Wanted(key, entry=entry)
    raise ImageMissing(
        f"the images lock has no image of {name} for {architecture}/{accelerator}",
        context=tuple(str(key) for key in recorded if key.framework == name),
    )


def source_of(wanted: Wanted) -> str:
    """Return where the image of a framework is to be pulled from. Raises ImageMissing when nobody says."""
    if wanted.stated is not None and wanted.image is not None:
        return f"{repository_of(wanted.image)}@{wanted.stated}"
    if wanted.entry is not None and wanted.entry.registry:
        newest = wanted.entry.registry[-1]
        return f"{repository_of(newest.ref)}@{newest.digest}"
    if wanted.image is not None and not wanted.built:
        return wanted.image
    raise ImageMissing(
        f"nothing says where the image for {wanted.key} is to be pulled from",
        hint=f"mlbundle images build {wanted.key.framework}, or name a registry that has it: --from REF",
    )


def find_here(
    text: str,
    architecture: str,
    accelerator: str,
    settings: Settings,
    client: Any,
    *,
    manifests: Sequence[FrameworkManifest] = (),
) -> ImageHere:
    """Return the image in the engine that a framework's name, a reference or a digest means. Raises ImageMissing."""
    if is_framework(text, settings, manifests):
        return _of_framework(want(text, architecture, accelerator, settings, manifests), client)
    facts = inspect_image(client, text)
    if facts is None:
        raise ImageMissing(f"the image {text} is not on this machine", hint="`mlbundle images list`")
    known = digests_of(facts)
    for key, entry in read_images_lock(settings.images_lock).items():
        if entry.config_digest in known or entry.image_id in known:
            return ImageHere(facts["Id"], text, facts, key, entry)
    return ImageHere(facts["Id"], text, facts)


def _names(settings: Settings, manifests: Sequence[FrameworkManifest]) -> set[str]:
    recorded = read_images_lock(settings.images_lock)
    return {f.name for f in known_frameworks(manifests)} | {key.framework for key in recorded}


def _of_framework(wanted: Wanted, client: Any) -> ImageHere:
    if wanted.stated is not None and wanted.image is not None:
        choice = ImageChoice(wanted.image, wanted.stated)
        resolved, facts = find_stated(choice, wanted.stated, client, wanted.entry)
        return ImageHere(resolved.image_id, wanted.image, facts, wanted.key, wanted.entry)
    found = find_locked(wanted.entry, client) if wanted.entry else None
    if found is None or wanted.entry is None:
        raise ImageMissing(
            f"the image for {wanted.key} is not on this machine", hint="`mlbundle images list` shows what is"
        )
    return ImageHere(found["Id"], wanted.entry.ref, found, wanted.key, wanted.entry)
