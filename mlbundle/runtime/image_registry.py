"""Framework images and registries, by way of the engine: pulled and checked, or pushed; both digests recorded."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from mlbundle.errors import (
    EngineUnavailable,
    ImageMismatch,
    ImageMissing,
    MlbundleError,
    RegistryDenied,
    RegistryUnavailable,
    UsageError,
)
from mlbundle.registry.reference import DOCKER_HUB, SCHEME, RegistryReference, looks_like_registry, parse
from mlbundle.runtime.image_engine import engine_calls, engine_failed
from mlbundle.runtime.image_facts import (
    check_labels,
    digests_of,
    inspect_image,
    is_index,
    key_of,
    labels_of,
)
from mlbundle.runtime.image_list import entry_of
from mlbundle.runtime.image_names import give_name
from mlbundle.runtime.lock import ImageKey, LockedImage, RegistryName, read_images_lock, record_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

    from mlbundle.config import Settings

    Progress = Callable[[int, int], None]

_DENIED = ("denied", "unauthorized", "authentication required", "no basic auth credentials", "forbidden")
_MISSING = ("not found", "manifest unknown", "name unknown", "does not exist")
_OTHER_PLATFORM = ("does not match the specified platform", "no matching manifest")


@dataclass(frozen=True)
class TransferredImage:
    """An image that was pulled or pushed: what it is for, its lock entry, and its name in the registry."""

    key: ImageKey
    entry: LockedImage
    name: RegistryName

    def to_document(self) -> dict[str, Any]:
        """Return the image as the JSON document that the commands print."""
        return {
            "schema": "mlbundle/image/v1",
            **asdict(self.key),
            **asdict(self.entry),
            "registry": [asdict(name) for name in self.entry.registry],
            "from_registry": asdict(self.name),
        }


def parse_image(text: str) -> RegistryReference:
    """Return what a name of an image means to an engine: without a host it is Docker Hub's. Raises UsageError."""
    return parse(text if looks_like_registry(text) else f"{DOCKER_HUB}/{text}")


def parse_place(text: str) -> RegistryReference:
    """Return what a user's HOST/NAME means; a host is never made up. Raises UsageError."""
    host, slash, name = text.removeprefix(SCHEME).partition("/")
    if not slash or not name or not (host == "localhost" or "." in host or ":" in host):
        raise UsageError(
            f"{text} names no host and repository",
            hint="HOST/NAME or HOST/NAME:TAG, such as registry.example/lab/onnxruntime; Docker Hub's host is docker.io",
        )
    return parse(text)


def pull_image(
    source: str,
    key: ImageKey | None,
    settings: Settings,
    client: Any,
    *,
    stated: str | None = None,
    update: bool = False,
    progress: Progress | None = None,
) -> TransferredImage:
    """Pull `source`, check that it is the image for `key` (default: what its labels say), and record both digests.

    `stated` is the digest that the framework manifest pins. An image with another config than the one in the images
    lock, or a tag that has moved since, is refused unless `update`; what was pulled for nothing is removed.
    `progress` hears bytes of layers. Raises ImageMismatch, ImageMissing, RegistryDenied, RegistryUnavailable,
    EngineUnavailable, StorageFailed.
    """
    reference = parse_image(source)
    if reference.manifest is None:
        raise UsageError(f"{source} names no image of its repository", hint="add :TAG or @sha256:DIGEST")
    known = read_images_lock(settings.images_lock)
    descriptor = _ask_registry(client, reference)
    if reference.digest is None and not update:
        _check_tag(reference, str(descriptor.get("digest", "")), known)
    with _Pull(client, reference, descriptor) as pull:
        facts = pull.run(key, progress)
        name = pull.name(facts)
        if reference.digest is None and not update:
            _check_tag(reference, name.digest, known)
        key = _wanted_key(key, facts, str(name.ref))
        _check_pins(known.get(key), stated, facts, name, update=update)
        ref = give_name(client, key, facts)
        entry = replace(entry_of(facts, ref, source="pulled"), registry=(name,))
        entry = _keep_known(entry, known.get(key))
        record_image(settings.images_lock, key, entry)
        pull.keep()
    return TransferredImage(key, read_images_lock(settings.images_lock)[key], name)


def push_image(
    key: ImageKey,
    target: str,
    settings: Settings,
    client: Any,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> TransferredImage:
    """Push the image that the images lock has for `key` to a repository, and record the registry's digest.

    Without a tag it gets that of its version and platform. A tag that names another image, here or in the registry,
    is refused unless `force`. Raises ImageMissing, UsageError, RegistryDenied, RegistryUnavailable,
    EngineUnavailable, StorageFailed.
    """
    from mlbundle.runtime.images import find_locked

    reference = parse_place(target)
    if reference.digest is not None:
        raise UsageError("a digest is the registry's answer and can't be chosen", where=target)
    reference = reference.with_(tag=reference.tag or f"{key.version}-{key.accelerator}-{key.architecture}")
    entry = read_images_lock(settings.images_lock).get(key)
    facts = None if entry is None else find_locked(entry, client)
    if entry is None or facts is None:
        raise ImageMissing(
            f"there is no image for {key} here to be pushed", hint="`mlbundle images list` shows what is here"
        )
    if not force:
        _check_target(client, reference, entry, str(facts["Id"]))
    digest = _push(client, reference, str(facts["Id"]), progress)
    name = RegistryName(_written(reference), digest)
    record_image(settings.images_lock, key, replace(entry, registry=(name,)))
    return TransferredImage(key, read_images_lock(settings.images_lock)[key], name)


def _push(client: Any, reference: RegistryReference, identifier: str, progress: Progress | None) -> str:
    """Name the image for its repository and push it; the name goes again when that fails. Returns the digest."""
    before = inspect_image(client, _written(reference))
    with _engine(client, reference, "push"):
        client.api.tag(identifier, engine_name_of(reference), reference.tag, force=True)
        try:
            lines = client.api.push(engine_name_of(reference), tag=reference.tag, stream=True, decode=True)
            digest = _follow(lines, reference, "push", progress)
        except BaseException:
            _give_back(client, _written(reference), before)
            raise
    if digest is None:
        raise EngineUnavailable(
            f"{_written(reference)} was pushed, but the engine does not say under which digest",
            hint="old versions of Podman don't; the images lock stays as it was",
        )
    return digest


def engine_name_of(reference: RegistryReference) -> str:
    """Return a repository as engines write it: Docker Hub has no host."""
    if reference.host != DOCKER_HUB:
        return f"{reference.host}/{reference.repository}"
    return reference.repository.removeprefix("library/")


def _written(reference: RegistryReference) -> str:
    tag = f":{reference.tag}" if reference.tag else ""
    return f"{engine_name_of(reference)}{tag}" if tag else f"{engine_name_of(reference)}@{reference.digest}"


class _Pull:
    """One pull: by digest where the registry says which, so that nothing changes between question and answer."""

    def __init__(self, client: Any, reference: RegistryReference, descriptor: dict[str, Any]) -> None:
        self._client = client
        self._reference = reference
        self._descriptor = descriptor
        digest = reference.digest or descriptor.get("digest")
        repository = engine_name_of(reference)
        self._asked = f"{repository}@{digest}" if digest else f"{repository}:{reference.tag}"
        self._before = inspect_image(client, self._asked)
        self._kept = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            _give_back(self._client, self._asked, self._before)

    def keep(self) -> None:
        """Let what was pulled stay."""
        self._kept = True

    def run(self, key: ImageKey | None, progress: Progress | None) -> dict[str, Any]:
        """Pull and return what the engine knows about the image then."""
        repository, separator, rest = self._split()
        with _engine(self._client, self._reference, "pull"):
            lines = self._client.api.pull(
                self._asked if separator == "@" else repository,
                tag=None if separator == "@" else rest,
                platform=f"linux/{key.architecture}" if key else None,
                stream=True,
                decode=True,
            )
            _follow(lines, self._reference, "pull", progress)
        facts = inspect_image(self._client, self._asked)
        if facts is None:
            raise engine_failed(f"pull {self._asked}", "it has no such image afterwards")
        return facts

    def name(self, facts: dict[str, Any]) -> RegistryName:
        """Return what the registry calls the image, in the digest that it gave."""
        descriptor = self._descriptor or facts.get("Descriptor") or {}
        repository, separator, rest = self._split()
        digests = [rest] if separator == "@" else []
        names = facts.get("RepoDigests") or ()
        digests += [str(name).partition("@")[2] for name in names if str(name).startswith(f"{repository}@")]
        if not digests:
            raise engine_failed(f"pull {self._asked}", "it does not say under which digest")
        index = is_index(descriptor.get("mediaType"))
        ref = _written(self._reference)
        return RegistryName(ref, index_digest=digests[0]) if index else RegistryName(ref, digests[0])

    def _split(self) -> tuple[str, str, str]:
        separator = "@" if "@" in self._asked else ":"
        repository, _, rest = self._asked.rpartition(separator)
        return repository, separator, rest


def _give_back(client: Any, name: str, before: dict[str, Any] | None) -> None:
    """Let a name be what it was before something failed; a failure here hides no other."""
    import docker.errors
    import requests.exceptions

    try:
        now = inspect_image(client, name)
        if before is None and now is not None:
            client.api.remove_image(name)
        elif before is not None and "@" not in name and (now is None or now["Id"] != before["Id"]):
            repository, _, tag = name.rpartition(":")
            client.api.tag(before["Id"], repository, tag, force=True)
    except (EngineUnavailable, docker.errors.APIError, requests.exceptions.RequestException):
        return


def _ask_registry(client: Any, reference: RegistryReference) -> dict[str, Any]:
    """Return what the registry has under a name; empty when the engine can't ask: pulling then says why."""
    import docker.errors
    import requests.exceptions

    try:
        answer = client.api.inspect_distribution(_written(reference))
    except (docker.errors.DockerException, requests.exceptions.RequestException, ValueError):
        return {}
    descriptor = answer.get("Descriptor") if isinstance(answer, dict) else None
    return dict(descriptor) if isinstance(descriptor, dict) else {}


def _check_tag(reference: RegistryReference, digest: str, known: dict[ImageKey, LockedImage]) -> None:
    """Raise ImageMismatch when the lock remembers another digest under this tag."""
    written = _written(reference)
    for entry in known.values():
        for name in entry.registry:
            if digest and name.ref == written and name.digest != digest:
                raise ImageMismatch(
                    f"the tag {written} has moved since it was pinned",
                    where=f"pinned {name.digest}, now {digest}",
                    hint="--update takes the new one; what was pinned: "
                    f"mlbundle images pull {engine_name_of(reference)}@{name.digest}",
                )


def _wanted_key(key: ImageKey | None, facts: dict[str, Any], where: str) -> ImageKey:
    labels = labels_of(facts)
    wanted = key or key_of(labels)
    if wanted is None:
        raise ImageMismatch(
            "the labels of the image do not say what it is for",
            where=where,
            hint="name the framework that it is pulled for: mlbundle images pull FRAMEWORK --from REF; "
            "images of mlbundle have labels io.mlbundle.framework, version, architecture and accelerator",
        )
    check_labels(wanted, labels, str(facts.get("Architecture", "")), where)
    return wanted


def _check_pins(
    entry: LockedImage | None,
    stated: str | None,
    facts: dict[str, Any],
    name: RegistryName,
    *,
    update: bool,
) -> None:
    """Raise ImageMismatch for another image than the manifest or the lock pins."""
    here = digests_of(facts) | {name.digest}
    if stated is not None and stated not in here:
        raise ImageMismatch(
            f"{name.ref} is not the image that the framework manifest pins",
            where=f"pinned {stated}, got {', '.join(sorted(here))}",
        )
    if update or entry is None or not here.isdisjoint(_digests_of_entry(entry)):
        return
    raise ImageMismatch(
        f"{name.ref} is not the image that the images lock pins",
        where=f"pinned {entry.config_digest}, got {facts['Id']}",
        hint="--update pins the new one; the old one stays in the engine",
    )


def _digests_of_entry(entry: LockedImage) -> set[str]:
    return {entry.config_digest, entry.image_id or entry.config_digest, *(n.digest for n in entry.registry)}


def _keep_known(entry: LockedImage, before: LockedImage | None) -> LockedImage:
    """Keep what the lock knows about the same image and the engine does not say: its config, how it was made."""
    if before is None or _digests_of_entry(entry).isdisjoint(_digests_of_entry(before)):
        return entry
    return replace(
        before,
        ref=entry.ref,
        image_id=None if entry.config_digest == before.config_digest else entry.config_digest,
        size_bytes=entry.size_bytes,
        # The lock adds those that it has already.
        registry=entry.registry,
    )


def _check_target(client: Any, reference: RegistryReference, entry: LockedImage, identifier: str) -> None:
    """Raise UsageError when the tag names another image here or in the registry."""
    written = _written(reference)
    here = inspect_image(client, written)
    if here is not None and here["Id"] != identifier:
        raise UsageError(
            f"{written} is the name of another image in the engine",
            where=str(here["Id"]),
            hint="name another tag, or --force",
        )
    there = _ask_registry(client, reference).get("digest")
    if there is not None and there not in {name.digest for name in entry.registry}:
        raise UsageError(
            f"{written} names another image in the registry",
            where=str(there),
            hint="name another tag, or --force",
        )


@contextmanager
def _engine(client: Any, reference: RegistryReference, verb: str) -> Iterator[None]:
    """Give what an engine says about a registry before it begins the same words as what it says later."""
    import docker.errors

    with engine_calls(client, f"{verb} {_written(reference)}"):
        try:
            yield
        except docker.errors.APIError as error:
            raise _failure(str(error.explanation or error), reference, verb) from error


def _follow(
    lines: Iterable[dict[str, Any]], reference: RegistryReference, verb: str, progress: Progress | None
) -> str | None:
    """Read what the engine says while it transfers; returns the digest that it states at the end of a push."""
    layers: dict[str, tuple[int, int]] = {}
    digest = None
    for line in lines:
        problem = line.get("error") or (line.get("errorDetail") or {}).get("message")
        if problem:
            raise _failure(str(problem), reference, verb)
        digest = (line.get("aux") or {}).get("Digest", digest)
        detail = line.get("progressDetail") or {}
        if line.get("status") in {"Downloading", "Pushing"} and detail.get("total"):
            total_bytes = int(detail["total"])
            # Engines count what they send twice when they try again, and tar headers that they did not announce.
            layers[str(line.get("id"))] = (min(int(detail.get("current", 0)), total_bytes), total_bytes)
            if progress is not None:
                progress(sum(done for done, _ in layers.values()), sum(total for _, total in layers.values()))
    return digest


def _failure(problem: str, reference: RegistryReference, verb: str) -> MlbundleError:
    """Return the error for what an engine says about a registry."""
    written, words = _written(reference), problem.lower()
    where = " ".join(problem.split())[:500]
    if any(part in words for part in _OTHER_PLATFORM):
        return ImageMismatch(f"{written} is not for the architecture that is wanted", where=where)
    if any(part in words for part in _DENIED):
        return RegistryDenied(
            f"the registry does not let this user {verb} {written}",
            where=where,
            hint=f"mlbundle login {reference.host}",
        )
    if any(part in words for part in _MISSING):
        return ImageMissing(f"the registry has no image {written}", where=where)
    if "no space left on device" in words:
        return engine_failed(f"{verb} {written}", problem)
    hint = "the engine must reach the registry, not only this command"
    if "http response to https client" in words:
        hint = "the registry speaks no TLS: name it among the engine's insecure registries"
    return RegistryUnavailable(f"{written} could not be {verb}ed", where=where, hint=hint)
