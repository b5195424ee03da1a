"""What images there are for which framework, version, architecture and accelerator, and which of them are here."""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from mlbundle.errors import EngineUnavailable, ImageMismatch, ImageMissing, MlbundleError, ReferenceNotFound
from mlbundle.manifest.select import select_image
from mlbundle.resources import built_in_frameworks
from mlbundle.runtime.engine import engine_client
from mlbundle.runtime.image_build import plan_build
from mlbundle.runtime.image_facts import check_labels, digests_of, inspect_image, labels_of, names_of
from mlbundle.runtime.image_states import State, advice
from mlbundle.runtime.images import built_in_framework, find_locked, find_stated
from mlbundle.runtime.lock import ImageKey, LockedImage, RegistryName, read_images_lock, record_image

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mlbundle.config import Settings
    from mlbundle.manifest.framework import FrameworkManifest


@dataclass(frozen=True)
class ImageStatus:
    """One image that a framework manifest or the images lock knows, and whether it is here.

    `source` says how it came here; `registry` is what registries call it. `found` is the id of the image that has the
    name instead, `hint` what the state means and what to do.
    """

    key: ImageKey
    ref: str
    state: State
    config_digest: str | None = None
    base_image: str | None = None
    built_at: str | None = None
    size_bytes: int | None = None
    source: str | None = None
    registry: tuple[RegistryName, ...] = ()
    found: str | None = None
    hint: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the status as JSON-ready values."""
        fields = asdict(self)
        return {**fields.pop("key"), **fields, "registry": list(fields["registry"])}


def image_from_document(document: Mapping[str, Any]) -> ImageStatus:
    """Return the status whose fields these are, as `dataclasses.asdict` gives them."""
    names = tuple(RegistryName(**name) for name in document["registry"])
    return ImageStatus(**{**document, "key": ImageKey(**document["key"]), "registry": names})


@dataclass(frozen=True)
class PinStatus:
    """One entry of the images lock held against the engine; `found` is the id of another image that has its name.

    `new` was not in the lock before.
    """

    key: ImageKey
    state: State
    entry: LockedImage
    found: str | None = None

    @property
    def hint(self) -> str | None:
        """What the state means and what to do."""
        return advice(self.state, self.key, self.entry.ref, self.entry, self.found)

    def to_document(self) -> dict[str, Any]:
        """Return the pin as JSON-ready values."""
        return {
            **asdict(self.key),
            "state": self.state,
            **asdict(self.entry),
            "registry": [asdict(name) for name in self.entry.registry],
            "found": self.found,
            "hint": self.hint,
        }


def list_images(
    settings: Settings, manifests: Sequence[FrameworkManifest] = (), name: str | None = None
) -> list[ImageStatus]:
    """Return every image of the built-in framework manifests, of `manifests` and of the images lock, by key.

    With `name` only those of one framework; raises ReferenceNotFound when nothing has that name. Without an engine
    the state of those that were built is unknown. Raises StorageFailed for a damaged lock.
    """
    recorded = read_images_lock(settings.images_lock)
    frameworks = known_frameworks(manifests)
    if name is not None:
        check_known(name, (*(f.name for f in frameworks), *(key.framework for key in recorded)))
    try:
        client = engine_client()
    except EngineUnavailable:
        client = None
    found: dict[ImageKey, ImageStatus] = {}
    with nullcontext() if client is None else closing(client):
        for framework in frameworks:
            for key in _keys(framework):
                if name in {None, key.framework}:
                    found[key] = _status_of_choice(framework, key, recorded.get(key), client)
        for key, entry in recorded.items():
            if key not in found and name in {None, key.framework}:
                found[key] = _status_of_entry(key, entry, client)
    return [_advised(found[key], recorded.get(key)) for key in sorted(found, key=str)]


def _advised(status: ImageStatus, entry: LockedImage | None) -> ImageStatus:
    return replace(status, hint=advice(status.state, status.key, status.ref, entry, status.found))


def check_pins(
    settings: Settings,
    client: Any,
    manifests: Sequence[FrameworkManifest] = (),
    names: Iterable[str] = (),
    *,
    write: bool = True,
) -> list[PinStatus]:
    """Hold the images lock against the engine and pin what is here under its manifest's name, by key.

    An image is pinned when its labels say what the manifest wants; without `write` nothing is recorded. `names`
    limits it to some frameworks. Raises ReferenceNotFound for an unknown one, EngineUnavailable, StorageFailed.
    """
    recorded = read_images_lock(settings.images_lock)
    frameworks = known_frameworks(manifests)
    wanted = set(names)
    for name in wanted:
        check_known(name, (*(f.name for f in frameworks), *(key.framework for key in recorded)))
    found = {key: _pin_of_entry(key, entry, client) for key, entry in recorded.items()}
    for framework in frameworks:
        for key in _keys(framework):
            new = None if key in found else _new_pin(framework, key, client)
            if new is not None:
                found[key] = new
    pins = [
        pin
        for key, pin in sorted(found.items(), key=lambda item: str(item[0]))
        if not wanted or key.framework in wanted
    ]
    for pin in pins:
        if write and pin.state == "new":
            record_image(settings.images_lock, pin.key, pin.entry)
    return pins


def known_frameworks(manifests: Sequence[FrameworkManifest] = ()) -> list[FrameworkManifest]:
    """Return the built-in framework manifests and these, which take the place of built-in ones of their version."""
    own = {(framework.name, framework.version): framework for framework in manifests}
    built_in = [built_in_framework(name) for name in built_in_frameworks()]
    return [f for f in built_in if (f.name, f.version) not in own] + list(own.values())


def check_known(name: str, known: Iterable[str]) -> None:
    """Raise ReferenceNotFound, which lists what there is, unless a framework has this name."""
    names = sorted(set(known))
    if name not in names:
        raise ReferenceNotFound(
            f"there is no framework {name!r}",
            hint=f"one of: {', '.join(names)}; or name its manifest with --framework-manifest",
        )


def entry_of(
    facts: dict[str, Any],
    ref: str,
    *,
    source: Literal["built", "pulled", "loaded"],
    config_digest: str | None = None,
) -> LockedImage:
    """Return the lock entry of an image in the engine; `config_digest` where it is known not to be the id."""
    labels = labels_of(facts)
    identifier = str(facts["Id"])
    config_digest = config_digest or identifier
    return LockedImage(
        ref=ref,
        config_digest=config_digest,
        base_image=labels.get("org.opencontainers.image.base.name"),
        lock_sha256=labels.get("io.mlbundle.lock", "").removeprefix("sha256:") or None,
        built_at=str(facts["Created"]) if facts.get("Created") else None,
        source=source,
        size_bytes=int(facts.get("Size") or 0),
        image_id=None if identifier == config_digest else identifier,
    )


def _keys(framework: FrameworkManifest) -> Iterator[ImageKey]:
    for architecture, choices in framework.containers.items():
        for accelerator in choices:
            yield ImageKey(framework.name, framework.version, architecture, accelerator)


def _status_of_choice(
    framework: FrameworkManifest, key: ImageKey, entry: LockedImage | None, client: Any
) -> ImageStatus:
    choice = select_image(framework, key.architecture, key.accelerator)
    if choice.digest is not None:
        return _status_of_pin(framework, choice.digest, key, entry, client)
    if entry is None:
        new = None if client is None else _new_pin(framework, key, client)
        if new is not None:
            return _status_of_entry(key, new.entry, client, state="new")
        return ImageStatus(key, choice.image, "not built" if choice.build else "not pulled")
    status = _status_of_entry(key, entry, client)
    if status.state == "ready" and _is_outdated(framework, key, entry):
        return replace(status, state="outdated")
    return status


def _status_of_pin(
    framework: FrameworkManifest, digest: str, key: ImageKey, entry: LockedImage | None, client: Any
) -> ImageStatus:
    choice = select_image(framework, key.architecture, key.accelerator)
    if client is None:
        return ImageStatus(key, choice.image, "unknown", digest)
    try:
        resolved, facts = find_stated(choice, digest, client, entry)
    except ImageMissing:
        return ImageStatus(key, choice.image, "not pulled", digest)
    except ImageMismatch:
        other = inspect_image(client, choice.image)
        return ImageStatus(key, choice.image, "differs", digest, found=str(other["Id"]) if other else None)
    return ImageStatus(
        key=key,
        ref=choice.image,
        state="ready",
        config_digest=resolved.config_digest,
        size_bytes=int(facts["Size"]),
        source=entry.source if entry else None,
        registry=entry.registry if entry else (),
    )


def _status_of_entry(
    key: ImageKey, entry: LockedImage, client: Any, *, state: State | None = None
) -> ImageStatus:
    pin = PinStatus(key, "unknown", entry) if client is None else _pin_of_entry(key, entry, client)
    return ImageStatus(
        key=key,
        ref=entry.ref,
        state=state or pin.state,
        config_digest=entry.config_digest,
        base_image=entry.base_image,
        built_at=entry.built_at,
        size_bytes=pin.entry.size_bytes,
        source=entry.source,
        registry=entry.registry,
        found=pin.found,
    )


def _is_outdated(framework: FrameworkManifest, key: ImageKey, entry: LockedImage) -> bool:
    """Whether the requirements have changed since the image was built."""
    if entry.lock_sha256 is None:
        return False
    try:
        plan = plan_build(framework, key.accelerator, key.architecture, entry.base_image)
    except MlbundleError:
        return False
    return plan.lock_sha256 != entry.lock_sha256


def _pin_of_entry(key: ImageKey, entry: LockedImage, client: Any) -> PinStatus:
    facts, named = find_locked(entry, client), inspect_image(client, entry.ref)
    if facts is not None:
        entry = replace(entry, size_bytes=int(facts.get("Size") or 0))
    if facts is not None and (named is None or named["Id"] == facts["Id"]):
        return PinStatus(key, "ready", entry)
    if named is None:
        return PinStatus(key, "gone", entry)
    return PinStatus(key, "differs" if facts is None else "moved", entry, str(named["Id"]))


def _new_pin(framework: FrameworkManifest, key: ImageKey, client: Any) -> PinStatus | None:
    """Return the pin of an image that has the name of its manifest and is what it should be by its labels."""
    choice = select_image(framework, key.architecture, key.accelerator)
    facts = inspect_image(client, choice.image)
    if facts is None or (choice.digest is not None and choice.digest not in digests_of(facts)):
        return None
    try:
        check_labels(key, labels_of(facts), str(facts.get("Architecture", "")), choice.image)
    except ImageMismatch:
        return None
    names = _registry_names(facts)
    entry = entry_of(facts, choice.image, source="pulled" if names else "built")
    return PinStatus(key, "new", replace(entry, registry=names))


def _registry_names(facts: dict[str, Any]) -> tuple[RegistryName, ...]:
    """Return what the engine knows of an image's names in registries; a digest counts as that of a manifest."""
    names = []
    for known in sorted(str(name) for name in facts.get("RepoDigests") or ()):
        repository, _, digest = known.partition("@")
        # Podman gives images that no registry has seen a digest, too.
        if digest != facts["Id"] and not repository.startswith("localhost/"):
            tags = [name for name in names_of(facts) if name.rpartition(":")[0] == repository]
            names.append(RegistryName(tags[0] if tags else known, digest))
    return tuple(names)
