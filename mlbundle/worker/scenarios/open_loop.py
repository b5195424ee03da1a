"""The open loop: queries at times that were fixed before, whether or not the ones before them are answered.

One query is served at a time. What arrives in the meantime waits, and its latency counts from when it was due: a
slow answer is not hidden by asking later (no coordinated omission). Between the two time stamps stands nothing but
the call; reports are made only where nothing is due for a while.
"""

from __future__ import annotations

import statistics
import time
from array import array
from typing import Any, Callable, Protocol, Sequence

import numpy as np

from mlbundle.worker.scenarios.base import Timings
from mlbundle.worker.scenarios.closed import Order

# A sleep ends this long before a query is due, and the rest is waited for awake: waking up takes tens of us.
AWAKE_NS = 100_000
REPORT_NS = 500_000_000
# A report is made when nothing is due for this long, and for so long more for each query that it tells of.
REPORT_IDLE_NS = 2_000_000
REPORT_QUERY_NS = 500
# Where no pause comes, a short sign of life is given all the same.
SILENT_NS = 2_000_000_000
# The first query can't be due before the times of all are on the clock.
_LEAD_NS = 1_000_000
_LEAD_ARRIVAL_NS = 10


class Clock(Protocol):
    """What an open loop goes by: CLOCK_MONOTONIC, or a clock that a test moves on."""

    def now_ns(self) -> int:
        """Return the time."""

    def wait_until(self, due_ns: int) -> None:
        """Return at a time, as little after it as can be."""


class MonotonicClock:
    """The machine's clock: sleeps until shortly before the time, then stays awake."""

    now_ns = staticmethod(time.monotonic_ns)

    def wait_until(self, due_ns: int) -> None:
        """Return at a time, a fraction of a microsecond after it on a quiet machine."""
        clock = time.monotonic_ns
        ahead_ns = due_ns - clock() - AWAKE_NS
        if ahead_ns > 0:
            time.sleep(ahead_ns / 1e9)
        while clock() < due_ns:
            pass


class Reports(Protocol):
    """Who is told of the queries of a loop between them; `begun` and `done` are positions in `ends_ns`."""

    def window(self, due_ns: Sequence[int], ends_ns: Sequence[int], begun: int) -> None:
        """Tell of all queries from `begun` on."""

    def alive(self, done: int) -> None:
        """Say no more than that there is something going on."""


class Silent:
    """Reports of a loop that nobody is told of."""

    def window(self, due_ns: Sequence[int], ends_ns: Sequence[int], begun: int) -> None:
        """Say nothing."""

    def alive(self, done: int) -> None:
        """Say nothing."""


class OpenLoop:
    """Runs `call` on one batch after another, in an order, at given times."""

    def __init__(self, call: Callable[[Any], Any], order: Order, clock: Clock, reports: Reports) -> None:
        self._call = call
        self._order = order
        self._clock = clock
        self._reports = reports
        self._report_at = self._silent_at = self._reported = 0

    def run(self, arrivals_ns: Sequence[int], horizon_ns: int = 0) -> Timings:
        """Serve queries that arrive at `arrivals_ns` from now on, and wait until `horizon_ns` is over.

        `scheduled_ns` of what it returns are the arrivals on the clock; `busy_ns` is the whole time.
        """
        call, now_ns, wait_until = self._call, self._clock.now_ns, self._clock.wait_until
        starts, ends, batches = array("q"), array("q"), self._order.take(len(arrivals_ns))
        begun = now_ns() + _LEAD_NS + _LEAD_ARRIVAL_NS * len(arrivals_ns)
        due_ns = _on_clock(arrivals_ns, begun)
        self._reported, self._report_at, self._silent_at = 0, begun + REPORT_NS, begun + SILENT_NS
        wait_until(begun)
        for due, batch in zip(due_ns, batches):
            now = now_ns()
            if due > now:
                if due - now > REPORT_IDLE_NS:
                    self._use_pause(due, due_ns, ends)
                wait_until(due)
            elif now > self._silent_at:
                self._reports.alive(len(ends))
                self._silent_at = now_ns() + SILENT_NS
            start = now_ns()
            call(batch)
            end = now_ns()
            starts.append(start)
            ends.append(end)
        self._use_pause(begun + horizon_ns, due_ns, ends)
        wait_until(begun + horizon_ns)
        busy_ns = now_ns() - begun
        if self._reported < len(ends):
            self._reports.window(due_ns, ends, self._reported)
        return Timings(starts, ends, busy_ns, due_ns)

    def _use_pause(self, until: int, due_ns: Sequence[int], ends: Sequence[int]) -> None:
        """Report, as often as reports come, while nothing is due; may wait for the time of a report."""
        while True:
            cost_ns = REPORT_IDLE_NS + REPORT_QUERY_NS * (len(ends) - self._reported)
            report_at = max(self._report_at, self._clock.now_ns())
            if report_at + cost_ns > until:
                return
            self._clock.wait_until(report_at)
            if len(ends) > self._reported:
                self._reports.window(due_ns, ends, self._reported)
                self._reported = len(ends)
            else:
                self._reports.alive(len(ends))
            self._report_at = self._clock.now_ns() + REPORT_NS
            self._silent_at = self._report_at - REPORT_NS + SILENT_NS


def _on_clock(arrivals_ns: Sequence[int], begun: int) -> array[int]:
    due_ns = array("q")
    due_ns.frombytes((np.asarray(arrivals_ns, np.int64) + begun).tobytes())
    return due_ns


def open_loop_overhead_ns(queries: int = 10_000, rounds: int = 5) -> float:
    """Return what the loop itself costs a query that is due already, in ns; median of several rounds."""

    def nothing(_batch: Any) -> None:
        return None

    loop = OpenLoop(nothing, Order([None], 0), MonotonicClock(), Silent())
    due = array("q", bytes(8 * queries))
    return statistics.median(loop.run(due).busy_ns / queries for _ in range(rounds))
