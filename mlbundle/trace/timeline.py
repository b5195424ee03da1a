"""The trace of a run: phases, queries, pipeline operators, throughput; the layers and kernels of profiles; counters.

host      run         the run as a whole, its phases inside it
worker    phases      what the worker was doing
          notes       what was left out
          pipeline    query (predict inside it), then one track per operator
          windows     counters: throughput, p50, p99
          profile: framework, profile: system, profile: serial    see `profiled`
counters  what was sampled from outside; see `counters`
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlbundle.trace.columns import SliceColumns
from mlbundle.trace.counters import write_counters
from mlbundle.trace.flows import QUERY_TRACK, flow_chains
from mlbundle.trace.nesting import MAX_LANES
from mlbundle.trace.perfetto import trace_writer
from mlbundle.trace.profiled import write_profiles
from mlbundle.trace.spans import LEVELS, merge_spans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mlbundle.trace.perfetto import Process, TraceWriter, Track
    from mlbundle.trace.profiled import ProfiledPass
    from mlbundle.trace.samples import SampleColumns
    from mlbundle.trace.spans import SpanColumns
    from mlbundle.wire.events import Window

    RunPhase = tuple[str, int, int | None]

_PHASE = "phase"
_HOST_PID, _WORKER_PID, _COUNTERS_PID = 1, 2, 3
# Flows of spans are numbered from 1 on, by chains, of which there are fewer than spans.
_FIRST_PROFILED_FLOW = 1 << 32
_MAX_NS = (1 << 63) - 1


@dataclass(frozen=True)
class TraceSummary:
    """What was written: slices, links of flows, values of counters; `notes` say what was left out."""

    slices: int
    flows: int
    counter_values: int
    size_bytes: int
    notes: tuple[str, ...]


def write_timeline(
    path: Path,
    *,
    host_phases: Sequence[RunPhase],
    spans: Sequence[SpanColumns],
    windows: Sequence[Window],
    attributes: Mapping[str, str],
    clocks_start: Mapping[str, int],
    clocks_end: Mapping[str, int],
    worker_phases: Sequence[RunPhase] = (),
    profiles: Sequence[ProfiledPass] = (),
    samples: SampleColumns | None = None,
    notes: Sequence[str] = (),
) -> TraceSummary:
    """Write `trace.pftrace.gz` of a run; the same input makes the same bytes.

    Phases are (name, start_ns, end_ns or None while it goes on). All times are ns on the host's CLOCK_MONOTONIC,
    clocks are documents of `mlbundle.wire.clocks.clock_snapshot`. `notes` say what was left out. Raises StorageFailed.
    """
    facts = dict(attributes) | ({"note": "; ".join(notes)} if notes else {})
    merged = merge_spans(spans)
    with trace_writer(path, clocks_start) as writer:
        writer.attributes(facts)
        host = writer.process("host", pid=_HOST_PID, rank=0)
        worker = writer.process("worker", pid=_WORKER_PID, rank=1)
        _write_run(writer, host, host_phases, facts, (clocks_start["monotonic"], clocks_end["monotonic"]))
        _write_phases(writer, writer.track("phases", worker, rank=0), _in_order(worker_phases))
        flows = _write_spans(writer, writer.track("pipeline", worker, rank=2), merged)
        measured_ns = next((end for name, _, end in worker_phases if name == "measure"), None)
        values = _write_windows(writer, writer.track("windows", worker, rank=3), windows, measured_ns)
        flows += write_profiles(writer, worker, list(profiles), first_rank=4, first_flow=_FIRST_PROFILED_FLOW)
        told = [*notes, *_left_out(writer)]
        _write_notes(writer, worker, told, _end_of_queries(merged, clocks_end["monotonic"]))
        if samples is not None:
            values += write_counters(writer, writer.process("counters", pid=_COUNTERS_PID, rank=2), samples)
        writer.snapshot(clocks_end)
    return TraceSummary(writer.slices_written, flows, values, path.stat().st_size, tuple(told))


def _write_run(
    writer: TraceWriter,
    host: Process,
    phases: Sequence[RunPhase],
    facts: Mapping[str, str],
    clocks_ns: tuple[int, int],
) -> None:
    """Write the slice that carries the facts of the run, its phases inside it; open as long as one of them is."""
    track = writer.track("run", host)
    inner = _in_order(phases)
    known = [*clocks_ns, *(start for _, start, _ in inner)]
    ends = [end for _, _, end in inner if end is not None]
    is_open = len(ends) < len(inner)
    writer.slice(
        track, "run", min(known), None if is_open else max(known + ends), category=_PHASE, args=facts
    )
    _write_phases(writer, track, inner)


def _write_phases(writer: TraceWriter, track: Track, phases: Sequence[RunPhase]) -> None:
    for name, start, end in phases:
        writer.slice(track, name, start, end, category=_PHASE)


def _in_order(phases: Sequence[RunPhase]) -> list[RunPhase]:
    """Return the phases as the writer wants them. Some times are a worker's: none may keep us from a trace."""
    sound = [(name, start, end) for name, start, end in phases if 0 <= start <= _MAX_NS]
    sound = [
        (name, start, end if end is None else min(max(start, end), _MAX_NS)) for name, start, end in sound
    ]
    return sorted(sound, key=lambda phase: (phase[1], -(_MAX_NS if phase[2] is None else phase[2])))


def _write_spans(writer: TraceWriter, group: Track, spans: SpanColumns) -> int:
    """Write one track for each track of the spans, queries first, then by first begin; return the flow links."""
    chain = flow_chains(spans)
    local = np.empty(len(spans), np.int64)
    tracks = np.unique(spans.track).tolist()
    first_ns = {track: int(spans.start_ns[spans.track == track].min()) for track in tracks}
    tracks.sort(key=lambda track: (spans.strings[track] != QUERY_TRACK, first_ns[track], track))
    for rank, track in enumerate(tracks):
        rows = np.flatnonzero(spans.track == track)
        local[rows] = np.arange(len(rows))
        parent = spans.parent[rows]
        is_here = (parent >= 0) & (spans.track[parent] == track)
        columns = SliceColumns(
            start_ns=spans.start_ns[rows],
            duration_ns=spans.duration_ns[rows],
            name=spans.name[rows],
            names=spans.strings,
            category=LEVELS[int(spans.level[rows[0]])],
            parent=np.where(is_here, local[parent], -1),
            flow=chain[rows],
            numbers={"query": spans.query[rows]},
        )
        writer.slices(writer.track(spans.strings[track], group, rank=rank), columns)
    linked = chain[chain > 0]
    return len(linked) - len(np.unique(linked))


def _left_out(writer: TraceWriter) -> list[str]:
    return [
        f"{track}: {count} slices are left out, as more than {MAX_LANES} went on at once; the columns have them"
        for track, count in writer.left_out.items()
    ]


def _write_notes(writer: TraceWriter, worker: Process, notes: Sequence[str], end_ns: int) -> None:
    if notes:
        track = writer.track("notes", worker, rank=1)
        for note in notes:
            writer.instant(track, note, end_ns)


def _end_of_queries(spans: SpanColumns, otherwise_ns: int) -> int:
    queries = [spans.strings[track] == QUERY_TRACK for track in spans.track.tolist()]
    return int(spans.end_ns[queries].max()) if any(queries) else otherwise_ns


def _write_windows(
    writer: TraceWriter, group: Track, windows: Sequence[Window], measured_ns: int | None
) -> int:
    """Write the counters; return how many values. Values are a worker's: what is no number is left out.

    A counter keeps its last value for ever, so each ends with a 0 where the measurement did, if it has ended.
    """
    counters = {
        "throughput": writer.counter_track("throughput", group, unit="queries/s", rank=0),
        "p50_ns": writer.counter_track("p50", group, unit="ns", rank=1),
        "p99_ns": writer.counter_track("p99", group, unit="ns", rank=2),
    }
    written = 0
    last_ns: dict[str, int] = {}
    for window in windows:
        for field, counter in counters.items():
            value = getattr(window, field)
            if _is_number(value) and 0 <= window.t_ns <= _MAX_NS:
                writer.count(counter, window.t_ns, value)
                last_ns[field] = max(window.t_ns, last_ns.get(field, 0))
                written += 1
    if measured_ns is not None:
        for field, latest_ns in last_ns.items():
            writer.count(counters[field], min(max(latest_ns + 1, measured_ns), _MAX_NS), 0)
        written += len(last_ns)
    return written


def _is_number(value: object) -> bool:
    """Return whether a value of unknown origin is a finite number; integers of any size are tried as floats."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
