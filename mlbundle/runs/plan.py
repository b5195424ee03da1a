"""From a reference and options to a plan: which bundle, which image or environment, which job. Runs nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import EngineUnavailable, ImageMissing, TrustRequired, UsageError
from mlbundle.platforms import this_architecture
from mlbundle.resources import built_in_models, resource_folder
from mlbundle.runs.folder import new_run_id
from mlbundle.runs.references import Reference, resolve
from mlbundle.runtime.archive import WorkerArchive, worker_archive
from mlbundle.runtime.base import Launch, Limits
from mlbundle.store.bundles import BundleStore, StoredBundle
from mlbundle.wire.job import Job, LimitsJob, ModelJob

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from mlbundle.config import Settings
    from mlbundle.manifest.framework import FrameworkManifest
    from mlbundle.manifest.model import ModelManifest, TensorSpec
    from mlbundle.runs.network import Network
    from mlbundle.runtime.base import Runtime
    from mlbundle.runtime.images import ResolvedImage

RUNTIMES = ("auto", "docker", "process")
SCENARIOS = ("online",)
# What loads a graph: only these formats hold no program of their own.
_DATA_ONLY_PREDICTORS = ("onnxruntime",)


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for."""

    reference: str
    runtime: str = "auto"
    accelerator: str = "cpu"
    scenario: str = "online"
    scenario_options: Mapping[str, Any] | None = None
    accuracy: bool = True
    trace_level: str = "model"
    threads: int = 1
    cpus: tuple[int, ...] = ()
    memory_bytes: int = 2 << 30
    hang_timeout_s: float = 120.0
    seed: int = 0
    trust: bool = False
    python: Path | None = None
    concurrent: bool = False
    network: Network | None = None
    dry_run: bool = False
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunPlan:
    """Everything decided before a worker starts."""

    run_id: str
    options: RunOptions
    bundle: StoredBundle
    model: ModelManifest
    framework: FrameworkManifest
    runtime: Runtime
    image: ResolvedImage | None
    worker: WorkerArchive
    limits: Limits
    phases: tuple[tuple[str, int, int], ...] = ()
    client: Any = None

    def launch(self, log: Path) -> Launch:
        """Return what the runtime is asked to start."""
        return Launch(
            run_id=self.run_id, worker=self.worker, assets=self.bundle.folder, log=log, limits=self.limits
        )

    def job(self, launch: Launch) -> Job:
        """Return what the worker is asked to do."""
        return _job(self, launch)


def make_plan(
    options: RunOptions, settings: Settings, *, report: Callable[[str], None] = lambda _line: None
) -> RunPlan:
    """Decide everything about a run; `report` hears of things that take time.

    Raises UsageError, ManifestInvalid, IntegrityError or EnvironmentLacks.
    """
    if options.scenario not in SCENARIOS:
        raise UsageError(f"unknown scenario {options.scenario!r}", hint=f"one of: {', '.join(SCENARIOS)}")
    begun_ns = time.monotonic_ns()
    reference = resolve(options.reference, settings)
    bundle = materialise(reference, settings, options.network, report)
    model, framework = _manifests(bundle)
    trusted = options.trust or _is_built_in(bundle, model.name, settings)
    planned_ns = time.monotonic_ns()
    runtime, image, client = _choose_runtime(
        options, settings, bundle, model, framework, trusted=trusted, report=report
    )
    phases = (("plan", begun_ns, planned_ns), ("image", planned_ns, time.monotonic_ns()))
    limits = Limits(
        memory_bytes=options.memory_bytes,
        pids=settings.pids,
        out_bytes=settings.out_bytes,
        scratch_bytes=settings.scratch_bytes,
        threads=options.threads,
        cpus=options.cpus,
    )
    return RunPlan(
        run_id=new_run_id(),
        options=options,
        bundle=bundle,
        model=model,
        framework=framework,
        runtime=runtime,
        image=image,
        worker=worker_archive(settings.cache_dir),
        limits=limits,
        phases=phases,
        client=client,
    )


def materialise(
    reference: Reference,
    settings: Settings,
    network: Network | None = None,
    report: Callable[[str], None] = lambda _line: None,
) -> StoredBundle:
    """Return the verified files of a reference; a manifest is packed first, what is far away comes to the library."""
    store = BundleStore(settings.data_dir)
    if reference.kind == "bundle":
        return store.materialise(reference.path)
    from mlbundle.runs.opening import bring, open_entry, open_found

    if reference.kind == "manifest":
        with open_found(reference, settings) as reader:
            return store.materialise_reader(reader)
    with open_entry(bring(reference, settings, network, report=report), settings) as reader:
        return store.materialise_reader(reader)


def _manifests(bundle: StoredBundle) -> tuple[ModelManifest, FrameworkManifest]:
    from mlbundle.manifest.load import load_framework, load_model

    model = load_model(bundle.folder / "mlbundle" / "model.yml").require()
    framework = load_framework(bundle.folder / "mlbundle" / "framework.yml").require()
    return model, framework


def _is_built_in(bundle: StoredBundle, name: str, settings: Settings) -> bool:
    """Whether the bundle is, to the last byte, one that we ship: then its code is ours."""
    folder = built_in_models().get(name)
    if folder is None:
        return False
    ours = materialise(Reference(kind="manifest", text=name, path=folder), settings)
    return ours.manifest_digest == bundle.manifest_digest


def _choose_runtime(
    options: RunOptions,
    settings: Settings,
    bundle: StoredBundle,
    model: ModelManifest,
    framework: FrameworkManifest,
    *,
    trusted: bool,
    report: Callable[[str], None],
) -> tuple[Runtime, ResolvedImage | None, Any]:
    if options.runtime not in RUNTIMES:
        raise UsageError(f"unknown runtime {options.runtime!r}", hint=f"one of: {', '.join(RUNTIMES)}")
    if options.runtime == "docker" and options.python is not None:
        raise UsageError(
            "--python is for the process runtime; a container has its own", hint="leave one of them out"
        )
    if options.runtime != "process" and options.python is None:
        try:
            return _docker(options, settings, bundle, framework, report)
        except (EngineUnavailable, ImageMissing) as error:
            if options.runtime == "docker":
                raise
            report(f"no container: {error.message}")
            if error.hint:
                report(f"  ({error.hint})")
    return _process(options, settings, model, framework, trusted=trusted, report=report), None, None


def _docker(
    options: RunOptions,
    settings: Settings,
    bundle: StoredBundle,
    framework: FrameworkManifest,
    report: Callable[[str], None],
) -> tuple[Runtime, ResolvedImage, Any]:
    from mlbundle.runs.embedded import load_embedded
    from mlbundle.runtime.docker import DockerRuntime
    from mlbundle.runtime.images import engine_client, resolve_image

    client = engine_client()
    pins, architecture = bundle.images, this_architecture()
    try:
        loaded_id = load_embedded(
            options.reference, pins, options.accelerator, settings, client, report=report
        )
        image = resolve_image(
            framework, architecture, options.accelerator, settings, client, pins=pins, loaded_id=loaded_id
        )
    except BaseException:
        client.close()
        raise
    return DockerRuntime(client, image), image, client


def _process(
    options: RunOptions,
    settings: Settings,
    model: ModelManifest,
    framework: FrameworkManifest,
    *,
    trusted: bool,
    report: Callable[[str], None],
) -> Runtime:
    from mlbundle.manifest.select import select_lock
    from mlbundle.runtime.environments import ensure_environment
    from mlbundle.runtime.process import ProcessRuntime

    _check_trust(model, trusted=trusted)
    if options.python is not None:
        # Not resolved: an environment's Python is a link, and what it is the Python of lies beside the link.
        python = options.python.absolute()
        if not python.is_file():
            raise UsageError(f"there is no Python at {python}")
        return ProcessRuntime(python, {"python": str(python)}, isolation="unpinned")
    lock = _lock_path(select_lock(framework, this_architecture(), options.accelerator))
    environment = ensure_environment(
        settings.cache_dir, framework.name.lower(), lock, make=not options.dry_run, report=report
    )
    described = {"lock": lock.name, "lock_sha256": environment.lock_sha256}
    return ProcessRuntime(environment.python, described, isolation="hash-locked")


def _lock_path(name: str) -> Path:
    """Return a lock that we ship; a manifest can't name any other file."""
    root = resource_folder("containers")
    path = (root.parent / name).resolve()
    if not path.is_relative_to(root.resolve()) or not path.is_file():
        raise UsageError(
            f"the framework manifest names a lock that is not installed: {name!r}",
            hint="use the docker runtime, or --python",
        )
    return path


def _check_trust(model: ModelManifest, *, trusted: bool) -> None:
    predictor = model.framework.name.lower()
    program = model.carries_code or predictor not in _DATA_ONLY_PREDICTORS
    if program and not trusted:
        what = "Python code" if model.carries_code else f"a {predictor} model, which is a program"
        raise TrustRequired(
            f"{model.name} carries {what}, and nothing isolates it here",
            hint="run it in a container (--runtime docker), or say --trust if you trust its author",
        )


def _job(plan: RunPlan, launch: Launch) -> Job:
    model, options = plan.model, plan.options
    files = {"graph": model.model.graph_path}
    if model.model.weights_path is not None:
        files["weights"] = model.model.weights_path
    code = {"preprocess": model.preprocess, "postprocess": model.postprocess}
    expected = model.expected.accuracy if model.expected is not None else None
    metric = expected.metric if expected is not None else "top1"
    has_labels = model.dataset is not None and (
        model.dataset.format != "npz" or model.dataset.labels is not None
    )
    return Job(
        run_id=plan.run_id,
        model=ModelJob(
            predictor=model.framework.name.lower(),
            files=files,
            inputs=tuple(_tensor(spec) for spec in model.inputs),
            outputs=tuple(_tensor(spec) for spec in model.outputs),
            code={side: text for side, text in code.items() if text is not None} or None,
        ),
        dataset=_dataset(model),
        scenario={"name": options.scenario, "options": dict(options.scenario_options or {})},
        accuracy={"metric": metric} if options.accuracy and has_labels else None,
        trace_level=options.trace_level,
        limits=LimitsJob(
            threads=options.threads,
            cpus=options.cpus,
            memory_bytes=options.memory_bytes,
            out_bytes=plan.limits.out_bytes,
        ),
        seed=options.seed,
        paths=plan.runtime.paths(launch),
    )


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.layer_name,
        "layer_name": spec.layer_name,
        "type": spec.type,
        "element_type": spec.element_type,
        "shape": None if spec.shape is None else list(spec.shape),
        "steps": [{step.name: dict(step.params)} for step in spec.steps],
    }


def _dataset(model: ModelManifest) -> dict[str, Any] | None:
    if model.dataset is None:
        return None
    return {
        "format": model.dataset.format,
        "path": model.dataset.path,
        "samples": model.dataset.samples,
        "inputs": dict(model.dataset.inputs),
        "labels": model.dataset.labels,
        "index": model.dataset.index,
    }
