"""Which image a run gets: the one the manifest pins, else the one that the images lock of this machine names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from mlbundle.errors import BundleCorrupt, ImageMismatch, ImageMissing, ReferenceNotFound
from mlbundle.manifest.select import select_image
from mlbundle.platforms import normalise_architecture
from mlbundle.resources import built_in_frameworks
from mlbundle.runtime.engine import engine_client
from mlbundle.runtime.image_build import BuiltImage, build_image, plan_build
from mlbundle.runtime.image_facts import check_labels, digests_of, inspect_image, is_index, labels_of
from mlbundle.runtime.image_facts import repository_of as _repository
from mlbundle.runtime.lock import ImageKey, LockedImage, read_images_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlbundle.bundle.document import ImagePin
    from mlbundle.config import Settings
    from mlbundle.manifest.framework import FrameworkManifest, ImageChoice

__all__ = [
    "BuiltImage",
    "ResolvedImage",
    "build_hint",
    "build_image",
    "built_in_framework",
    "embedded_tag",
    "engine_client",
    "find_locked",
    "find_stated",
    "has_image",
    "hint_of_gone",
    "plan_build",
    "platform_arguments",
    "resolve_image",
]

Found = tuple["ResolvedImage", dict[str, Any]]
"""An image that is here, and what the engine knows about it."""


@dataclass(frozen=True)
class ResolvedImage:
    """An image that is here, named by digest.

    `image_id` is what the engine is asked to run. On engines with the classic store it equals `config_digest`;
    on those with containerd's it is the digest of the manifest or index, and `config_digest` repeats it unless the
    images lock knows better.
    """

    ref: str
    image_id: str
    config_digest: str
    manifest_digest: str | None
    index_digest: str | None
    pinned: bool
    source: Literal["bundle", "manifest", "images.lock"]


def resolve_image(
    framework: FrameworkManifest,
    architecture: str,
    accelerator: str,
    settings: Settings,
    client: Any,
    *,
    pins: Sequence[ImagePin] = (),
    loaded_id: str | None = None,
) -> ResolvedImage:
    """Return the image for a platform, which must be here already: nothing is pulled or built.

    What the bundle pins comes first (`pins`, its framework table), then a digest in the manifest; each is accepted as
    that of the index, the manifest or the config, and the images lock remembers which registry's digest is which
    config's. `loaded_id` is the engine's id of the image that was just loaded from the bundle and compared with it.
    Without a pin the images lock decides. Raises ImageMissing with the command that helps, ImageMismatch when
    another image has the name, the image is for another architecture, or it declares volumes: an engine makes them
    writable whatever the root is.
    """
    architecture = normalise_architecture(architecture)
    choice = select_image(framework, architecture, accelerator)
    key = ImageKey(framework.name, framework.version, architecture, accelerator)
    entry = read_images_lock(settings.images_lock).get(key)
    pin = next((p for p in pins if (p.architecture, p.accelerator) == (architecture, accelerator)), None)
    if pin is not None and (pin.config or pin.manifest or pin.index):
        if pin.digest != choice.digest:
            raise BundleCorrupt(
                f"the framework table states {pin.digest} for {architecture}/{accelerator}, "
                f"and the framework manifest {choice.digest}",
                where=f"{pin.image}",
            )
        resolved, facts = _from_bundle(pin, client, loaded_id, entry)
    elif choice.digest is not None:
        resolved, facts = find_stated(choice, choice.digest, client, entry)
    else:
        resolved, facts = _from_lock(key, choice, entry, client)
    _check(resolved, facts, architecture)
    return resolved


def _check(resolved: ResolvedImage, facts: dict[str, Any], architecture: str) -> None:
    """Raise ImageMismatch for an image that can't be run here, or not within its limits."""
    found = normalise_architecture(str(facts.get("Architecture", "")))
    if found != architecture:
        raise ImageMismatch(
            f"the image {resolved.ref} is for {found or 'an unknown architecture'}, not for {architecture}",
            where=resolved.image_id,
            hint="build or pull the image for this machine",
        )
    volumes = sorted((facts.get("Config") or {}).get("Volumes") or {})
    if volumes:
        raise ImageMismatch(
            f"the image {resolved.ref} declares volumes, which would be writable: {', '.join(volumes)[:200]}",
            where=resolved.image_id,
            hint="build it without VOLUME",
        )


def built_in_framework(name: str) -> FrameworkManifest:
    """Return the framework manifest that we ship under a name; raises ReferenceNotFound, which lists them."""
    from mlbundle.manifest.load import load_framework

    known = built_in_frameworks()
    if name not in known:
        raise ReferenceNotFound(
            f"there is no built-in framework {name!r}", hint=f"one of: {', '.join(known) or 'none'}"
        )
    return load_framework(known[name]).require()


def find_stated(choice: ImageChoice, digest: str, client: Any, entry: LockedImage | None = None) -> Found:
    """Find the image that a framework manifest pins by a digest.

    `entry` of the images lock is believed when it says that a registry gave its image out under that digest.
    Raises ImageMissing, ImageMismatch when another image has the name.
    """
    repository = _repository(choice.image)
    by_digest = f"{repository}@{digest}"
    for name in (by_digest, digest, choice.image):
        facts = inspect_image(client, name)
        if facts is not None and digest in digests_of(facts):
            return _pinned(choice.image, digest, facts), facts
    if entry is not None and digest in {name.digest for name in entry.registry}:
        facts = find_locked(entry, client)
        if facts is not None:
            return replace(_locked(entry, facts), ref=choice.image, source="manifest"), facts
    facts = inspect_image(client, choice.image)
    if facts is not None:
        raise ImageMismatch(
            f"the image {choice.image} on this machine is not the one that is pinned",
            where=f"pinned {digest}, here {', '.join(sorted(digests_of(facts)))}",
            hint=f"docker pull {by_digest}",
        )
    raise ImageMissing(f"the image {choice.image} is not on this machine", hint=f"docker pull {by_digest}")


def find_locked(entry: LockedImage, client: Any) -> dict[str, Any] | None:
    """Return what the engine knows about the image of a lock entry, by its digest alone; None when it is gone.

    A registry's digest is not asked for: that of an index may name the image of another platform.
    """
    for name in (entry.config_digest, entry.image_id):
        facts = inspect_image(client, name) if name else None
        if facts is not None and name in digests_of(facts):
            return facts
    return None


def _known_digests(entry: LockedImage) -> set[str]:
    names = {name.digest for name in entry.registry}
    return {entry.config_digest, *names, *([entry.image_id] if entry.image_id else [])}


def _from_bundle(
    pin: ImagePin, client: Any, loaded_id: str | None = None, entry: LockedImage | None = None
) -> Found:
    """Find the image that a bundle pins, by whichever of its digests this engine knows.

    What is told of it afterwards is what the engine knows, not what the bundle says; but for an image that was
    compared with the bundle when it was loaded (`loaded_id`), its config is the pinned one.
    """
    repository = _repository(pin.image)
    wanted = [digest for digest in (loaded_id, pin.config, pin.manifest, pin.index, pin.digest) if digest]
    for name in (*wanted, *(f"{repository}@{digest}" for digest in wanted)):
        facts = inspect_image(client, name)
        known = set() if facts is None else digests_of(facts)
        if facts is None or known.isdisjoint(wanted):
            continue
        config_is_known = pin.config in known or loaded_id in known
        resolved = ResolvedImage(
            ref=pin.image,
            image_id=facts["Id"],
            config_digest=pin.config if pin.config and config_is_known else facts["Id"],
            manifest_digest=pin.manifest if pin.manifest in known else None,
            index_digest=pin.index if pin.index in known else None,
            pinned=True,
            source="bundle",
        )
        return resolved, facts
    if entry is not None and not _known_digests(entry).isdisjoint(wanted):
        facts = find_locked(entry, client)
        if facts is not None:
            return replace(_locked(entry, facts), ref=pin.image, source="bundle"), facts
    raise ImageMissing(
        f"the image {pin.image} that the bundle pins is not on this machine",
        where=", ".join(pin.digests),
        hint=f"docker pull {repository}@{pin.digest}" if pin.digest else "ask for a bundle that embeds it",
    )


def has_image(pin: ImagePin, client: Any) -> bool:
    """Return whether the engine has the image that a bundle pins."""
    try:
        _from_bundle(pin, client)
    except ImageMissing:
        return False
    return True


def embedded_tag(config_digest: str) -> str:
    """Return the name that an embedded image gets in the engine: ours, made of the digest of its config."""
    return f"mlbundle/embedded:{config_digest.removeprefix('sha256:')}"


def _from_lock(key: ImageKey, choice: ImageChoice, entry: LockedImage | None, client: Any) -> Found:
    if entry is None:
        if _is_unpinned(key, choice, client):
            raise ImageMissing(
                f"the image {choice.image} is here and not pinned: runs take only images whose digest was written down",
                hint="mlbundle images lock",
            )
        if choice.build is None:
            raise ImageMissing(
                f"the image {choice.image} is not pinned by a digest",
                hint=f"state its digest in the framework manifest of {key.framework} {key.version}",
            )
        raise ImageMissing(f"no image for {key} was built on this machine", hint=build_hint(key))
    facts = find_locked(entry, client)
    if facts is None:
        raise ImageMissing(
            f"the image {entry.ref} that was {entry.source} here is no longer in the engine",
            where=entry.config_digest,
            hint=hint_of_gone(key, entry),
        )
    return _locked(entry, facts), facts


def _is_unpinned(key: ImageKey, choice: ImageChoice, client: Any) -> bool:
    """Return whether the engine has an image of the name that is what it should be by its labels."""
    facts = inspect_image(client, choice.image)
    if facts is None:
        return False
    try:
        check_labels(key, labels_of(facts), str(facts.get("Architecture", "")), choice.image)
    except ImageMismatch:
        return False
    return True


def _locked(entry: LockedImage, facts: dict[str, Any]) -> ResolvedImage:
    """Name the image of a lock entry in both ways: by its config, and as the registry that knows it last does."""
    newest = entry.registry[-1] if entry.registry else None
    return ResolvedImage(
        ref=entry.ref,
        image_id=facts["Id"],
        config_digest=entry.config_digest,
        manifest_digest=newest.manifest_digest if newest else None,
        index_digest=newest.index_digest if newest else None,
        pinned=True,
        source="images.lock",
    )


def _pinned(ref: str, digest: str, facts: dict[str, Any]) -> ResolvedImage:
    """Name the digest for what it is: the engine's id, an index where the engine says so, else a manifest."""
    descriptor = facts.get("Descriptor") or {}
    index = is_index(descriptor.get("mediaType")) and descriptor.get("digest") == digest
    manifest = not index and (digest != facts["Id"] or descriptor.get("digest") == digest)
    return ResolvedImage(
        ref=ref,
        image_id=facts["Id"],
        config_digest=facts["Id"],
        manifest_digest=digest if manifest else None,
        index_digest=digest if index else None,
        pinned=True,
        source="manifest",
    )


def hint_of_gone(key: ImageKey, entry: LockedImage) -> str:
    """Return what brings the image of a lock entry back."""
    if entry.registry:
        newest = entry.registry[-1]
        source = f"{_repository(newest.ref)}@{newest.digest}"
        return f"mlbundle images pull {platform_arguments(key)} --from {source}"
    if entry.source == "loaded":
        return "load it again: mlbundle images load FILE"
    return build_hint(key)


def build_hint(key: ImageKey) -> str:
    """Return the command that builds an image."""
    return f"mlbundle images build {platform_arguments(key)}"


def platform_arguments(key: ImageKey) -> str:
    """Return how the commands about images are told which one is meant."""
    return f"{key.framework} --arch {key.architecture} --accelerator {key.accelerator}"
