"""Where a run takes place: a container of which image, or which Python environment of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import AcceleratorMissing, EngineUnavailable, ImageMissing, TrustRequired, UsageError
from mlbundle.manifest.locks import installed_lock, installed_locks
from mlbundle.manifest.select import select_image, select_lock
from mlbundle.platforms import ARCHITECTURES, normalise_architecture, this_architecture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mlbundle.bundle.document import ImagePin
    from mlbundle.config import Settings
    from mlbundle.manifest.framework import FrameworkManifest
    from mlbundle.manifest.model import ModelManifest
    from mlbundle.runs.plan import RunOptions
    from mlbundle.runtime.base import Runtime
    from mlbundle.runtime.images import ResolvedImage
    from mlbundle.store.bundles import StoredBundle

    Report = Callable[[str], None]

RUNTIMES = ("auto", "docker", "process")
# What loads a graph: only these formats hold no program of their own.
_DATA_ONLY_PREDICTORS = ("onnxruntime",)


@dataclass(frozen=True)
class Evaluated:
    """What is evaluated: a bundle, its model in one form, that form's framework, and whether its code is trusted.

    `variant` is the name of the form; `further` that of its framework in the bundle, None for the top level's.
    """

    bundle: StoredBundle
    model: ModelManifest
    framework: FrameworkManifest
    variant: str
    further: str | None
    trusted: bool

    def pins(self) -> list[ImagePin]:
        """Return the images that the bundle pins for the framework."""
        return [pin for pin in self.bundle.images if pin.framework == self.further]


@dataclass(frozen=True)
class Placement:
    """A runtime that is ready; `architecture` is what the worker runs as, `emulated` where the machine is another."""

    runtime: Runtime
    architecture: str
    emulated: bool = False
    image: ResolvedImage | None = None
    client: Any = None


def place(options: RunOptions, settings: Settings, what: Evaluated, report: Report) -> Placement:
    """Decide where a run takes place.

    `auto` is a container where an image is ready, else a process. Raises UsageError for what makes no sense together,
    EnvironmentLacks for what this machine does not have, TrustRequired.
    """
    _check_options(options)
    foreign = _foreign(options)
    if options.runtime != "process" and options.python is None:
        try:
            return _in_container(options, settings, what, report)
        except (EngineUnavailable, ImageMissing) as error:
            if options.runtime == "docker" or foreign:
                raise
            report(f"no container: {error.message}")
            if error.hint:
                report(f"  ({error.hint})")
    return _as_process(options, settings, what, report)


def _check_options(options: RunOptions) -> None:
    if options.runtime not in RUNTIMES:
        raise UsageError(f"unknown runtime {options.runtime!r}", hint=f"one of: {', '.join(RUNTIMES)}")
    if options.architecture is not None and normalise_architecture(options.architecture) not in ARCHITECTURES:
        raise UsageError(
            f"unknown architecture {options.architecture!r}", hint=f"one of: {', '.join(ARCHITECTURES)}"
        )
    if options.runtime == "docker" and options.python is not None:
        raise UsageError(
            "--python is for the process runtime; a container has its own", hint="leave one of them out"
        )
    if _foreign(options) and (options.runtime == "process" or options.python is not None):
        raise UsageError(
            f"a process runs as {this_architecture()}, what this machine is, and not as {options.architecture}",
            hint="another architecture needs a container: --runtime docker",
        )


def _foreign(options: RunOptions) -> bool:
    return (
        options.architecture is not None
        and normalise_architecture(options.architecture) != this_architecture()
    )


def _in_container(options: RunOptions, settings: Settings, what: Evaluated, report: Report) -> Placement:
    from mlbundle.runtime.docker import DockerRuntime
    from mlbundle.runtime.emulation import require_emulator
    from mlbundle.runtime.images import engine_client

    gpus = options.accelerator == "gpu"
    if gpus and not _engine_is_remote():
        # First: no image helps a machine that has no driver.
        _check_driver(what.framework, normalise_architecture(options.architecture or this_architecture()))
    client = engine_client()
    try:
        native = normalise_architecture(str(client.version().get("Arch") or this_architecture()))
        architecture = normalise_architecture(options.architecture or native)
        select_image(what.framework, architecture, options.accelerator)
        if gpus:
            _check_gpu_engine(client)
        image = _image(options, settings, what, architecture, client=client, report=report)
        if architecture != native:
            require_emulator(client, architecture)
            report(f"{architecture} is emulated on {native}: the times say nothing about {architecture}")
    except BaseException:
        client.close()
        raise
    # Where nothing is emulated the engine needs no word about it, and older ones would not understand it.
    platform = f"linux/{architecture}" if architecture != native else None
    runtime = DockerRuntime(client, image, platform=platform, gpus=gpus)
    return Placement(runtime, architecture, emulated=architecture != native, image=image, client=client)


def _engine_is_remote() -> bool:
    """Whether the engine is on another machine, into whose drivers we can't look."""
    host = os.environ.get("DOCKER_HOST", "")
    return bool(host) and not host.startswith(("unix:", "npipe:"))


def _image(
    options: RunOptions,
    settings: Settings,
    what: Evaluated,
    architecture: str,
    *,
    client: Any,
    report: Report,
) -> ResolvedImage:
    """Return the image for an architecture, loaded from the bundle if that carries it."""
    from mlbundle.runs.embedded import load_embedded
    from mlbundle.runtime.images import resolve_image

    pins = what.pins()
    loaded_id = load_embedded(
        options.reference,
        pins,
        options.accelerator,
        settings,
        client,
        architecture=architecture,
        framework=what.further,
        report=report,
    )
    return resolve_image(
        what.framework, architecture, options.accelerator, settings, client, pins=pins, loaded_id=loaded_id
    )


def _check_gpu_engine(client: Any) -> None:
    from mlbundle.runtime.devices import engine_has_gpu_runtime

    if not engine_has_gpu_runtime(client.info()):
        raise AcceleratorMissing(
            "the container engine can't give a GPU to a container",
            hint="install the NVIDIA Container Toolkit and restart the engine, or use --runtime process",
        )


def _as_process(options: RunOptions, settings: Settings, what: Evaluated, report: Report) -> Placement:
    from mlbundle.runtime.environments import ensure_environment
    from mlbundle.runtime.process import ProcessRuntime

    _check_trust(what)
    limit_memory = options.accelerator != "gpu"
    if options.python is not None:
        # Not resolved: an environment's Python is a link, and what it is the Python of lies beside the link.
        python = options.python.absolute()
        if not python.is_file():
            raise UsageError(f"there is no Python at {python}")
        runtime = ProcessRuntime.of_existing(python, what.framework.name, limit_memory=limit_memory)
        return Placement(runtime, this_architecture())
    if options.accelerator == "gpu":
        _check_driver(what.framework, this_architecture())
    lock = _lock_path(select_lock(what.framework, this_architecture(), options.accelerator))
    environment = ensure_environment(
        settings.cache_dir, what.framework.name.lower(), lock, make=not options.dry_run, report=report
    )
    runtime = ProcessRuntime.of_environment(environment, lock.name, limit_memory=limit_memory)
    return Placement(runtime, this_architecture())


def _check_driver(framework: FrameworkManifest, architecture: str) -> None:
    from mlbundle.runtime.devices import check_driver, nvidia_driver

    choice = framework.containers.get(architecture, {}).get("gpu")
    check_driver(None if choice is None else choice.driver, nvidia_driver())


def _lock_path(name: str) -> Path:
    """Return a lock that we ship; a manifest can't name any other file."""
    path = installed_lock(name)
    if path is None:
        raise UsageError(
            f"the framework manifest names a lock that is not installed: {name!r}",
            context=["there are:", *installed_locks()],
            hint="environments are made of locks that come with mlbundle alone: `--python PATH` runs it in a Python of "
            "your own, `--runtime docker` in a container",
        )
    return path


def runs_code(model: ModelManifest) -> bool:
    """Whether a model in one form runs code of its author: Python of its own, or a graph that is a program."""
    return model.carries_code or model.framework.name.lower() not in _DATA_ONLY_PREDICTORS


def _check_trust(what: Evaluated) -> None:
    model = what.model
    if runs_code(model) and not what.trusted:
        predictor = model.framework.name.lower()
        carried = "Python code" if model.carries_code else f"a {predictor} model, which is a program"
        raise TrustRequired(
            f"{model.name} carries {carried}, and nothing isolates it here",
            hint="run it in a container (--runtime docker), or say --trust if you trust its author",
        )
