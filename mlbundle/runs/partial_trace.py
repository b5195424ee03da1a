"""The trace and columns of a run that did not come to its end, from what its folder holds: events, whole passes.

What had begun and had not ended stays open to the end of the trace.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mlbundle.errors import MlbundleError
from mlbundle.runs.collect import WORKER_PHASES, load_all_spans, save_columns
from mlbundle.runs.folder import TRACE
from mlbundle.runs.profiles import profiled_passes, read_profiles
from mlbundle.runs.sampled import SAMPLES, said_columns
from mlbundle.runs.seen import events_of
from mlbundle.wire.events import Counter, Hello, Phase, Result, Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from mlbundle.trace.profiled import ProfiledPass
    from mlbundle.trace.samples import SampleColumns
    from mlbundle.trace.spans import SpanColumns
    from mlbundle.trace.tables import Table
    from mlbundle.wire.events import Event

_SAME_CLOCK_NS = 5_000_000
_LATEST_NS = 1 << 62


def write_partial_trace(folder: Path, attributes: Mapping[str, str]) -> dict[str, str]:
    """Write `trace.pftrace.gz` and the columns of a run that ended early; returns what a record says of its files.

    Empty where the worker never said hello or nothing can be written: a trace never hides why a run ended.
    """
    files: dict[str, str] = {}
    try:
        seen = _Seen(events_of(folder))
        if seen.hello is None:
            return {}
        _write(folder, seen, seen.hello, attributes, files)
    except (MlbundleError, ValueError, OverflowError):
        # Times and clocks are a worker's words: they may be any numbers.
        return files
    return {**files, "trace": TRACE}


class _Seen:
    """The events that a trace is made of."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.hello: Hello | None = None
        self.windows: list[Window] = []
        self.counters: list[Counter] = []
        self.results: dict[str, Result] = {}
        self.last_ns = 0
        self._open: dict[str, int] = {}
        self._phases: list[tuple[str, int, int | None]] = []
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        if event.t_ns < _LATEST_NS:
            self.last_ns = max(self.last_ns, event.t_ns)
        if isinstance(event, Hello):
            self.hello = event
        elif isinstance(event, Window):
            self.windows.append(event)
        elif isinstance(event, Counter):
            self.counters.append(event)
        elif isinstance(event, Result):
            self.results[event.pass_kind] = event
        elif isinstance(event, Phase) and event.state == "begun":
            self._open[event.name] = event.t_ns
        elif isinstance(event, Phase) and event.name in self._open:
            begun_ns = self._open.pop(event.name)
            self._phases.append((event.name, begun_ns, max(begun_ns, event.t_ns)))

    def phases(self) -> list[tuple[str, int, int | None]]:
        """Return (name, begin, end) of all phases; None for the end of one that was going on."""
        return [*self._phases, *((name, begun, None) for name, begun in self._open.items())]


def _write(
    folder: Path, seen: _Seen, hello: Hello, attributes: Mapping[str, str], files: dict[str, str]
) -> None:
    """Write columns and trace; `files` is told what came about before anything failed."""
    from mlbundle.trace.timeline import write_timeline

    clocks = _clocks(hello)
    # The worker's clock may be another one; its events were related to ours when they were written down.
    offset_ns = hello.clocks.get("monotonic", clocks["monotonic"]) - clocks["monotonic"]
    spans = load_all_spans(folder, offset_ns)
    run_ns = clocks["monotonic"], max(seen.last_ns, clocks["monotonic"])
    profiled, measured, tables = _profiles(folder, seen, spans, offset_ns, run_ns)
    files |= save_columns(folder, spans if len(spans) else None, tables)
    phases = seen.phases()
    end = {name: value + seen.last_ns - clocks["monotonic"] for name, value in clocks.items()}
    write_timeline(
        folder / TRACE,
        host_phases=[phase for phase in phases if phase[0] not in WORKER_PHASES],
        worker_phases=[phase for phase in phases if phase[0] in WORKER_PHASES],
        spans=[measured],
        windows=seen.windows,
        attributes=attributes,
        clocks_start=clocks,
        clocks_end=end if seen.last_ns >= clocks["monotonic"] else clocks,
        profiles=profiled,
        samples=_samples(folder, seen.counters),
        notes=["the run did not come to its end: this is what was seen of it"],
    )


def _clocks(hello: Hello) -> dict[str, int]:
    """Return a snapshot of the clocks with the host's monotonic one: what was said, unless it was another clock."""
    said = hello.clocks.get("monotonic", hello.t_ns)
    clocks = {"monotonic": said if abs(said - hello.t_ns) < _SAME_CLOCK_NS else hello.t_ns}
    if 0 <= hello.clocks.get("realtime", -1) < _LATEST_NS:
        clocks["realtime"] = hello.clocks["realtime"]
    return clocks


def _profiles(
    folder: Path, seen: _Seen, spans: SpanColumns, offset_ns: int, run_ns: tuple[int, int]
) -> tuple[list[ProfiledPass], SpanColumns, tuple[Table, Table]]:
    from mlbundle.runs.profile_rows import load_rows, profiled_during
    from mlbundle.trace.tables import KERNELS, LAYERS, empty_table

    # A profile that can't be believed may be why the run ended: what was measured before it is shown.
    with suppress(MlbundleError):
        profiles = read_profiles(folder, seen.results)
        during_ns = profiled_during(seen.phases(), run_ns)
        tables = load_rows(folder, profiles, spans, during_ns, offset_ns)
        return *profiled_passes(folder, profiles, spans, tables), tables
    none = empty_table(LAYERS), empty_table(KERNELS)
    return *profiled_passes(folder, [], spans, none), none


def _samples(folder: Path, counters: Sequence[Counter]) -> SampleColumns | None:
    """Return what was sampled: all of it where it was kept, else what was said of it meanwhile."""
    from mlbundle.trace.samples import load_samples

    with suppress(MlbundleError):
        if (folder / SAMPLES).is_file():
            return load_samples(folder / SAMPLES)
    return said_columns(counters)


def attributes_of_folder(run_id: str, job: Mapping[str, Any]) -> dict[str, str]:
    """Return what a job says of its run, for the trace of a run whose plan is gone."""
    scenario = job.get("scenario")
    return {
        "run_id": run_id,
        "scenario": str(scenario.get("name", "")) if isinstance(scenario, dict) else "",
        "trace_level": str(job.get("trace_level", "")),
    }
