"""The run record: one JSON document that says what was run, where, how, and what came out.

Records are shared: the environment is an allow-list, and home folders are written as `~`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mlbundle import __version__
from mlbundle.manifest.framework import distribution_names
from mlbundle.runs.environment import build_environment
from mlbundle.runs.redaction import redact, redacted
from mlbundle.runs.seen import passes_of_folder, phases_of, seen_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mlbundle.analysis.claims import AccuracyCheck
    from mlbundle.runs.environment import Surroundings
    from mlbundle.runs.plan import RunPlan
    from mlbundle.wire.events import Hello

SCHEMA = "mlbundle/run/v1"
_LONGEST_VERSION = 128


@dataclass
class Findings:
    """What is known of a run so far; filled while it goes, written down however it ends.

    `framework` is what the framework said of itself: a stranger's words, checked when they are written down.
    """

    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    hello: Hello | None = None
    clock_offset_ns: int = 0
    surroundings: Surroundings | None = None
    framework: Any = None
    result: dict[str, Any] = field(default_factory=dict)
    accuracy: AccuracyCheck | None = None
    outputs: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    validity_reasons: list[str] = field(default_factory=list)
    phases_s: dict[str, float] = field(default_factory=dict)
    profiles: list[dict[str, Any]] = field(default_factory=list)
    passes: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    seen: dict[str, Any] | None = None


def build_record(plan: RunPlan, status: str, findings: Findings) -> dict[str, Any]:
    """Return the record of a run that ended with `status` (completed, failed, cancelled)."""
    options, image = plan.options, plan.image
    isolation = plan.runtime.describe()
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "run_id": plan.run_id,
        "status": status,
        "validity": {
            "valid": status == "completed" and not findings.validity_reasons,
            "reasons": findings.validity_reasons if status == "completed" else [f"the run is {status}"],
        },
        "bundle": {
            "name": plan.model.name,
            "version": plan.model.version,
            "manifest_digest": plan.bundle.manifest_digest,
            "set_digest": plan.bundle.set_digest,
        },
        "framework": {
            "name": plan.framework.name,
            "version": framework_version(plan, findings),
            "variant": plan.variant,
        },
        "architecture": plan.architecture,
        "accelerator": options.accelerator,
        "runtime": plan.runtime.name,
        "isolation": isolation["isolation"],
        "image": None
        if image is None
        else {
            "ref": image.ref,
            "index_digest": image.index_digest,
            "manifest_digest": image.manifest_digest,
            "config_digest": image.config_digest,
        },
        "worker": {"version": plan.worker.version, "sha256": plan.worker.sha256},
        "environment": build_environment(
            plan, findings.hello, findings.surroundings, findings.framework, isolation
        ),
        "scenario": {"name": options.scenario, "options": _told(options.scenario_options or {})},
        "trace_level": options.trace_level,
        "result": findings.result or None,
        "accuracy": None
        if findings.accuracy is None
        else {**findings.accuracy.to_document(), **findings.outputs},
        "resources": findings.resources,
        "passes": findings.passes,
        "profiles": findings.profiles,
        "seen": findings.seen,
        "phases_s": findings.phases_s,
        "files": findings.files,
        "error": redacted(findings.error),
        "command": " ".join(redact(part) for part in options.command),
        "started_at": _iso(findings.started_at),
        "finished_at": _iso(datetime.now(UTC)),
        "mlbundle_version": __version__,
    }
    if options.sweep is not None:
        record["sweep"] = options.sweep.to_document()
    return record


def partial_record(
    run_id: str, job: Mapping[str, Any], first_event: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """Return the record of a run whose owner died: what its folder still says."""
    name, _, version = str(first_event.get("message", "")).rpartition(":")
    stamp = datetime.strptime(run_id[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        "status": "partial",
        "validity": {"valid": False, "reasons": ["the process that drove the run died before its end"]},
        "bundle": {"name": name or "unknown", "version": version, "manifest_digest": "", "set_digest": ""},
        "framework": {"name": str((job.get("model") or {}).get("predictor", "unknown")), "version": ""},
        "runtime": "unknown",
        "isolation": "unknown",
        "image": None,
        "worker": None,
        "environment": {},
        "scenario": job.get("scenario") or {"name": "unknown", "options": {}},
        "trace_level": str(job.get("trace_level", "none")),
        "result": None,
        "accuracy": None,
        "resources": {},
        "passes": passes_of_folder(folder),
        "profiles": [],
        "seen": seen_of(folder),
        "phases_s": phases_of(folder),
        "files": {},
        "error": None,
        "command": "",
        "started_at": _iso(stamp),
        "finished_at": None,
        "mlbundle_version": __version__,
    }


def _told(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a scenario for the record; of many arrivals only how many and which (the job has them)."""
    told = dict(options)
    arrivals = told.get("arrivals")
    if isinstance(arrivals, list):
        digest = hashlib.sha256(" ".join(map(str, arrivals)).encode()).hexdigest()
        told["arrivals"] = f"{len(arrivals)} arrivals sha256:{digest}"
    return told


def framework_version(plan: RunPlan, findings: Findings) -> str:
    """Return the version that really ran: the one installed in the worker's environment, else what the framework says.

    A framework that comes with its bundle is of the version that its manifest states; of another one that says nothing
    it is unknown.
    """
    installed = (findings.hello.facts.get("distributions") or {}) if findings.hello is not None else {}
    for name in distribution_names(plan.framework.name):
        if name in installed:
            return str(installed[name])
    said = findings.framework.get("version") if isinstance(findings.framework, dict) else None
    if isinstance(said, str):
        return redact(said[:_LONGEST_VERSION])
    return plan.framework.version if plan.model.predictor is not None else "unknown"


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
