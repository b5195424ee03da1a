"""`online`: one query of one sample at a time, the next when the answer is there.

Warm-up ends when the medians of three windows in a row are within 5 %, or after `warmup` seconds if that is a number.
"""

from __future__ import annotations

import random
import time
from array import array
from typing import Any, Mapping, Sequence

from mlbundle.wire.events import Progress, Window
from mlbundle.worker.scenarios.base import PassOutcome, ScenarioOutcome, Subject, Timings, measured_kind
from mlbundle.worker.scenarios.loop import closed_loop, loop_overhead_ns, quiet_interpreter

CHUNK_NS = 100_000_000
REPORT_NS = 500_000_000
SETTLED_SPREAD = 0.05
SETTLED_WINDOWS = 3
TAIL = 1000
WARM_UP_LEAST_NS = 300_000_000
WARM_UP_MOST_NS = 10_000_000_000


class OnlineScenario:
    """Closed loop, batch 1. Options: duration_s, queries (None: as many as fit), warmup ('auto' or seconds)."""

    name = "online"
    batch_size = 1

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._duration_ns = int(float(options.get("duration_s", 3.0)) * 1e9)
        queries = options.get("queries")
        self._queries = None if queries is None else int(queries)
        self._warm_up = options.get("warmup", "auto")

    def run(self, subject: Subject) -> ScenarioOutcome:
        """Warm up, then measure; reports windows between chunks of queries."""
        order = _Order(subject)
        with quiet_interpreter():
            subject.emitter.phase("warm-up", "begun")
            warm_up, settled = self._run_warm_up(subject, order)
            subject.emitter.phase("warm-up", "done")
            subject.emitter.phase("measure", "begun")
            measured = self._measure(
                subject, order, _median(warm_up.starts_ns[-TAIL:], warm_up.ends_ns[-TAIL:])
            )
            overhead_ns = loop_overhead_ns()
            subject.emitter.phase("measure", "done")
        values = {
            "warm_up_settled": settled,
            "warm_up_queries": len(warm_up.starts_ns),
            "loop_overhead_ns": overhead_ns,
        }
        passes = (
            PassOutcome("warm-up", warm_up),
            PassOutcome(measured_kind(subject), measured, headline=True),
        )
        return ScenarioOutcome(passes, values)

    def _run_warm_up(self, subject: Subject, order: _Order) -> tuple[Timings, bool]:
        load = _Load(subject, order)
        medians: list[int] = []
        chunk = 1
        fixed_ns = None if self._warm_up == "auto" else int(float(self._warm_up) * 1e9)
        begun = time.monotonic_ns()
        while True:
            load.run(chunk)
            medians.append(_median(load.starts[-chunk:], load.ends[-chunk:]))
            chunk = _chunk(medians[-1], CHUNK_NS)
            elapsed, settled = time.monotonic_ns() - begun, _settled(medians)
            if fixed_ns is None:
                done = (settled and elapsed >= WARM_UP_LEAST_NS) or elapsed >= WARM_UP_MOST_NS
            else:
                done = elapsed >= fixed_ns
            if done:
                return load.timings(), settled

    def _measure(self, subject: Subject, order: _Order, median_ns: int) -> Timings:
        load = _Load(subject, order)
        reported, reported_at = 0, time.monotonic_ns()
        while not self._enough(len(load.starts), load.busy_ns):
            load.run(self._next_chunk(len(load.starts), load.busy_ns, median_ns))
            if time.monotonic_ns() - reported_at >= REPORT_NS:
                _report_window(subject, load.starts[reported:], load.ends[reported:])
                subject.emitter.event(self._progress(len(load.starts), load.busy_ns))
                reported, reported_at = len(load.starts), time.monotonic_ns()
        _report_window(subject, load.starts[reported:], load.ends[reported:])
        subject.emitter.event(self._progress(len(load.starts), load.busy_ns))
        return load.timings()

    def _next_chunk(self, queries: int, busy_ns: int, median_ns: int) -> int:
        if self._queries is not None:
            return min(_chunk(median_ns, CHUNK_NS), self._queries - queries)
        return _chunk(median_ns, min(CHUNK_NS, max(1, self._duration_ns - busy_ns)))

    def _enough(self, queries: int, busy_ns: int) -> bool:
        if self._queries is not None:
            return queries >= self._queries
        return queries > 0 and busy_ns >= self._duration_ns

    def _progress(self, done: int, busy_ns: int) -> Progress:
        if self._queries is not None:
            eta_s = (self._queries - done) * busy_ns / max(1, done) / 1e9
            return Progress(phase="measure", done=done, total=self._queries, unit="queries", eta_s=eta_s)
        total_s, done_s = self._duration_ns / 1e9, min(busy_ns, self._duration_ns) / 1e9
        return Progress(phase="measure", done=done_s, total=total_s, unit="s", eta_s=total_s - done_s)


class _Load:
    """Chunks of queries, and their times kept in 16 bytes a query."""

    def __init__(self, subject: Subject, order: _Order) -> None:
        self._call = subject.call
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

    def timings(self) -> Timings:
        return Timings(self.starts, self.ends, self.busy_ns)


class _Order:
    """Which batch comes next: a seeded shuffle of all, over and over."""

    def __init__(self, subject: Subject) -> None:
        self._batches = list(subject.batches)
        random.Random(subject.seed).shuffle(self._batches)  # noqa: S311 - an order, not a secret
        self._next = 0

    def take(self, count: int) -> list[Any]:
        """Return the next `count` batches."""
        length = len(self._batches)
        start, self._next = self._next, (self._next + count) % length
        if start + count <= length:
            return self._batches[start : start + count]
        whole = self._batches * ((start + count) // length + 1)
        return whole[start : start + count]


def _report_window(subject: Subject, starts: Sequence[int], ends: Sequence[int]) -> None:
    if not starts:
        return
    latencies = sorted(end - start for start, end in zip(starts, ends))
    subject.emitter.event(
        Window(
            phase="measure",
            queries=len(latencies),
            throughput=len(latencies) / max(1, ends[-1] - starts[0]) * 1e9,
            p50_ns=_rank(latencies, 50),
            p90_ns=_rank(latencies, 90),
            p99_ns=_rank(latencies, 99),
        )
    )


def _chunk(median_ns: int, target_ns: int) -> int:
    return max(1, min(1_000_000, target_ns // max(1, median_ns)))


def _median(starts: Sequence[int], ends: Sequence[int]) -> int:
    return _rank(sorted(end - start for start, end in zip(starts, ends)), 50)


def _rank(ordered: list[int], percent: int) -> int:
    """Return the nearest-rank percentile of sorted values."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


def _settled(medians: list[int]) -> bool:
    last = medians[-SETTLED_WINDOWS:]
    return len(last) == SETTLED_WINDOWS and max(last) - min(last) <= SETTLED_SPREAD * max(1, min(last))
