"""A run as it is watched: its phases, what it measures, what it says; made of its events, in bounded memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mlbundle.runs.queue import MACHINE_BUSY
from mlbundle.wire.events import (
    PHASES,
    Counter,
    End,
    Event,
    Failed,
    Log,
    Phase,
    Progress,
    Warned,
    Window,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")
MOST_POINTS = 1024
MOST_WARNINGS = 100
MOST_LINES = 2000
MOST_CHARACTERS = 2000
State = Literal["to come", "under way", "done", "broken off"]
# Phases that not every run has; one that has begun is shown in any case.
_OPTIONAL = ("image", "environment", "accuracy", "profile")
_SEEN_BY_PROFILERS = ("framework", "system", "full")


@dataclass(frozen=True)
class PhaseView:
    """A phase: `seconds` that it took so far, all its times together; `share` that is done, None while nobody knows.

    `left_s` is the time that remains; `text` what it counts in: `3 of 10 trials`.
    """

    name: str
    state: State
    seconds: float = 0.0
    share: float | None = None
    left_s: float | None = None
    text: str = ""
    times: int = 1


@dataclass(frozen=True)
class WindowPoint:
    """What was measured in a window, or in some that follow each other: the median of medians, the worst p99."""

    t_s: float
    queries: int
    throughput: float
    p50_ns: int
    p99_ns: int


@dataclass(frozen=True)
class LogLine:
    """A line for who watches; `level` is that of a log, `warning`, `error` or `phase`."""

    t_s: float
    level: str
    text: str


@dataclass
class _PhaseTimes:
    begun_ns: int | None = None
    total_ns: int = 0
    times: int = 0
    progress: Progress | None = None


@dataclass
class RunView:
    """Takes the events of a run in order. Times are seconds since the earliest event.

    `expected` are the phases to come (see `expected_phases`). `over` is set by the last event, or by who knows that
    none will come. `lines` are those that nobody has taken yet.
    """

    expected: Sequence[str] = PHASES
    model: str = ""
    waiting: bool = False
    failed: Failed | None = None
    ended: End | None = None
    over: bool = False
    window: Window | None = None
    queries: int = 0
    windows: list[WindowPoint] = field(default_factory=list)
    counters: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    warnings: list[Warned] = field(default_factory=list)
    warnings_left_out: int = 0
    lines: deque[LogLine] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    begin_ns: int | None = None
    last_ns: int = 0
    _phases: dict[str, _PhaseTimes] = field(default_factory=dict)
    _current: str = ""

    @property
    def phase(self) -> str:
        """The phase under way, empty where there is none."""
        return self._current

    @property
    def elapsed_s(self) -> float:
        """Seconds from the earliest event to the latest."""
        return 0.0 if self.begin_ns is None else (self.last_ns - self.begin_ns) / 1e9

    def take(self, event: Event) -> None:
        """Take the next event."""
        # A run is planned before it has a folder to say so in: that comes first and is told later.
        self.begin_ns = event.t_ns if self.begin_ns is None else min(self.begin_ns, event.t_ns)
        self.last_ns = max(self.last_ns, event.t_ns)
        if isinstance(event, Phase):
            self._take_phase(event)
        elif isinstance(event, Progress):
            self._times(event.phase).progress = event
        elif isinstance(event, Window):
            self._take_window(event)
        elif isinstance(event, Counter):
            points = self.counters.setdefault(event.name, [])
            points.append((self._t_s(event), event.value))
            _halve(points, _mean)
        elif isinstance(event, Warned):
            self._take_warning(event)
        else:
            self._take_other(event)

    def end(self) -> None:
        """Take it that no event will come any more."""
        self.over, self.waiting, self._current = True, False, ""

    def phases(self) -> list[PhaseView]:
        """Return the phases in their order: those that were as they came, then those to come."""
        seen = list(self._phases)
        if not self.over:
            seen += [name for name in self.expected if name not in self._phases]
        return [self._view(name) for name in seen]

    def take_lines(self) -> list[LogLine]:
        """Return the lines that are new since the last call."""
        found = list(self.lines)
        self.lines.clear()
        return found

    def _take_phase(self, event: Phase) -> None:
        times = self._times(event.name)
        self.waiting = False
        if event.state == "begun":
            self._current = event.name
            times.begun_ns, times.progress = event.t_ns, None
            times.times += 1
            return
        if times.begun_ns is not None:
            took_ns = max(0, event.t_ns - times.begun_ns)
            times.total_ns += took_ns
            times.begun_ns = None
            self._say(event, "phase", f"{event.name} done in {took_ns / 1e9:.3g} s")
        if self._current == event.name:
            self._current = ""

    def _take_window(self, event: Window) -> None:
        self.window = event
        self.queries += event.queries
        point = WindowPoint(self._t_s(event), event.queries, event.throughput, event.p50_ns, event.p99_ns)
        self.windows.append(point)
        _halve(self.windows, _together)

    def _take_warning(self, event: Warned) -> None:
        self.waiting = self.waiting or event.reference == MACHINE_BUSY
        if len(self.warnings) < MOST_WARNINGS:
            self.warnings.append(
                replace(
                    event, message=event.message[:MOST_CHARACTERS], hint=(event.hint or "")[:MOST_CHARACTERS]
                )
            )
        else:
            self.warnings_left_out += 1
        self._say(event, "warning", event.message)

    def _take_other(self, event: Event) -> None:
        if isinstance(event, Log):
            if not self.model:
                self.model = event.message[:MOST_CHARACTERS]
            self._say(event, event.level, event.message)
        elif isinstance(event, Failed):
            self.failed = event
            self._say(event, "error", event.message)
        elif isinstance(event, End):
            self.ended = event
            self.end()
            self._say(event, "phase", event.status)

    def _times(self, name: str) -> _PhaseTimes:
        return self._phases.setdefault(name, _PhaseTimes())

    def _t_s(self, event: Event) -> float:
        return 0.0 if self.begin_ns is None else max(0.0, (event.t_ns - self.begin_ns) / 1e9)

    def _say(self, event: Event, level: str, text: str) -> None:
        self.lines.append(LogLine(self._t_s(event), level, text[:MOST_CHARACTERS]))

    def _view(self, name: str) -> PhaseView:
        times = self._phases.get(name)
        if times is None:
            return PhaseView(name, "to come")
        going_on = times.begun_ns is not None and not self.over
        open_ns = max(0, self.last_ns - times.begun_ns) if times.begun_ns is not None else 0
        seconds = (times.total_ns + open_ns) / 1e9
        if not going_on:
            state: State = "broken off" if times.begun_ns is not None else "done"
            return PhaseView(name, state, seconds, times=times.times)
        said = times.progress
        if said is None:
            return PhaseView(name, "under way", seconds, times=times.times)
        share = min(1.0, max(0.0, said.done / said.total)) if said.total else None
        return PhaseView(name, "under way", seconds, share, said.eta_s, _counted(said), times.times)


def expected_phases(job: Mapping[str, Any]) -> list[str]:
    """Return the phases that a run of this job has, in order; all of them for a job that says nothing."""
    if not job:
        return list(PHASES)
    wanted = {
        # The one of these that there was is told as soon as there is anything to see.
        "image": False,
        "environment": False,
        "accuracy": job.get("accuracy") is not None,
        "profile": job.get("trace_level") in _SEEN_BY_PROFILERS,
    }
    return [name for name in PHASES if name not in _OPTIONAL or wanted[name]]


def _counted(said: Progress) -> str:
    if said.unit == "s":
        return ""
    done = f"{said.done:,.0f}"
    return f"{done} of {said.total:,.0f} {said.unit}" if said.total else f"{done} {said.unit}"


def _halve(points: list[T], merge: Callable[[T, T], T]) -> None:
    """Make one of each two where there are too many: a run of a day takes no more room than one of an hour."""
    if len(points) > MOST_POINTS:
        points[:] = [merge(*pair) for pair in zip(points[::2], points[1::2], strict=False)] + (
            points[-1:] if len(points) % 2 else []
        )


def _mean(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return other[0], (one[1] + other[1]) / 2


def _together(one: WindowPoint, other: WindowPoint) -> WindowPoint:
    queries = one.queries + other.queries
    return WindowPoint(
        t_s=other.t_s,
        queries=queries,
        throughput=(one.throughput + other.throughput) / 2,
        p50_ns=(one.p50_ns + other.p50_ns) // 2,
        p99_ns=max(one.p99_ns, other.p99_ns),
    )
