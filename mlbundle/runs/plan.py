"""From a reference and options to a plan: which bundle, which image or environment, which job. Runs nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import BundleCorrupt
from mlbundle.manifest.select import framework_matches, select_variant, variant_name
from mlbundle.resources import built_in_models
from mlbundle.runs.folder import new_run_id
from mlbundle.runs.placement import Evaluated, place
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
    from mlbundle.runs.sweep_attempt import SweepAttempt
    from mlbundle.runtime.base import Runtime
    from mlbundle.runtime.images import ResolvedImage


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for.

    `framework` is a variant's name or its framework's, None the top level of the manifest; `architecture` None is
    that of the machine.
    """

    reference: str
    framework: str | None = None
    runtime: str = "auto"
    architecture: str | None = None
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
    sweep: SweepAttempt | None = None


@dataclass(frozen=True)
class RunPlan:
    """Everything decided before a worker starts; `architecture` is what it runs as, by emulation where it says so."""

    run_id: str
    options: RunOptions
    bundle: StoredBundle
    model: ModelManifest
    variant: str
    framework: FrameworkManifest
    runtime: Runtime
    image: ResolvedImage | None
    worker: WorkerArchive
    limits: Limits
    phases: tuple[tuple[str, int, int], ...] = ()
    client: Any = None
    architecture: str = ""
    emulated: bool = False

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
    begun_ns = time.monotonic_ns()
    reference = resolve(options.reference, settings)
    bundle = materialise(reference, settings, options.network, report)
    evaluated = _evaluated(bundle, options, settings)
    planned_ns = time.monotonic_ns()
    placement = place(options, settings, evaluated, report)
    where = "environment" if placement.runtime.name == "process" else "image"
    phases = (("plan", begun_ns, planned_ns), (where, planned_ns, time.monotonic_ns()))
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
        model=evaluated.model,
        variant=evaluated.variant,
        framework=evaluated.framework,
        runtime=placement.runtime,
        image=placement.image,
        worker=worker_archive(settings.cache_dir),
        limits=limits,
        phases=phases,
        client=placement.client,
        architecture=placement.architecture,
        emulated=placement.emulated,
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


def _evaluated(bundle: StoredBundle, options: RunOptions, settings: Settings) -> Evaluated:
    """Read the manifests of a bundle: the model in the form that is wanted, and that form's framework."""
    from mlbundle.bundle.layout import FRAMEWORK_PATH, MODEL_PATH, further_framework_path
    from mlbundle.manifest.load import load_framework, load_model

    whole = load_model(bundle.folder / MODEL_PATH).require()
    model = select_variant(whole, options.framework)
    key, top = model.framework.name.lower(), whole.framework.name.lower()
    path = FRAMEWORK_PATH if key == top else further_framework_path(key)
    framework = load_framework(bundle.folder / path).require()
    # Packing sees to it; a bundle of somebody else may say anything.
    if not framework_matches(model.framework, framework):
        raise BundleCorrupt(
            f"the model needs {model.framework.name} {model.framework.version}, and the framework manifest is of "
            f"{framework.name} {framework.version}",
            where=f"{options.reference}!{path}",
        )
    return Evaluated(
        bundle=bundle,
        model=model,
        framework=framework,
        variant=variant_name(whole, options.framework),
        further=None if key == top else key,
        trusted=options.trust or _is_built_in(bundle, model.name, settings),
    )


def _is_built_in(bundle: StoredBundle, name: str, settings: Settings) -> bool:
    """Whether the bundle is, to the last byte, one that we ship: then its code is ours."""
    folder = built_in_models().get(name)
    if folder is None:
        return False
    ours = materialise(Reference(kind="manifest", text=name, path=folder), settings)
    return ours.manifest_digest == bundle.manifest_digest


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
            predictor_file=model.predictor,
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
            hang_timeout_s=options.hang_timeout_s,
        ),
        seed=options.seed,
        paths=plan.runtime.paths(launch),
        accelerator=options.accelerator,
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
