"""What an open loop is given, and what is told of it: its schedule, reports between queries, how it was served."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import numpy as np

from mlbundle.wire.events import Progress, Window
from mlbundle.wire.judging import held, nearest_rank
from mlbundle.worker.arrivals import poisson_arrivals
from mlbundle.worker.emit import Emitter
from mlbundle.worker.scenarios.base import Timings


@dataclass(frozen=True)
class Schedule:
    """Arrivals in ns from the beginning, how long they go on, and their rate if they were drawn with one."""

    arrivals_ns: Sequence[int]
    horizon_ns: int
    rate_per_s: float | None


def drawn_schedule(rate: float, seed: Sequence[int], duration_s: float) -> Schedule:
    """Return a schedule of arrivals at random. Raises WorkerError for more than can be kept."""
    arrivals = poisson_arrivals(rate, seed, duration_s=duration_s)
    # One arrival comes in any case, and may come later.
    return Schedule(arrivals, max(round(duration_s * 1e9), arrivals[-1]), rate)


class ShareReports:
    """Tells the host how far a load is; `progress` makes the event of a share of it."""

    def __init__(self, emitter: Emitter, schedule: Schedule, progress: Callable[[float], Progress]) -> None:
        self._emitter = emitter
        self._schedule = schedule
        self._progress = progress

    def window(self, due_ns: Sequence[int], ends_ns: Sequence[int], begun: int) -> None:
        """Tell how far it is, no more."""
        self.alive(len(ends_ns))

    def alive(self, done: int) -> None:
        """Say how far the load is, by its arrivals."""
        arrivals = self._schedule.arrivals_ns
        share = 1.0 if done >= len(arrivals) else arrivals[done] / max(1, self._schedule.horizon_ns)
        self._emitter.event(self._progress(share))


class MeasureReports(ShareReports):
    """Tells the host of the queries of a measurement as well."""

    def __init__(self, emitter: Emitter, schedule: Schedule) -> None:
        super().__init__(emitter, schedule, self._seconds)
        self._begun_ns = time.monotonic_ns()

    def window(self, due_ns: Sequence[int], ends_ns: Sequence[int], begun: int) -> None:
        """Tell of the queries from `begun` on, and how far the load is."""
        ends, due = as_int64(ends_ns[begun:]), as_int64(due_ns[begun : len(ends_ns)])
        latencies = np.sort(ends - due)
        p50, p90, p99 = (int(latencies[nearest_rank(len(latencies), percent)]) for percent in (50, 90, 99))
        self._emitter.event(
            Window(
                phase="measure",
                queries=len(latencies),
                throughput=len(latencies) / max(1, int(ends[-1] - due[0])) * 1e9,
                p50_ns=p50,
                p90_ns=p90,
                p99_ns=p99,
            )
        )
        self.alive(len(ends_ns))

    def _seconds(self, share: float) -> Progress:
        total_s = self._schedule.horizon_ns / 1e9
        done_s = share * total_s
        # A load that is not held takes longer than its arrivals: as much longer as it did so far.
        pace = max(1.0, (time.monotonic_ns() - self._begun_ns) / 1e9 / done_s) if done_s else 1.0
        eta_s = (total_s - done_s) * pace
        return Progress(phase="measure", done=done_s, total=total_s, unit="s", eta_s=eta_s)


def served(timings: Timings) -> dict[str, Any]:
    """Return the time spent in calls, and how late the loop itself was, in ns.

    `late_ns` is over the queries that found nothing before them: how long after their time they began.
    """
    assert timings.scheduled_ns is not None
    starts, ends = as_int64(timings.starts_ns), as_int64(timings.ends_ns)
    due = as_int64(timings.scheduled_ns)
    free = np.concatenate(([True], ends[:-1] <= due[1:]))
    late = np.sort((starts - due)[free])
    p50, p99 = (int(late[nearest_rank(len(late), percent)]) for percent in (50, 99))
    return {
        "service_ns": int((ends - starts).sum()),
        "late_ns": {"queries": len(late), "p50": p50, "p99": p99, "max": int(late[-1])},
    }


def was_held(schedule: Schedule, timings: Timings) -> bool:
    """Return whether a load was answered as fast as it came, as the host will see it."""
    assert timings.scheduled_ns is not None
    due, ends = as_int64(timings.scheduled_ns), as_int64(timings.ends_ns)
    queries, thirds = len(due), np.array_split(ends - due, 3)
    return held(
        offered_per_s=queries / (schedule.horizon_ns or timings.busy_ns) * 1e9,
        achieved_per_s=queries / timings.busy_ns * 1e9,
        backlog=int((ends[:-1] > due[-1]).sum()),
        waited_share=float((ends[:-1] > due[1:]).sum()) / queries,
        growth=float(np.median(thirds[2]) / max(1.0, float(np.median(thirds[0])))) if len(thirds[2]) else 1.0,
    )


def as_int64(values: Any) -> Any:
    """Return times as an array."""
    return np.asarray(values, np.int64)
