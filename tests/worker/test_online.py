"""The closed loop and the online scenario, with a subject that needs no framework."""

from __future__ import annotations

import json
import os
import time
from itertools import pairwise

import pytest

from mlbundle.wire import frames
from mlbundle.worker.emit import Emitter
from mlbundle.worker.scenarios.base import Subject
from mlbundle.worker.scenarios.closed import Order, rank, settled
from mlbundle.worker.scenarios.loop import closed_loop, loop_overhead_ns
from mlbundle.worker.scenarios.online import OnlineScenario

MS = 1_000_000


@pytest.fixture
def emitted(tmp_path):
    path = tmp_path / "frames"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    emitter = Emitter(descriptor)

    def read() -> list[dict]:
        return [json.loads(frame.payload) for frame in frames.FrameDecoder().feed(path.read_bytes())]

    yield emitter, read
    os.close(descriptor)


@pytest.fixture
def call(monkeypatch):
    """A model that takes 1 ms on a clock that nothing else moves on."""
    now_ns = [1_000 * MS]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns[0])

    def work(_batch: int) -> None:
        now_ns[0] += MS

    return work


def test_closed_loop_times_each_call_and_calls_in_order() -> None:
    seen: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    wall_ns = closed_loop(seen.append, [3, 1, 2], starts, ends)
    assert seen == [3, 1, 2]
    assert all(s <= e for s, e in zip(starts, ends, strict=True))
    assert all(e <= s for e, s in zip(ends, starts[1:], strict=False)), "queries must not overlap"
    assert wall_ns >= ends[-1] - starts[0]


def test_the_loop_costs_something_and_little() -> None:
    assert 0 < loop_overhead_ns(queries=2000, rounds=15) < 100_000


def test_a_number_of_queries_is_kept_exactly(emitted) -> None:
    emitter, read = emitted
    calls: list[int] = []
    subject = Subject(call=calls.append, batches=[0, 1, 2], emitter=emitter, seed=0)
    outcome = OnlineScenario({"queries": 1234, "warmup": 0.001}).run(subject)
    assert len(outcome.passes[1].timings.starts_ns) == 1234
    assert outcome.values["warm_up_settled"] in {True, False}
    assert len(calls) == 1234 + len(outcome.passes[0].timings.starts_ns)
    windows = [e for e in read() if e["kind"] == "window"]
    assert sum(w["queries"] for w in windows) == 1234, "every measured query is in exactly one window"


def test_a_duration_is_reached_and_windows_come_at_most_twice_a_second(emitted, call) -> None:
    emitter, read = emitted
    subject = Subject(call=call, batches=[0], emitter=emitter, seed=0)
    outcome = OnlineScenario({"duration_s": 2.7, "warmup": 0.001}).run(subject)
    assert outcome.passes[1].timings.busy_ns == 2700 * MS
    windows = [e for e in read() if e["kind"] == "window"]
    assert len(windows) == 6
    # The last window comes when the measurement is over, however short it is.
    assert all(b["t_ns"] - a["t_ns"] >= 500 * MS for a, b in zip(windows[:-1], windows[1:-1], strict=False))


def test_a_long_warm_up_is_not_silent_and_says_little(emitted, call) -> None:
    emitter, read = emitted
    subject = Subject(call=call, batches=[0], emitter=emitter, seed=0)
    OnlineScenario({"queries": 1, "warmup": 4.2}).run(subject)
    told = [e for e in read() if e["kind"] == "progress" and e["phase"] == "warm-up"]
    assert 6 <= len(told) <= 8
    assert all(0 < e["done"] < e["total"] == 4.2 and e["unit"] == "s" for e in told)
    assert all(b["t_ns"] - a["t_ns"] >= 500 * MS for a, b in pairwise(told))


def test_every_batch_is_used_equally_often_and_the_seed_gives_the_order() -> None:
    order = Order(range(10), seed=7)
    taken = order.take(7) + order.take(13) + order.take(25) + order.take(5)
    assert sorted(taken) == sorted(list(range(10)) * 5)
    assert taken[:10] == taken[10:20] == taken[40:50]
    assert Order(range(10), seed=7).take(10) == taken[:10]


def test_nearest_rank() -> None:
    ordered = list(range(1, 101))
    assert [rank(ordered, p) for p in (50, 90, 99, 100)] == [50, 90, 99, 100]
    assert rank([5], 50) == 5
    assert rank([1, 2], 50) == 1


def test_settled_needs_three_windows_within_five_percent() -> None:
    assert not settled([100, 100])
    assert settled([500, 100, 102, 105])
    assert not settled([100, 102, 106])
