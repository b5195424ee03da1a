"""From the files of a worker to a result: statistics of the latencies, and the trace."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle import __version__
from mlbundle.errors import ProtocolBroken
from mlbundle.runs.folder import TRACE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mlbundle.runs.plan import RunPlan
    from mlbundle.runs.profiles import ProfileFindings
    from mlbundle.runs.record import Findings
    from mlbundle.wire.events import Window

# Two clocks that differ by less than this are the same clock, read a moment apart.
_SAME_CLOCK_NS = 5_000_000
_LATEST_NS = 1 << 62


@dataclass(frozen=True)
class Timeline:
    """What the host saw of a run: phases, windows, clocks at both ends, how many queries were traced, and profiles."""

    phases: Sequence[tuple[str, int, int | None]]
    windows: Sequence[Window]
    clocks: tuple[Mapping[str, int], Mapping[str, int]]
    traced_queries: int
    profiles: Sequence[ProfileFindings] = ()


def write_trace(folder: Path, plan: RunPlan, findings: Findings, timeline: Timeline) -> None:
    """Write `trace.pftrace.gz` and the merged `spans.npz` of a run."""
    from mlbundle.trace.model_level import write_model_trace
    from mlbundle.runs.profiles import load_profiled
    from mlbundle.trace.spans import load_spans, merge_spans, save_spans
    from mlbundle.trace.tables import KERNELS, LAYERS, save_table

    parts = [load_spans(path) for path in sorted(folder.glob("passes/*/spans.npz"))]
    if findings.clock_offset_ns:
        parts = [
            dataclasses.replace(part, start_ns=part.start_ns - findings.clock_offset_ns) for part in parts
        ]
    spans = merge_spans(parts)
    save_spans(folder / "spans.npz", spans)
    for kind in (LAYERS, KERNELS):
        table = load_profiled(folder, timeline.profiles, kind, findings.clock_offset_ns)
        if len(table):
            save_table(folder / f"{kind.name}.npz", table)
            findings.files[kind.name] = f"{kind.name}.npz"
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


_WORKER_PHASES = ("load", "warm-up", "measure", "profile", "accuracy")


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
