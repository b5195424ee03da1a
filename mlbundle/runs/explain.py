"""What a plan would do, without doing it: for `--dry-run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.runs.folder import WORKER_LOG

if TYPE_CHECKING:
    from mlbundle.config import Settings
    from mlbundle.runs.plan import RunPlan


def explain(plan: RunPlan, settings: Settings) -> dict[str, Any]:
    """Return bundle, runtime, exact image digest, container arguments and job of a plan."""
    launch = plan.launch(settings.runs_dir / plan.run_id / WORKER_LOG)
    arguments = getattr(plan.runtime, "container_arguments", None)
    image = plan.image
    return {
        "schema": "mlbundle/plan/v1",
        "run_id": plan.run_id,
        "bundle": f"{plan.model.name}:{plan.model.version} {plan.bundle.manifest_digest}",
        "variant": plan.variant,
        "framework": f"{plan.framework.name} {plan.framework.version}",
        "runtime": plan.runtime.name,
        "architecture": plan.architecture,
        "accelerator": plan.options.accelerator,
        "emulated": plan.emulated,
        "isolation": plan.runtime.describe()["summary"],
        "image": None if image is None else f"{image.ref} {image.config_digest}",
        "worker": f"{plan.worker.version} sha256:{plan.worker.sha256}",
        "container": None if arguments is None else arguments(launch),
        "job": plan.job(launch).to_document(),
    }
