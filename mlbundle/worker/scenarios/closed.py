"""What scenarios with a closed loop share: the order of batches, warm-up until it settles, measuring in chunks.

Warm-up ends when the medians of three windows in a row are within 5 %, or after a number of seconds.
"""

from __future__ import annotations

import random
import time
from array import array
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from mlbundle.wire.events import Progress, Window
from mlbundle.worker.emit import Emitter
from mlbundle.worker.scenarios.base import Timings
from mlbundle.worker.scenarios.loop import closed_loop

CHUNK_NS = 100_000_000
REPORT_NS = 500_000_000
SETTLED_SPREAD = 0.05
SETTLED_WINDOWS = 3
TAIL = 1000
WARM_UP_LEAST_NS = 300_000_000
WARM_UP_MOST_NS = 10_000_000_000


class Order:
    """Which batch comes next: a seeded shuffle of all, over and over."""

    def __init__(self, batches: Sequence[Any], seed: int) -> None:
        self._batches = list(batches)
        random.Random(seed).shuffle(self._batches)  # noqa: S311 - an order, not a secret
        self._next = 0

    def take(self, count: int) -> list[Any]:
        """Return the next `count` batches."""
        length = len(self._batches)
        start, self._next = self._next, (self._next + count) % length
        if start + count <= length:
            return self._batches[start : start + count]
        whole = self._batches * ((start + count) // length + 1)
        return whole[start : start + count]


class Load:
    """Chunks of queries, and their times kept in 16 bytes a query."""

    def __init__(self, call: Callable[[Any], Any], order: Order) -> None:
        self._call = call
        self._order = order
        self.starts, self.ends = array("q"), array("q")
        self.busy_ns = 0

    def run(self, queries: int) -> None:
        """Run a chunk; its times go from lists, which the loop fills fastest, into arrays."""
        starts: list[int] = []
        ends: list[int] = []
        self.busy_ns += closed_loop(self._call, self._order.take(queries), starts, ends)
        self.starts.extend(starts)
        self.ends.extend(ends)

    def median_ns(self, last: int) -> int:
        """Return the median latency of the last queries."""
        return rank(
            sorted(end - start for start, end in zip(self.starts[-last:], self.ends[-last:])),
            50,
        )

    def timings(self) -> Timings:
        """Return the times of all queries so far."""
        return Timings(self.starts, self.ends, self.busy_ns)


@dataclass(frozen=True)
class Extent:
    """How much is measured: a number of queries where there is one, else a time that the load is on."""

    duration_ns: int
    queries: int | None = None

    def enough(self, queries: int, busy_ns: int) -> bool:
        """Return whether so many queries in this time are enough."""
        if self.queries is not None:
            return queries >= self.queries
        return queries > 0 and busy_ns >= self.duration_ns

    def next_chunk(self, queries: int, busy_ns: int, median_ns: int) -> int:
        """Return how many queries run before the next look at the clock."""
        if self.queries is not None:
            return min(chunk(median_ns, CHUNK_NS), self.queries - queries)
        return chunk(median_ns, min(CHUNK_NS, max(1, self.duration_ns - busy_ns)))

    def progress(self, done: int, busy_ns: int) -> Progress:
        """Return how far it is, with the time that remains."""
        if self.queries is not None:
            eta_s = (self.queries - done) * busy_ns / max(1, done) / 1e9
            return Progress(phase="measure", done=done, total=self.queries, unit="queries", eta_s=eta_s)
        total_s, done_s = self.duration_ns / 1e9, min(busy_ns, self.duration_ns) / 1e9
        return Progress(phase="measure", done=done_s, total=total_s, unit="s", eta_s=total_s - done_s)


def run_warm_up(load: Load, how: Any, emitter: Emitter) -> bool:
    """Put load on until it settles (`auto`) or for a number of seconds; returns whether it has settled.

    The emitter is told between chunks how far it is, at most twice a second: whoever says nothing is given up.
    """
    medians: list[int] = []
    size = 1
    fixed_ns = None if how == "auto" else int(float(how) * 1e9)
    begun = told = time.monotonic_ns()
    while True:
        load.run(size)
        medians.append(load.median_ns(size))
        size = chunk(medians[-1], CHUNK_NS)
        now = time.monotonic_ns()
        elapsed, is_settled = now - begun, settled(medians)
        if fixed_ns is None:
            done = (is_settled and elapsed >= WARM_UP_LEAST_NS) or elapsed >= WARM_UP_MOST_NS
        else:
            done = elapsed >= fixed_ns
        if done:
            return is_settled
        if now - told >= REPORT_NS:
            told = now
            emitter.event(_warm_up_progress(elapsed, fixed_ns))


def _warm_up_progress(elapsed_ns: int, fixed_ns: int | None) -> Progress:
    """Return how far a warm-up is; nobody knows when one settles."""
    elapsed_s = elapsed_ns / 1e9
    if fixed_ns is None:
        return Progress(phase="warm-up", done=elapsed_s, unit="s")
    total_s = fixed_ns / 1e9
    return Progress(phase="warm-up", done=elapsed_s, total=total_s, unit="s", eta_s=total_s - elapsed_s)


def run_measured(
    load: Load,
    extent: Extent,
    median_ns: int,
    emitter: Emitter,
    *,
    samples_per_query: int = 1,
    progress: Callable[[int, int], Progress] | None = None,
) -> None:
    """Put load on until it is enough; windows and progress are told between chunks, at most twice a second.

    `progress` makes of queries and ns what is told of them; without it that of the extent does.
    """
    reported, reported_at = 0, time.monotonic_ns()

    def report() -> None:
        starts, ends = load.starts[reported:], load.ends[reported:]
        if starts:
            latencies = [end - start for start, end in zip(starts, ends)]
            tell_window(emitter, latencies, ends[-1] - starts[0], samples_per_query)
        emitter.event((progress or extent.progress)(len(load.starts), load.busy_ns))

    while not extent.enough(len(load.starts), load.busy_ns):
        load.run(extent.next_chunk(len(load.starts), load.busy_ns, median_ns))
        if time.monotonic_ns() - reported_at >= REPORT_NS:
            report()
            reported, reported_at = len(load.starts), time.monotonic_ns()
    report()


def tell_window(
    emitter: Emitter, latencies_ns: Sequence[int], wall_ns: int, samples_per_query: int = 1
) -> None:
    """Tell the latencies of one query or more, and the samples a second over the time in which they ran."""
    ordered = sorted(latencies_ns)
    emitter.event(
        Window(
            phase="measure",
            queries=len(ordered),
            throughput=len(ordered) * samples_per_query / max(1, wall_ns) * 1e9,
            p50_ns=rank(ordered, 50),
            p90_ns=rank(ordered, 90),
            p99_ns=rank(ordered, 99),
        )
    )


def chunk(median_ns: int, target_ns: int) -> int:
    """Return how many queries of a length fill a time."""
    return max(1, min(1_000_000, target_ns // max(1, median_ns)))


def rank(ordered: Sequence[int], percent: int) -> int:
    """Return the nearest-rank percentile of sorted values."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


def settled(medians: Sequence[int]) -> bool:
    """Return whether the last medians are within 5 % of each other."""
    last = medians[-SETTLED_WINDOWS:]
    return len(last) == SETTLED_WINDOWS and max(last) - min(last) <= SETTLED_SPREAD * max(1, min(last))
