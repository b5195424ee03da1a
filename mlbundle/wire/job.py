"""The job: everything the worker is asked to do, as one JSON document.

The host builds it from a plan; the worker reads it from its first frame. Neither side trusts the other's
document before `job_from_document` has looked at it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Mapping

SCHEMA = "mlbundle/job/v1"
ASSETS_IN_CONTAINER = "/mlbundle/assets"
WORKER_IN_CONTAINER = "/mlbundle/worker.pyz"
HANG_TIMEOUT_S = 120.0
TRACE_LEVELS = ("none", "model", "framework", "system", "full")


class JobError(ValueError):
    """The document is no job of this protocol."""


@dataclass(frozen=True)
class ModelJob:
    """What to load and how its inputs and outputs look; paths are relative to the assets.

    `predictor` names an entry point of the worker's environment; `predictor_file`, when there is one, is the bundle's
    own predictor and is taken instead.
    """

    predictor: str
    files: Mapping[str, str]
    inputs: tuple[Mapping[str, Any], ...]
    outputs: tuple[Mapping[str, Any], ...]
    code: Mapping[str, str] | None = None
    predictor_file: str | None = None


@dataclass(frozen=True)
class LimitsJob:
    """What the worker may use; `cpus` empty means: no pinning.

    `hang_timeout_s` is how long the host waits for a silent worker.
    """

    threads: int = 1
    cpus: tuple[int, ...] = ()
    memory_bytes: int = 2 << 30
    out_bytes: int = 1 << 30
    hang_timeout_s: float = HANG_TIMEOUT_S


@dataclass(frozen=True)
class Job:
    """One evaluation. `accuracy` is None when nobody asks for it, `dataset` when the bundle has none.

    `accelerator` is what the framework is to run on: with `gpu` a predictor that finds none fails.
    """

    run_id: str
    model: ModelJob
    dataset: Mapping[str, Any] | None
    scenario: Mapping[str, Any]
    accuracy: Mapping[str, Any] | None
    trace_level: str = "model"
    limits: LimitsJob = field(default_factory=LimitsJob)
    seed: int = 0
    paths: Mapping[str, str] = field(default_factory=dict)
    protocol: int = 1
    accelerator: str = "cpu"

    def to_document(self) -> dict[str, Any]:
        """Return the job as the JSON document of `schemas/job.schema.json`."""
        body = dataclasses.asdict(self)
        return {"schema": SCHEMA, "protocol": body.pop("protocol"), **body}


def job_from_document(document: Mapping[str, Any]) -> Job:
    """Return the job of a JSON document; raises JobError when it is none, or of another protocol."""
    if document.get("schema") != SCHEMA:
        raise JobError("the document is no {}: schema {!r}".format(SCHEMA, document.get("schema")))
    if document.get("protocol") != 1:
        raise JobError("protocol {!r} is not spoken here, only 1".format(document.get("protocol")))
    try:
        model = document["model"]
        limits = document["limits"]
        job = Job(
            run_id=str(document["run_id"]),
            model=ModelJob(
                predictor=str(model["predictor"]),
                files=dict(model["files"]),
                inputs=tuple(model["inputs"]),
                outputs=tuple(model["outputs"]),
                code=model.get("code"),
                predictor_file=model.get("predictor_file"),
            ),
            dataset=document["dataset"],
            scenario=dict(document["scenario"]),
            accuracy=document["accuracy"],
            trace_level=document["trace_level"],
            limits=LimitsJob(
                threads=int(limits["threads"]),
                cpus=tuple(int(cpu) for cpu in limits["cpus"]),
                memory_bytes=int(limits["memory_bytes"]),
                out_bytes=int(limits["out_bytes"]),
                hang_timeout_s=float(limits.get("hang_timeout_s", HANG_TIMEOUT_S)),
            ),
            seed=int(document["seed"]),
            paths=dict(document["paths"]),
            accelerator=str(document.get("accelerator", "cpu")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise JobError("the job lacks or garbles a part: {!r}".format(error)) from None
    if job.trace_level not in TRACE_LEVELS:
        raise JobError("unknown trace level {!r}".format(job.trace_level))
    return job
