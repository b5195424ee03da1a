"""Builds a framework image on this machine from a recipe that we ship, and records what came out.

The wheels are downloaded on the host and checked against the lock; the build needs the network only when the base
image has no Python. The recipe is written for the classic builder, which every engine still speaks.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
import uuid
from collections import deque
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mlbundle.errors import DigestMismatch, ImageBuildFailed, MlbundleError, StorageFailed
from mlbundle.files import locked, storage_failed
from mlbundle.platforms import normalise_architecture
from mlbundle.runtime.engine import engine_client
from mlbundle.runtime.image_facts import inspect_image
from mlbundle.runtime.image_names import keep_name
from mlbundle.runtime.image_plan import BuildPlan, plan_build, write_context
from mlbundle.runtime.image_steps import step_words, wheels_words
from mlbundle.runtime.loadgen_source import ensure_source, source_files
from mlbundle.runtime.lock import LockedImage, read_images_lock, record_image
from mlbundle.runtime.requirements import hash_mismatch
from mlbundle.runtime.wheelhouse import PythonTarget, ensure_wheelhouse, forget, wheels_of
from mlbundle.store.bundles import Hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from mlbundle.config import Settings
    from mlbundle.manifest.framework import FrameworkManifest

    Report = Callable[[str], None]

__all__ = ["STAGE_LABEL", "BuildPlan", "BuiltImage", "build_image", "plan_build"]

STAGE_LABEL = "io.mlbundle.stage"
"""On every stage of a recipe; `build` on those that are left over when the build is done."""

_BASE_DIGEST_LABEL = "org.opencontainers.image.base.digest"
_PROBE_LABEL = "io.mlbundle.probe"
_PROBE_TIMEOUT_S = 60.0
_BUILD_TIMEOUT_S = 1800.0
_TAIL_LINES = 12
_HEARD_LINES = 400
_FULL = "no space left on device"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STAGE_ID = re.compile(r" ---> ([0-9a-f]{12})$")
_CACHED = " ---> Using cache"
_VANISHED = re.compile(r"no such image|layer does not exist|unknown parent image", re.IGNORECASE)
# Runs in the base image on whatever Python it has: 3.6 must be able to read it.
_PROBE = (
    "import json, os, sys, venv, ensurepip; "
    "print(json.dumps([sys.version_info[0], sys.version_info[1], os.confstr('CS_GNU_LIBC_VERSION')]))"
)


@dataclass(frozen=True)
class BuiltImage:
    """An image that was built and recorded; `log` holds everything the engine said.

    `replaces` is the config digest that was pinned before, where it was another, `kept_as` the new name of the image
    whose only name this one has taken.
    """

    plan: BuildPlan
    config_digest: str
    size_bytes: int
    built_at: str
    log: Path
    replaces: str | None = None
    kept_as: str | None = None

    @property
    def ref(self) -> str:
        """Return the name under which the engine has the image."""
        return self.plan.ref

    def to_document(self) -> dict[str, Any]:
        """Return the image as the JSON document that `images build --json` prints."""
        return {
            "schema": "mlbundle/image/v1",
            **self.plan.to_document(),
            "config_digest": self.config_digest,
            "size_bytes": self.size_bytes,
            "built_at": self.built_at,
            "log": str(self.log),
            "replaces": self.replaces,
            "kept_as": self.kept_as,
        }


def build_image(
    framework: FrameworkManifest,
    accelerator: str,
    architecture: str,
    settings: Settings,
    *,
    base_image: str | None = None,
    wheelhouse: Path | None = None,
    network: str | None = None,
    loadgen_source: bool = False,
    report: Report = lambda _line: None,
) -> BuiltImage:
    """Build the image of a framework for one platform, tag it, and record its digest in the images lock.

    `wheelhouse` is a folder with the wheels (default: downloaded into the cache), `network` the engine's network
    for the build (default: none where the base image has a Python, else the engine's own). With `loadgen_source`
    LoadGen is compiled, which needs the network unless the base image has a compiler. Builds on one data folder take
    turns, those of others on the same engine do not get into each other's way. The image that had the name keeps
    another one. Raises ImageBuildFailed with the end of the log, DigestMismatch for a wheel with other bytes than the
    lock states, EngineUnavailable, StorageFailed where the disk of the engine or ours is full.
    """
    plan = plan_build(framework, accelerator, architecture, base_image)
    with closing(engine_client(_BUILD_TIMEOUT_S)) as client, locked(settings.data_dir / ".images.build"):
        build = _Build(client, plan, settings, network, report, loadgen_source=loadgen_source)
        return build.run(wheelhouse)


class _Build:
    """One build: base image, its Python, wheels, the image, the record."""

    def __init__(
        self,
        client: Any,
        plan: BuildPlan,
        settings: Settings,
        network: str | None,
        report: Report,
        *,
        loadgen_source: bool = False,
    ) -> None:
        self._client = client
        self._api = client.api
        self._plan = plan
        self._settings = settings
        self._network = network
        self._report = report
        self._loadgen_source = loadgen_source
        self._sources: list[Path] = []
        self._layers: set[str] = set()
        self._reused = False
        self._wheels = ""
        self._id = uuid.uuid4().hex
        self._hold: Hold | None = None
        self._labels: dict[str, str] = {}
        self._said: deque[str] = deque(maxlen=_HEARD_LINES)
        started = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        self._log = settings.data_dir / "logs" / f"image-{'-'.join(asdict(plan.key).values())}-{started}.log"

    def run(self, wheelhouse: Path | None) -> BuiltImage:
        """Do everything; whatever the engine keeps of a failed build is removed."""
        import docker.errors
        import requests.exceptions

        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            self._ensure_base()
            image = self._build_with(self._wheelhouse(wheelhouse))
            return self._record(image, self._name(image))
        except (docker.errors.APIError, requests.exceptions.RequestException) as error:
            raise self._failed(str(getattr(error, "explanation", None) or error)) from error
        except OSError as error:
            raise storage_failed(error, self._log) from error
        finally:
            self._remove_stages()

    def _wheelhouse(self, given: Path | None) -> Path:
        target = self._python_target()
        if self._loadgen_source:
            self._sources = source_files(given or ensure_source(self._settings.cache_dir, self._report))
        if given is not None:
            return given
        lock = self._plan.recipe.lock
        return ensure_wheelhouse(self._settings.cache_dir, lock, target, report=self._report)

    def _build_with(self, wheelhouse: Path) -> str:
        """Build the image with the wheels of a folder; a damaged folder of the cache is filled anew next time."""
        # Held until this build is gone: nobody collects them meanwhile.
        self._hold = Hold(wheelhouse)
        wheels = wheels_of(wheelhouse, self._plan.recipe.lock)
        size_bytes = sum(path.stat().st_size for path in wheels)
        self._wheels = wheels_words(len(wheels), size_bytes)
        self._report(f"giving {self._wheels} to the engine")
        try:
            return self._build(wheels=[*wheels, *self._sources])
        except DigestMismatch as error:
            if forget(self._settings.cache_dir, wheelhouse):
                error.hint = "the wheels in the cache were damaged and have been removed: build again"
            raise

    def _ensure_base(self) -> None:
        """Have the base image here, of the right architecture; pulled if need be."""
        import docker.errors

        base = self._plan.base_image
        try:
            facts = self._api.inspect_image(base)
        except docker.errors.ImageNotFound:
            self._report(f"pulling {base}")
            name, tag = _split_ref(base)
            platform = f"linux/{self._plan.key.architecture}"
            self._follow(self._api.pull(name, tag=tag, platform=platform, stream=True, decode=True))
            facts = self._api.inspect_image(base)
        self._check_architecture(facts, base)
        # Only what came from a registry has a digest there.
        known = sorted(str(name).rpartition("@")[2] for name in facts.get("RepoDigests") or ())
        self._labels = {_BASE_DIGEST_LABEL: known[0]} if known else {}

    def _python_target(self) -> PythonTarget:
        """Ask the base image for its Python; one without gets Debian's, in the recipe's first stage."""
        found = self._probe(self._plan.base_image)
        if found is not None:
            # All that is missing are wheels, which come with the context, or a compiler, which does not.
            self._network = self._network or (None if self._loadgen_source else "none")
        else:
            self._report("the base image has no Python: the build installs Debian's, which needs the network")
            found = self._probe(self._build(target="python"))
        if found is None:
            raise self._failed(
                "the base image has no Python that can make environments, and none could be installed"
            )
        major, minor, libc = found
        if not isinstance(libc, str) or not libc.startswith("glibc 2."):
            raise self._failed("the base image has no glibc, and the wheels are made for it")
        return PythonTarget((major, minor), int(libc.split(".")[1]), self._plan.key.architecture)

    def _probe(self, image: str) -> Any:
        """Return [major, minor, name of the C library] of an image's Python, None when it has none."""
        import docker.errors

        host = self._api.create_host_config(
            network_mode="none", read_only=True, cap_drop=["ALL"], security_opt=["no-new-privileges"]
        )
        container = self._api.create_container(
            image,
            entrypoint=["python3"],
            command=["-c", _PROBE],
            user="65534:65534",
            host_config=host,
            network_disabled=True,
            labels={_PROBE_LABEL: "base"},
        )["Id"]
        try:
            self._api.start(container)
            if self._api.wait(container, timeout=_PROBE_TIMEOUT_S)["StatusCode"] != 0:
                return None
            return json.loads(self._api.logs(container, stdout=True, stderr=False))
        except docker.errors.APIError:
            return None  # no such program in the image
        finally:
            with suppress(docker.errors.APIError):
                self._api.remove_container(container, force=True, v=True)

    def _build(self, *, wheels: Sequence[Path] = (), target: str | None = None) -> str:
        """Build one target (the whole without) and return the image's id.

        Once more where somebody removed a stage meanwhile: a clean-up, or a build that shared it.
        """
        try:
            return self._build_once(wheels, target)
        except ImageBuildFailed as error:
            if not _VANISHED.search(error.message):
                raise
        self._report("a stage of this build was removed from the engine meanwhile: building again")
        return self._build_once(wheels, target)

    def _build_once(self, wheels: Sequence[Path], target: str | None) -> str:
        started = time.monotonic()
        self._settings.cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._settings.cache_dir) as context:
            write_context(context, self._plan, wheels, self._id)
            context.seek(0)
            answer = self._api.build(
                fileobj=context,
                custom_context=True,
                target=target,
                buildargs=self._plan.arguments(),
                labels=None if target else self._labels,
                network_mode=self._network,
                rm=True,
                forcerm=True,
                decode=True,
            )
            image = self._follow(answer)
        if image is None:
            raise self._failed("the engine did not say what it built")
        if target is None:
            self._report(f"built {self._plan.ref} in {time.monotonic() - started:.0f} s")
        return image

    def _follow(self, stream: Iterable[dict[str, Any]]) -> str | None:
        """Write what the engine says to the log, report the steps; returns the id of the image it made."""
        image = None
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        with self._log.open("a", encoding="utf-8") as log:
            for item in stream:
                said = str(item.get("stream") or item.get("status") or item.get("error") or "")
                # What goes to a program's standard error comes in red.
                text = _COLOUR.sub("", said).rstrip()
                self._note_stages(text)
                if text and "progressDetail" not in item:
                    log.write(text + "\n")
                    tail.extend(text.splitlines())
                    self._said.extend(text.splitlines())
                step = step_words(text, self._wheels)
                if step is not None:
                    self._report(step)
                if "error" in item:
                    raise self._failed(_one_line(str(item["error"]), limit=200), tail)
                image = (item.get("aux") or {}).get("ID", image)
        return image

    def _note_stages(self, text: str) -> None:
        """Remember which stages this build has made; one that it found is somebody else's."""
        for line in text.splitlines():
            found = _STAGE_ID.match(line)
            if found is not None and not self._reused:
                self._layers.add(found[1])
            self._reused = line == _CACHED

    def _name(self, image: str) -> str | None:
        """Give the image its name; returns the new one of the image that had it and has no other."""
        facts = self._api.inspect_image(image)
        self._check_architecture(facts, self._plan.ref)
        # Not by the engine at the end of the build: another build may have taken the name since this one began.
        before = inspect_image(self._client, self._plan.ref)
        repository, tag = _split_ref(self._plan.ref)
        self._api.tag(image, repository, tag, force=True)
        if before is None or before["Id"] == facts["Id"]:
            return None
        kept_as = keep_name(self._client, before, self._plan.ref)
        if kept_as is not None:
            self._report(f"the image that had the name before is kept as {kept_as}")
        return kept_as

    def _record(self, image: str, kept_as: str | None) -> BuiltImage:
        facts = self._api.inspect_image(image)
        built_at = datetime.now(UTC).isoformat(timespec="seconds")
        entry = LockedImage(
            ref=self._plan.ref,
            config_digest=facts["Id"],
            base_image=self._plan.base_image,
            lock_sha256=self._plan.lock_sha256,
            built_at=built_at,
            size_bytes=int(facts["Size"]),
        )
        pinned = read_images_lock(self._settings.images_lock).get(self._plan.key)
        record_image(self._settings.images_lock, self._plan.key, entry)
        replaces = None
        if pinned is not None and pinned.config_digest != entry.config_digest:
            replaces = pinned.config_digest
            self._report(f"replaces the pin {replaces}")
        return BuiltImage(self._plan, facts["Id"], int(facts["Size"]), built_at, self._log, replaces, kept_as)

    def _check_architecture(self, facts: dict[str, Any], ref: str) -> None:
        found = normalise_architecture(str(facts.get("Architecture", "")))
        wanted = self._plan.key.architecture
        if found != wanted:
            raise ImageBuildFailed(
                f"{ref} is an image for {found or 'an unknown architecture'}, not for {wanted}",
                hint="name a base image of that architecture with --base-image",
            )

    def _failed(self, message: str, context: Iterable[str] = ()) -> MlbundleError:
        """Return the error of a build, by what the engine and pip said last."""
        with suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            log.write(f"{message}\n")
        if any(_FULL in line.lower() for line in (message, *self._said)):
            return StorageFailed(
                f"the image {self._plan.ref} could not be built: the engine's disk is full",
                where=str(self._log),
                context=tuple(context),
                hint="free space where the engine keeps its images (`docker system df` shows what takes it; "
                "`docker info` says where); what this build left there is removed",
            )
        wrong = hash_mismatch(self._said, str(self._plan.recipe.lock))
        return wrong or ImageBuildFailed(
            f"the image {self._plan.ref} could not be built: {message}",
            where=str(self._log),
            context=tuple(context),
            hint="the file above is the whole log; where the build can't reach the network: `--network host`, "
            "or a base image with python3 and python3-venv in it (`--base-image`)",
        )

    def _remove_stages(self) -> None:
        """Remove the stages of this build that are left without a name; those of other builds may be in use."""
        import docker.errors
        import requests.exceptions

        with suppress(docker.errors.APIError, requests.exceptions.RequestException):
            # With any value: a build that fails in the last stage leaves that one.
            left = self._api.images(filters={"dangling": True, "label": STAGE_LABEL})
            for identifier in (image["Id"] for image in left):
                if identifier.removeprefix("sha256:")[:12] in self._layers:
                    with suppress(docker.errors.APIError):
                        self._api.remove_image(identifier)


def _split_ref(ref: str) -> tuple[str, str | None]:
    """Split a reference for the pull call: `a:b` -> (a, b), `a` -> (a, latest), `a@sha256:…` as it is."""
    if "@" in ref:
        return ref, None
    name, colon, tag = ref.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (ref, "latest")


def _one_line(text: str, limit: int = 100) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
