"""What was seen of a run that did not come to its end: read from its folder, whoever wrote there last.

Nothing here is a result. It says how far the run came and what its windows looked like, and which files of passes are
whole.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlbundle.errors import MlbundleError
from mlbundle.runs.folder import EVENTS
from mlbundle.wire.events import Event, Phase, Progress, Result, Window, event_from_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_LINE_BYTES = 2 << 20
_MOST_PASSES = 1000


@dataclass
class _Seen:
    """The last of each."""

    phase: str = ""
    begun: dict[str, int] = field(default_factory=dict)
    phases_s: dict[str, float] = field(default_factory=dict)
    progress: Progress | None = None
    windows: int = 0
    queries: int = 0
    window: Window | None = None
    passes: list[str] = field(default_factory=list)
    measure: Result | None = None

    def take(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Phase):
            self._take_phase(event)
        elif isinstance(event, Progress):
            self.progress = event
        elif isinstance(event, Result):
            self.passes = [*self.passes, event.pass_kind][:_MOST_PASSES]
            if event.pass_kind == "measure":  # noqa: S105 - no password, the name of a pass
                self.measure = event
        elif isinstance(event, Window):
            self.windows += 1
            self.queries += event.queries
            self.window = event

    def _take_phase(self, event: Phase) -> None:
        if event.state == "begun":
            self.phase = event.name
            self.begun.setdefault(event.name, event.t_ns)
        elif event.name in self.begun:
            self.phases_s[event.name] = round((event.t_ns - self.begun[event.name]) / 1e9, 6)


def seen_of(folder: Path) -> dict[str, Any]:
    """Return how far a run came: `phase` and `passes_done`; `progress`, `queries` and windows where there are any.

    `measured` has the latencies of a measuring pass that was whole.
    """
    seen = _seen(folder)
    found: dict[str, Any] = {"phase": seen.phase or None, "passes_done": seen.passes}
    if seen.progress is not None:
        said = seen.progress
        found["progress"] = {"phase": said.phase, "done": said.done, "total": said.total, "unit": said.unit}
    if seen.window is not None:
        last = seen.window
        found |= {
            "queries": seen.queries,
            "windows": seen.windows,
            "last_window": {
                "queries": last.queries,
                "throughput_per_s": last.throughput,
                "p50_ns": last.p50_ns,
                "p90_ns": last.p90_ns,
                "p99_ns": last.p99_ns,
            },
        }
    if seen.measure is not None:
        with suppress(MlbundleError):
            found |= {"measured": _measured(folder, seen.measure)}
    return found


def _measured(folder: Path, said: Result) -> dict[str, Any]:
    """Return the latencies of the pass that the result would have been taken from. Raises ProtocolBroken."""
    from mlbundle.analysis.statistics import percentile, sorted_array
    from mlbundle.runs.measured import load_times, read_measure
    from mlbundle.wire.passes import LATENCIES

    headline = read_measure(said.values).headline
    times = sorted_array(load_times(folder, f"{headline.folder}/{LATENCIES}", headline.queries))
    latencies = {f"p{100 * share:.0f}_ns": int(percentile(times, share)) for share in (0.5, 0.9, 0.99)}
    return {"pass": headline.folder, "queries": headline.queries, **latencies}


def phases_of(folder: Path) -> dict[str, float]:
    """Return name -> seconds of the phases of a run that were done."""
    return _seen(folder).phases_s


def passes_of_folder(folder: Path, headline: str = "") -> list[dict[str, Any]]:
    """Return the passes of a run in order, by the folders of their files; what came only in part is left out."""
    found = []
    for path in sorted(folder.glob("passes/*"))[:_MOST_PASSES]:
        place = f"passes/{path.name}"
        files = sorted(f"{place}/{file.name}" for file in path.iterdir() if file.suffix != ".part")
        if files:
            found.append({
                "kind": path.name.partition("-")[2], "files": files, "headline": place == headline
            })  # fmt: skip
    return found


def _seen(folder: Path) -> _Seen:
    seen = _Seen()
    for event in events_of(folder):
        seen.take(event)
    return seen


def events_of(folder: Path) -> Iterator[Event]:
    """Yield the events that were written down whole: the last line may have been cut."""
    with suppress(OSError), (folder / EVENTS).open("rb") as stream:
        while line := stream.readline(MOST_LINE_BYTES):
            event = event_of_line(line)
            if event is not None:
                yield event


def event_of_line(line: bytes) -> Event | None:
    """Return the event of a line of `events.jsonl`; None for one of a kind that we don't know, or that is no event."""
    with suppress(ValueError, TypeError, RecursionError):
        document = json.loads(line)
        return event_from_document(document) if isinstance(document, dict) else None
    return None
