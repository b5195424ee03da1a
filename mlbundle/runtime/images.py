"""Which image a run gets: the one the manifest pins, else the one that was built on this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from mlbundle.errors import (
    BundleCorrupt,
    EngineUnavailable,
    ImageMismatch,
    ImageMissing,
    MlbundleError,
    ReferenceNotFound,
)
from mlbundle.manifest.select import select_image
from mlbundle.platforms import normalise_architecture
from mlbundle.resources import built_in_frameworks
from mlbundle.runtime.engine import engine_client
from mlbundle.runtime.image_build import BuiltImage, build_image, plan_build
from mlbundle.runtime.lock import ImageKey, LockedImage, read_images_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlbundle.bundle.document import ImagePin
    from mlbundle.config import Settings
    from mlbundle.manifest.framework import FrameworkManifest, ImageChoice

__all__ = [
    "BuiltImage",
    "ImageStatus",
    "ResolvedImage",
    "build_image",
    "built_in_framework",
    "embedded_tag",
    "engine_client",
    "has_image",
    "list_images",
    "plan_build",
    "resolve_image",
]

_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)

State = Literal["ready", "outdated", "not built", "gone", "not pulled", "mismatch", "unknown"]


@dataclass(frozen=True)
class ResolvedImage:
    """An image that is here, named by digest.

    `image_id` is what the engine is asked to run. On engines with the classic store it equals `config_digest`;
    on those with containerd's it is the digest of the manifest or index, and `config_digest` repeats it.
    """

    ref: str
    image_id: str
    config_digest: str
    manifest_digest: str | None
    index_digest: str | None
    pinned: bool
    source: Literal["bundle", "manifest", "images.lock"]


@dataclass(frozen=True)
class ImageStatus:
    """One image that a built-in manifest or the images lock knows, and whether it is here."""

    key: ImageKey
    ref: str
    state: State
    config_digest: str | None = None
    base_image: str | None = None
    built_at: str | None = None
    size_bytes: int | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the status as JSON-ready values."""
        fields = asdict(self)
        return {**fields.pop("key"), **fields}


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
    that of the index, the manifest or the config. `loaded_id` is the engine's id of the image that was just loaded
    from the bundle and compared with it. Without a pin the images lock decides. Raises ImageMissing with the
    command that helps, ImageMismatch when another image has the name, the image is for another architecture, or it
    declares volumes: an engine makes them writable whatever the root is.
    """
    architecture = normalise_architecture(architecture)
    choice = select_image(framework, architecture, accelerator)
    key = ImageKey(framework.name, framework.version, architecture, accelerator)
    pin = next((p for p in pins if (p.architecture, p.accelerator) == (architecture, accelerator)), None)
    if pin is not None and (pin.config or pin.manifest or pin.index):
        if pin.digest != choice.digest:
            raise BundleCorrupt(
                f"the framework table states {pin.digest} for {architecture}/{accelerator}, "
                f"and the framework manifest {choice.digest}",
                where=f"{pin.image}",
            )
        resolved, facts = _from_bundle(pin, client, loaded_id)
    elif choice.digest is not None:
        resolved, facts = _from_manifest(choice, choice.digest, client)
    else:
        resolved, facts = _from_lock(key, choice, settings, client)
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
    return resolved


def built_in_framework(name: str) -> FrameworkManifest:
    """Return the framework manifest that we ship under a name; raises ReferenceNotFound, which lists them."""
    from mlbundle.manifest.load import load_framework

    known = built_in_frameworks()
    if name not in known:
        raise ReferenceNotFound(
            f"there is no built-in framework {name!r}", hint=f"one of: {', '.join(known) or 'none'}"
        )
    return load_framework(known[name]).require()


def list_images(settings: Settings) -> list[ImageStatus]:
    """Return every image of the built-in framework manifests and of the images lock, in order of key.

    Without an engine the state of those that were built is unknown. Raises StorageFailed for a damaged lock.
    """
    recorded = read_images_lock(settings.images_lock)
    try:
        client = engine_client()
    except EngineUnavailable:
        client = None
    found: dict[ImageKey, ImageStatus] = {}
    for name in built_in_frameworks():
        framework = built_in_framework(name)
        for key in _keys(framework):
            found[key] = _status_of_choice(framework, key, recorded.get(key), client)
    for key, entry in recorded.items():
        if key not in found:
            found[key] = _status_of_entry(key, entry, client)
    if client is not None:
        client.close()
    return [found[key] for key in sorted(found, key=str)]


def _from_manifest(choice: ImageChoice, digest: str, client: Any) -> tuple[ResolvedImage, dict[str, Any]]:
    repository = _repository(choice.image)
    by_digest = f"{repository}@{digest}"
    for name in (by_digest, digest, choice.image):
        facts = _inspect(client, name)
        if facts is not None and digest in _digests(facts):
            return _pinned(choice.image, digest, facts), facts
    facts = _inspect(client, choice.image)
    if facts is not None:
        raise ImageMismatch(
            f"the image {choice.image} on this machine is not the one that is pinned",
            where=f"pinned {digest}, here {', '.join(sorted(_digests(facts)))}",
            hint=f"docker pull {by_digest}",
        )
    raise ImageMissing(f"the image {choice.image} is not on this machine", hint=f"docker pull {by_digest}")


def _from_bundle(
    pin: ImagePin, client: Any, loaded_id: str | None = None
) -> tuple[ResolvedImage, dict[str, Any]]:
    """Find the image that a bundle pins, by whichever of its digests this engine knows.

    What is told of it afterwards is what the engine knows, not what the bundle says; but for an image that was
    compared with the bundle when it was loaded (`loaded_id`), its config is the pinned one.
    """
    repository = _repository(pin.image)
    wanted = [digest for digest in (loaded_id, pin.config, pin.manifest, pin.index, pin.digest) if digest]
    for name in (*wanted, *(f"{repository}@{digest}" for digest in wanted)):
        facts = _inspect(client, name)
        known = set() if facts is None else _digests(facts)
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


def _from_lock(
    key: ImageKey, choice: ImageChoice, settings: Settings, client: Any
) -> tuple[ResolvedImage, dict[str, Any]]:
    entry = read_images_lock(settings.images_lock).get(key)
    if entry is None:
        if choice.build is None:
            raise ImageMissing(
                f"the image {choice.image} is not pinned by a digest",
                hint=f"state its digest in the framework manifest of {key.framework} {key.version}",
            )
        raise ImageMissing(f"no image for {key} was built on this machine", hint=_build_hint(key))
    facts = _inspect(client, entry.config_digest)
    if facts is None:
        raise ImageMissing(
            f"the image {entry.ref} that was built here is no longer in the engine",
            where=entry.config_digest,
            hint=_build_hint(key),
        )
    resolved = ResolvedImage(
        ref=entry.ref,
        image_id=facts["Id"],
        config_digest=facts["Id"],
        manifest_digest=None,
        index_digest=None,
        pinned=True,
        source="images.lock",
    )
    return resolved, facts


def _pinned(ref: str, digest: str, facts: dict[str, Any]) -> ResolvedImage:
    """Name the digest for what it is: the engine's id, an index where the engine says so, else a manifest."""
    descriptor = facts.get("Descriptor") or {}
    index = descriptor.get("mediaType") in _INDEX_TYPES and descriptor.get("digest") == digest
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


def _inspect(client: Any, name: str) -> dict[str, Any] | None:
    """Return what the engine knows about an image, None when it has none of that name. Raises EngineUnavailable."""
    import docker.errors
    import requests.exceptions

    try:
        facts: dict[str, Any] = client.api.inspect_image(name)
    except docker.errors.NotFound:
        return None
    except (docker.errors.APIError, requests.exceptions.RequestException) as error:
        raise EngineUnavailable(
            f"the container engine can't say whether it has {name}: {error}", hint="see `mlbundle doctor`"
        ) from error
    return facts


def _digests(facts: dict[str, Any]) -> set[str]:
    """Return every digest under which the engine knows an image: config, manifest, index."""
    known = {str(facts["Id"]), str((facts.get("Descriptor") or {}).get("digest", ""))}
    known |= {str(name).rpartition("@")[2] for name in facts.get("RepoDigests") or ()}
    return known - {""}


def _repository(ref: str) -> str:
    """Return a reference without its tag or digest; the colon of a port is not that of a tag."""
    name = ref.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _build_hint(key: ImageKey) -> str:
    return f"mlbundle images build {key.framework} --accelerator {key.accelerator} --architecture {key.architecture}"


def _keys(framework: FrameworkManifest) -> Iterator[ImageKey]:
    for architecture, choices in framework.containers.items():
        for accelerator in choices:
            yield ImageKey(framework.name, framework.version, architecture, accelerator)


def _status_of_choice(
    framework: FrameworkManifest, key: ImageKey, entry: LockedImage | None, client: Any
) -> ImageStatus:
    choice = select_image(framework, key.architecture, key.accelerator)
    if choice.digest is not None:
        return _status_of_pin(choice, choice.digest, key, client)
    if entry is None:
        return ImageStatus(key, choice.image, "not built")
    status = _status_of_entry(key, entry, client)
    if status.state == "ready" and _is_outdated(framework, key, entry):
        return ImageStatus(**{**status.__dict__, "state": "outdated"})
    return status


def _status_of_pin(choice: ImageChoice, digest: str, key: ImageKey, client: Any) -> ImageStatus:
    if client is None:
        return ImageStatus(key, choice.image, "unknown", digest)
    try:
        resolved, facts = _from_manifest(choice, digest, client)
    except ImageMissing:
        return ImageStatus(key, choice.image, "not pulled", digest)
    except ImageMismatch:
        return ImageStatus(key, choice.image, "mismatch", digest)
    return ImageStatus(key, choice.image, "ready", resolved.config_digest, size_bytes=int(facts["Size"]))


def _status_of_entry(key: ImageKey, entry: LockedImage, client: Any) -> ImageStatus:
    facts = None if client is None else _inspect(client, entry.config_digest)
    state: State = "unknown" if client is None else "gone" if facts is None else "ready"
    return ImageStatus(
        key=key,
        ref=entry.ref,
        state=state,
        config_digest=entry.config_digest,
        base_image=entry.base_image,
        built_at=entry.built_at,
        size_bytes=None if facts is None else int(facts["Size"]),
    )


def _is_outdated(framework: FrameworkManifest, key: ImageKey, entry: LockedImage) -> bool:
    """Whether the requirements have changed since the image was built."""
    try:
        plan = plan_build(framework, key.accelerator, key.architecture, entry.base_image)
    except MlbundleError:
        return False
    return plan.lock_sha256 != entry.lock_sha256
