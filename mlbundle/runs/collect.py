"""From the files of a worker to a result: statistics of the latencies, and the trace."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle import __version__
from mlbundle.errors import ProtocolBroken
from mlbundle.runs.folder import TRACE
from mlbundle.runs.profiles import profile_notes
from mlbundle.wire.passes import folder_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mlbundle.runs.plan import RunPlan
    from mlbundle.runs.profiles import ProfileFindings
    from mlbundle.runs.record import Findings
    from mlbundle.trace.samples import SampleColumns
    from mlbundle.trace.spans import SpanColumns
    from mlbundle.trace.tables import Table
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
    samples: SampleColumns | None = None


def write_trace(folder: Path, plan: RunPlan, findings: Findings, timeline: Timeline) -> None:
    """Write the columns of a run (`spans.npz`, `layers.npz`, `kernels.npz`) and `trace.pftrace.gz` made of them."""
    from mlbundle.runs.profile_rows import kept_documents, load_rows, profiled_during
    from mlbundle.runs.profiles import profiled_passes
    from mlbundle.trace.timeline import write_timeline

    spans = load_all_spans(folder, findings.clock_offset_ns)
    # The trace is written inside the last phase: it ends, for the trace, where the clocks were read last.
    begin_ns, end_ns = (clocks["monotonic"] for clocks in timeline.clocks)
    during_ns = profiled_during(timeline.phases, (begin_ns, end_ns))
    tables = load_rows(folder, timeline.profiles, spans, during_ns, findings.clock_offset_ns)
    findings.profiles = kept_documents(findings.profiles, timeline.profiles, tables)
    findings.files |= save_columns(folder, spans, tables)
    phases = [(name, start, end_ns if end is None else end) for name, start, end in timeline.phases]
    profiled, measured = profiled_passes(folder, timeline.profiles, spans, tables)
    write_timeline(
        folder / TRACE,
        host_phases=[phase for phase in phases if phase[0] not in WORKER_PHASES],
        worker_phases=[phase for phase in phases if phase[0] in WORKER_PHASES],
        spans=[measured],
        windows=timeline.windows,
        attributes=trace_attributes(plan),
        clocks_start=timeline.clocks[0],
        clocks_end=timeline.clocks[1],
        profiles=profiled,
        samples=timeline.samples,
        notes=[*_left_out(findings, timeline), *profile_notes(findings.profiles)],
    )
    findings.files["trace"] = TRACE


def save_columns(folder: Path, spans: SpanColumns | None, tables: Sequence[Table]) -> dict[str, str]:
    """Write spans and those tables that have rows into a run's folder; returns what a record says of the files."""
    from mlbundle.trace.spans import save_spans
    from mlbundle.trace.tables import save_table

    files = {}
    if spans is not None:
        save_spans(folder / "spans.npz", spans)
        files["spans"] = "spans.npz"
    for table in tables:
        if len(table):
            files[table.kind.name] = f"{table.kind.name}.npz"
            save_table(folder / files[table.kind.name], table)
    return files


def load_all_spans(folder: Path, clock_offset_ns: int) -> SpanColumns:
    """Return the spans of all passes on the host's clock; `pass` is the number of the pass's folder."""
    from mlbundle.trace.spans import load_spans, merge_spans

    numbered = []
    for path in sorted(folder.glob("passes/*/spans.npz")):
        part = load_spans(path)
        if clock_offset_ns:
            part = dataclasses.replace(part, start_ns=part.start_ns - clock_offset_ns)
        numbered.append((folder_number(f"passes/{path.parent.name}") or 0, part))
    return merge_spans([part for _, part in numbered], [number for number, _ in numbered])


def _left_out(findings: Findings, timeline: Timeline) -> list[str]:
    queries = findings.result["queries"]
    if timeline.traced_queries >= queries:
        return []
    return [f"the first {timeline.traced_queries} of {queries} queries are in the trace"]


WORKER_PHASES = ("load", "warm-up", "measure", "profile", "accuracy")


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


def trace_attributes(plan: RunPlan) -> dict[str, str]:
    """Return what a trace says of its run as a whole."""
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
