"""From the files of a worker to a result: statistics of the latencies, and the trace."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle import __version__
from mlbundle.errors import ProtocolBroken
from mlbundle.runs.folder import TRACE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mlbundle.runs.plan import RunPlan
    from mlbundle.runs.record import Findings
    from mlbundle.wire.events import Window

# Two clocks that differ by less than this are the same clock, read a moment apart.
_SAME_CLOCK_NS = 5_000_000
_LATEST_NS = 1 << 62
_HEADLINE = "passes/01-measure/latencies.npy"


@dataclass(frozen=True)
class MeasureFindings:
    """What the measuring pass says of itself, checked."""

    queries: int
    samples: int
    busy_ns: int
    loop_overhead_ns: float
    warm_up_queries: int
    warm_up_settled: bool
    traced_queries: int
    peak_memory_bytes: int


@dataclass(frozen=True)
class AccuracyFindings:
    """What the accuracy pass says of itself, checked."""

    metric: str
    value: float
    samples: int
    predictions_sha256: str
    outputs_sha256: str


def read_measure(values: Mapping[str, Any]) -> MeasureFindings:
    """Check what a worker says of its measuring pass. Raises ProtocolBroken."""
    return MeasureFindings(
        queries=_count(values, "queries", least=1),
        samples=_count(values, "samples", least=1),
        busy_ns=_count(values, "busy_ns", least=1),
        loop_overhead_ns=_number(values, "loop_overhead_ns"),
        warm_up_queries=_count(values, "warm_up_queries"),
        warm_up_settled=values.get("warm_up_settled") is True,
        traced_queries=_count(values, "traced_queries"),
        peak_memory_bytes=_count(values, "peak_memory_bytes"),
    )


def read_accuracy(values: Mapping[str, Any], metric: str) -> AccuracyFindings:
    """Check what a worker says of its accuracy pass. Raises ProtocolBroken."""
    return AccuracyFindings(
        metric=metric,
        value=_number(values, "value"),
        samples=_count(values, "samples", least=1),
        predictions_sha256=_digest(values, "predictions_sha256"),
        outputs_sha256=_digest(values, "outputs_sha256"),
    )


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise _not_said(name)
    return float(value)


def _count(values: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 62:
        raise _not_said(name)
    return value


def _digest(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str) or re.fullmatch("[0-9a-f]{64}", value) is None:
        raise _not_said(name)
    return value


def _not_said(name: str) -> ProtocolBroken:
    return ProtocolBroken(
        f"the worker's result lacks or garbles {name!r}", hint="see worker.log in the run's folder"
    )


def collect_measure(folder: Path, found: MeasureFindings) -> dict[str, Any]:
    """Return the `result` of a record from the latencies (int64 ns, one a query) and the pass's findings.

    Raises ProtocolBroken when the file is not what the worker said it is.
    """
    from mlbundle.analysis.statistics import summarise_latencies

    summary = summarise_latencies(_load_latencies(folder, found.queries))
    return {
        "latency_ns": summary.to_document(),
        "throughput_per_s": found.samples / found.busy_ns * 1e9,
        "queries": found.queries,
        "samples": found.samples,
        "duration_s": found.busy_ns / 1e9,
        "harness_overhead": {
            "ratio": 1 + found.loop_overhead_ns / max(1, summary.p50),
            "how": "1 + wall time of the same loop around a call that does nothing, measured in the same process "
            "right after the queries, over p50",
        },
        "warm_up": {"queries": found.warm_up_queries, "settled": found.warm_up_settled},
    }


def _load_latencies(folder: Path, queries: int) -> Any:
    import numpy as np

    try:
        # Mapped, not read: a header that promises more than the file holds is refused before memory is taken.
        latencies = np.load(folder / _HEADLINE, allow_pickle=False, mmap_mode="r")
    except Exception as error:  # NumPy lets errors of many kinds through for a stranger's bytes
        raise ProtocolBroken(
            f"the worker's latencies can't be read: {error}"[:1000], where=_HEADLINE
        ) from error
    if not isinstance(latencies, np.ndarray):
        raise ProtocolBroken("the worker's latencies are no array", where=_HEADLINE)
    if latencies.ndim != 1 or latencies.dtype != np.int64 or len(latencies) != queries or latencies.min() < 0:
        raise ProtocolBroken("the worker's latencies are not what it said of them", where=_HEADLINE)
    return latencies


@dataclass(frozen=True)
class Timeline:
    """What the host saw of a run: phases, windows, clocks at both ends, and how many queries were traced."""

    phases: Sequence[tuple[str, int, int | None]]
    windows: Sequence[Window]
    clocks: tuple[Mapping[str, int], Mapping[str, int]]
    traced_queries: int


def write_trace(folder: Path, plan: RunPlan, findings: Findings, timeline: Timeline) -> None:
    """Write `trace.pftrace.gz` and the merged `spans.npz` of a run."""
    from mlbundle.trace.model_level import write_model_trace
    from mlbundle.trace.spans import load_spans, merge_spans, save_spans

    parts = [load_spans(path) for path in sorted(folder.glob("passes/*/spans.npz"))]
    if findings.clock_offset_ns:
        parts = [
            dataclasses.replace(part, start_ns=part.start_ns - findings.clock_offset_ns) for part in parts
        ]
    spans = merge_spans(parts)
    save_spans(folder / "spans.npz", spans)
    # The trace is written inside the last phase: it ends, for the trace, where the clocks were read last.
    end_ns = timeline.clocks[1]["monotonic"]
    phases = [(name, start, end_ns if end is None else end) for name, start, end in timeline.phases]
    queries = findings.result["queries"]
    note = (
        None
        if timeline.traced_queries >= queries
        else f"the first {timeline.traced_queries} of {queries} queries are in the trace"
    )
    write_model_trace(
        folder / TRACE,
        host_phases=[phase for phase in phases if phase[0] not in _WORKER_PHASES],
        worker_phases=[phase for phase in phases if phase[0] in _WORKER_PHASES],
        spans=[spans],
        windows=timeline.windows,
        attributes=_attributes(plan),
        clocks_start=timeline.clocks[0],
        clocks_end=timeline.clocks[1],
        truncated=note,
    )
    findings.files |= {"trace": TRACE, "spans": "spans.npz"}


_WORKER_PHASES = ("load", "warm-up", "measure", "accuracy")


def clock_offset_ns(worker: Mapping[str, int], host: Mapping[str, int]) -> int:
    """Return by how much the worker's monotonic clock is ahead of ours, by way of the real-time clock.

    Zero where both are the same clock, as in every container of this machine. Raises ProtocolBroken for clocks that
    can't be.
    """
    if "monotonic" not in worker or "realtime" not in worker:
        return 0
    if not all(0 <= worker[name] < _LATEST_NS for name in ("monotonic", "realtime")):
        raise ProtocolBroken("the worker's clocks can't be", where="hello")
    offset = (worker["monotonic"] - worker["realtime"]) - (host["monotonic"] - host["realtime"])
    return 0 if abs(offset) < _SAME_CLOCK_NS else offset


def _attributes(plan: RunPlan) -> dict[str, str]:
    image = plan.image
    return {
        "run_id": plan.run_id,
        "bundle": f"{plan.model.name}:{plan.model.version}",
        "manifest_digest": plan.bundle.manifest_digest,
        "set_digest": plan.bundle.set_digest,
        "framework": f"{plan.framework.name} {plan.framework.version}",
        "runtime": plan.runtime.name,
        "image": "" if image is None else f"{image.ref} {image.config_digest}",
        "scenario": plan.options.scenario,
        "trace_level": plan.options.trace_level,
        "mlbundle_version": __version__,
    }
