"""What of a bundle can run on this machine, what is missing, and what would mend it. Nothing is run or fetched."""

from __future__ import annotations

import shlex
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from mlbundle.errors import EngineUnavailable, ImageMissing, MlbundleError
from mlbundle.manifest.locks import installed_lock
from mlbundle.manifest.select import select_image, select_lock
from mlbundle.platforms import this_architecture
from mlbundle.runs.asking import answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mlbundle.bundle.document import ImagePin
    from mlbundle.config import Settings
    from mlbundle.manifest.framework import FrameworkManifest
    from mlbundle.runs.asking import Ask
    from mlbundle.runs.bundle_facts import BundleFacts, Form
    from mlbundle.runtime.image_target import Wanted
    from mlbundle.runtime.images import ResolvedImage
    from mlbundle.runtime.lock import ImageKey

Kind = Literal["build", "pull", "lock", "environment", "bundle", "generate"]
State = Literal[
    "ready", "environment missing", "needs --trust", "image missing", "not here", "assets missing", "unusable"
]
RANKS: tuple[State, ...] = (
    "ready", "environment missing", "needs --trust", "image missing", "not here", "assets missing", "unusable",
)  # fmt: skip
"""The states, the best first: `environment missing` runs, and the first run makes it; `not here` is in a registry;
`unusable` has no image and no environment for this machine, or can't be read."""


_ABOUT: dict[Kind, str] = {
    "lock": "a second: it is here; runs take images only by a digest that was written down, which this does",
    "environment": "about a minute: packages that are locked by hash are downloaded into a folder of their own",
    "bundle": "as long as the download takes",
    "pull": "as long as the download takes: some hundred MiB",
    "generate": "some minutes: environments of the frameworks, then the files; it comes into the library",
    "build": "some minutes: a base image and packages are downloaded",
}
"""What each kind takes, in words; the quickest first."""


@dataclass(frozen=True)
class Mend:
    """What would put something right: `command` is what a user would type, the other fields what `mending` needs.

    `framework`, `architecture` and `accelerator` say for what an image or an environment is; `source` where an image
    or a bundle comes from, `stated` the digest that it must have, `plain_http` and `ca_file` how a registry is reached;
    `base_image` and `network` are what an image is built on and with, where that is not the recipe's choice.
    """

    kind: Kind
    title: str
    command: str
    framework: str = ""
    version: str = ""
    architecture: str = ""
    accelerator: str = ""
    source: str = ""
    stated: str | None = None
    plain_http: bool = False
    ca_file: str | None = None
    base_image: str = ""
    network: str = ""

    @property
    def about(self) -> str:
        """What it does and about how long that takes."""
        return _ABOUT[self.kind]


def built_with(mend: Mend, base_image: str = "", network: str = "") -> Mend:
    """Return the build of an image on another base image, or with another network of the engine (empty: as it is)."""
    options = [("--base-image", base_image), ("--network", network)]
    said = "".join(f" {name} {shlex.quote(value)}" for name, value in options if value)
    return replace(mend, command=mend.command + said, base_image=base_image, network=network)


@dataclass(frozen=True)
class Way:
    """One way to run one form here: in a container or as a process, on an accelerator.

    `found` says in words what is there or why it does not go; `mend` is what would help.
    """

    form: str
    framework: str
    runtime: Literal["docker", "process"]
    accelerator: str
    state: State
    found: str
    mend: Mend | None = None


@dataclass(frozen=True)
class Readiness:
    """What can run here. `ways` are in the order of the forms; `problem` is why none of them can, whatever they say."""

    ways: tuple[Way, ...]
    problem: str = ""
    problem_state: State = "unusable"
    mend: Mend | None = None

    @property
    def state(self) -> State:
        """The best of the ways, unless something is wrong with the bundle as a whole."""
        if self.problem or not self.ways:
            return self.problem_state
        return min((way.state for way in self.ways), key=RANKS.index)

    @property
    def rank(self) -> int:
        """The place of the state among all, 0 for the best."""
        return RANKS.index(self.state)

    def of_form(self, name: str) -> State:
        """Return the best state of one form."""
        states = [way.state for way in self.ways if way.form == name]
        return self.problem_state if self.problem or not states else min(states, key=RANKS.index)

    @property
    def mends(self) -> tuple[Mend, ...]:
        """All that would help, each once, the quickest first."""
        found = [self.mend, *(way.mend for way in self.ways)]
        once = dict.fromkeys(mend for mend in found if mend is not None)
        return tuple(sorted(once, key=lambda mend: list(_ABOUT).index(mend.kind)))


class Here:
    """What this machine has. It is asked once, and answers from memory until `forget`; safe between threads.

    `ask` is how the container engine is asked: in this process, or by another (`asking.Asker`).
    """

    def __init__(self, settings: Settings, ask: Ask = answer) -> None:
        self.settings = settings
        self._ask = ask
        self.architecture = this_architecture()
        self._lock = threading.Lock()
        self._images: dict[Any, ResolvedImage | MlbundleError] = {}
        self._environments: dict[Any, bool | MlbundleError] = {}
        self._accelerators: tuple[str, ...] = ()
        self._no_engine: EngineUnavailable | None = None
        self._digests: dict[str, str] = {}
        self._new: set[ImageKey] | None = None
        self._stamp = self._look()

    def forget(self) -> None:
        """Ask anew from now on: something was built, pulled or removed."""
        with self._lock:
            self._images, self._environments = {}, {}
            self._accelerators, self._no_engine, self._new = (), None, None
            self._stamp = self._look()

    def changed(self) -> bool:
        """Return whether an environment or an image was made, pinned or removed since `forget`, by whomever."""
        return self._look() != self._stamp

    def _look(self) -> tuple[int, ...]:
        from mlbundle.runtime.environments import environments_folder

        found = []
        for path in (environments_folder(self.settings.cache_dir), self.settings.images_lock):
            found.append(0)
            with suppress(OSError):
                found[-1] = path.stat().st_mtime_ns
        return tuple(found)

    @property
    def accelerators(self) -> tuple[str, ...]:
        """What this machine computes on: the CPU, and a GPU where there is a driver for one."""
        if not self._accelerators:
            from mlbundle.runtime.devices import nvidia_driver

            self._accelerators = ("cpu", "gpu") if nvidia_driver() else ("cpu",)
        return self._accelerators

    def image(
        self, framework: FrameworkManifest, accelerator: str, pins: Sequence[ImagePin]
    ) -> ResolvedImage | MlbundleError:
        """Return the image that a run would take, or the error that it would meet."""
        key = (repr(framework), accelerator, tuple(pins))
        with self._lock:
            if key not in self._images:
                self._images[key] = self._no_engine or self._resolve(framework, accelerator, pins)
            return self._images[key]

    def environment(self, framework: FrameworkManifest, accelerator: str) -> bool | MlbundleError:
        """Return whether the environment of a process is made, or why there is none for this machine."""
        key = (repr(framework), accelerator)
        with self._lock:
            if key not in self._environments:
                self._environments[key] = self._look_for_environment(framework, accelerator)
            return self._environments[key]

    def built_in_digest(self, name: str) -> str:
        """Return the digest of the bundle that a built-in model makes; packed once. Raises StorageFailed."""
        from mlbundle.resources import built_in_models
        from mlbundle.runs.plan import materialise
        from mlbundle.runs.references import Reference

        with self._lock:
            if name not in self._digests:
                reference = Reference(kind="manifest", text=name, path=built_in_models()[name])
                self._digests[name] = materialise(reference, self.settings).manifest_digest
            return self._digests[name]

    def has_unpinned(self, framework: FrameworkManifest, accelerator: str) -> bool:
        """Return whether an image with the right name and labels is here that only wants to be pinned."""
        from mlbundle.runtime.lock import ImageKey

        with self._lock:
            if self._new is None:
                with suppress(MlbundleError):
                    images = self._ask("images", self.settings)
                    self._new = {ImageKey(**i["key"]) for i in images if i["state"] == "new"}
            new = self._new or set()
        return ImageKey(framework.name, framework.version, self.architecture, accelerator) in new

    def carries(self, pin: ImagePin) -> bool:
        """Return whether the image that a bundle carries is in the store: its first run loads it into the engine."""
        from mlbundle.bundle.digests import PREFIX
        from mlbundle.store.blobs import BlobStore

        names = [digest for digest in (pin.manifest, pin.config) if digest is not None]
        store = BlobStore(self.settings.data_dir)
        return bool(names) and all(store.size_of(name.removeprefix(PREFIX)) is not None for name in names)

    def _resolve(
        self, framework: FrameworkManifest, accelerator: str, pins: Sequence[ImagePin]
    ) -> ResolvedImage | MlbundleError:
        from mlbundle.runtime.images import ResolvedImage

        try:
            select_image(framework, self.architecture, accelerator)
            found = self._ask(
                "image",
                self.settings,
                framework=asdict(framework),
                architecture=self.architecture,
                accelerator=accelerator,
                pins=[asdict(pin) for pin in pins],
            )
        except EngineUnavailable as error:
            self._no_engine = error
            return error
        except MlbundleError as error:
            return error
        return ResolvedImage(**found)

    def _look_for_environment(self, framework: FrameworkManifest, accelerator: str) -> bool | MlbundleError:
        from mlbundle.runtime.environments import has_environment

        try:
            name = select_lock(framework, self.architecture, accelerator)
            lock = installed_lock(name)
            if lock is None:
                return ImageMissing(f"it names a lock that does not come with mlbundle: {name!a}")
            return has_environment(self.settings.cache_dir, framework.name.lower(), lock)
        except MlbundleError as error:
            return error


def readiness(facts: BundleFacts, here: Here, *, trusted: bool = False) -> Readiness:
    """Return what of a bundle can run here; `trusted` says that its code may run without a container."""
    ways = [
        way
        for form in facts.forms
        for accelerator in here.accelerators
        for way in _ways(form, facts, here, accelerator, trusted=trusted)
    ]
    return Readiness(tuple(ways), problem="" if ways else "there is no image or environment for this machine")


def broken(problem: str, state: State, mend: Mend | None = None) -> Readiness:
    """Return that nothing of a bundle can run, and why."""
    return Readiness((), problem=problem, problem_state=state, mend=mend)


def _ways(form: Form, facts: BundleFacts, here: Here, accelerator: str, *, trusted: bool) -> Iterable[Way]:
    framework = facts.frameworks.get(form.framework)
    if framework is None:
        return
    label = f"{framework.name} {framework.version}"
    pins = facts.pins_of(form.framework)
    if accelerator in framework.containers.get(here.architecture, {}):
        state, found, mend = _container(framework, here, accelerator, pins)
        yield Way(form.name, label, "docker", accelerator, state, found, mend)
    if accelerator in framework.python.get(here.architecture, {}):
        state, found, mend = _process(framework, here, accelerator, wants_trust=form.code and not trusted)
        yield Way(form.name, label, "process", accelerator, state, found, mend)


def _container(
    framework: FrameworkManifest, here: Here, accelerator: str, pins: Sequence[ImagePin]
) -> tuple[State, str, Mend | None]:
    image = here.image(framework, accelerator, pins)
    if isinstance(image, EngineUnavailable):
        return "image missing", f"no container engine: {image.message}", None
    if not isinstance(image, MlbundleError):
        return "ready", f"{image.ref} {image.config_digest[:19]}", None
    pin = next((p for p in pins if (p.architecture, p.accelerator) == (here.architecture, accelerator)), None)
    if pin is not None and here.carries(pin):
        return "ready", "the first run loads the image that the bundle carries", None
    return "image missing", image.message, image_mend(framework, here, accelerator, pin)


def image_mend(
    framework: FrameworkManifest, here: Here, accelerator: str, pin: ImagePin | None = None
) -> Mend | None:
    """Return what brings an image here: a pull where it is known from where, else a build where we have the recipe."""
    from mlbundle.runtime.image_facts import repository_of
    from mlbundle.runtime.image_target import source_of

    what = f"{framework.name} --arch {here.architecture} --accelerator {accelerator}"
    fields: dict[str, Any] = {
        "framework": framework.name,
        "version": framework.version,
        "architecture": here.architecture,
        "accelerator": accelerator,
    }
    title = f"image {framework.name} {framework.version} {accelerator}"
    if pin is not None and pin.digest is not None:
        source = f"{repository_of(pin.image)}@{pin.digest}"
        command = f"mlbundle images pull {what} --from {source}"
        return Mend("pull", f"pull the {title}", command, **fields, source=source, stated=pin.digest)
    if here.has_unpinned(framework, accelerator):
        return Mend(
            "lock", f"pin the {title} that is here", f"mlbundle images lock {framework.name}", **fields
        )
    wanted = _wanted(framework, here, accelerator)
    with suppress(ImageMissing):
        if wanted is not None:
            source = source_of(wanted)
            command = f"mlbundle images pull {what} --from {source}"
            return Mend("pull", f"pull the {title}", command, **fields, source=source, stated=wanted.stated)
    if wanted is not None and wanted.built:
        return Mend("build", f"build the {title}", f"mlbundle images build {what}", **fields)
    return None


def _wanted(framework: FrameworkManifest, here: Here, accelerator: str) -> Wanted | None:
    """Return what this mlbundle knows of the image of a framework of this version; None for one it does not know."""
    from mlbundle.runtime.image_target import want

    try:
        wanted = want(framework.name, here.architecture, accelerator, here.settings, [framework])
    except MlbundleError:
        return None
    return wanted


def _process(
    framework: FrameworkManifest, here: Here, accelerator: str, *, wants_trust: bool
) -> tuple[State, str, Mend | None]:
    made = here.environment(framework, accelerator)
    if isinstance(made, MlbundleError):
        return "unusable", made.message, None
    if wants_trust:
        return "needs --trust", "it runs code of its author, and nothing isolates that in a process", None
    if made:
        return "ready", "its Python environment is made", None
    mend = Mend(
        "environment",
        f"make the environment of {framework.name} {framework.version} {accelerator}",
        "mlbundle run --runtime process",
        framework=framework.name,
        version=framework.version,
        architecture=here.architecture,
        accelerator=accelerator,
        source=select_lock(framework, here.architecture, accelerator),
    )
    return "environment missing", "the first run makes its Python environment", mend
