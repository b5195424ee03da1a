"""The streaming executor: order, overlap, failure, no thread left."""

from __future__ import annotations

import threading

import pytest

from mlbundle.worker.pipeline.stream import QUEUE_LENGTH, Stage, run_stream
from mlbundle.worker.spans import SpanRecorder


def numbers(count: int):
    return ((i, i) for i in range(count))


def test_results_come_in_order_through_all_stages() -> None:
    stages = [Stage("double", lambda _n, v: 2 * v), Stage("add", lambda n, v: v + n)]
    assert list(run_stream(numbers(100), stages, SpanRecorder(enabled=False))) == [
        (i, 3 * i) for i in range(100)
    ]


def test_stages_work_at_the_same_time() -> None:
    """Stage two lets stage one go on only when it has seen its second value: alone, neither would finish."""
    second_begun = threading.Event()

    def first(number: int, value: int) -> int:
        if number == 1:
            assert second_begun.wait(60)
        return value

    def second(number: int, value: int) -> int:
        second_begun.set()
        return value

    results = list(
        run_stream(numbers(3), [Stage("a", first), Stage("b", second)], SpanRecorder(enabled=False))
    )
    assert results == [(0, 0), (1, 1), (2, 2)]


def test_a_slow_stage_holds_back_the_source() -> None:
    taken: list[int] = []
    gate = threading.Event()

    def source():
        for i in range(1000):
            taken.append(i)
            yield i, i

    stream = run_stream(
        source(), [Stage("slow", lambda _n, v: gate.wait(60) and v)], SpanRecorder(enabled=False)
    )
    puller = threading.Thread(target=lambda: next(stream))
    puller.start()
    gate.set()
    puller.join()
    assert len(taken) <= 2 * QUEUE_LENGTH + 4
    stream.close()


def test_the_first_failure_is_raised_and_all_threads_end() -> None:
    before = set(threading.enumerate())

    def fail(number: int, value: int) -> int:
        if number == 5:
            raise ValueError("five")
        return value

    with pytest.raises(ValueError, match="five"):
        list(
            run_stream(
                numbers(1000), [Stage("a", fail), Stage("b", lambda _n, v: v)], SpanRecorder(enabled=False)
            )
        )
    assert set(threading.enumerate()) <= before


def test_leaving_early_ends_all_threads() -> None:
    before = set(threading.enumerate())
    stream = run_stream(numbers(1000), [Stage("a", lambda _n, v: v)], SpanRecorder(enabled=False))
    next(stream)
    stream.close()
    assert set(threading.enumerate()) <= before


def test_every_stage_leaves_a_span_for_every_sample() -> None:
    import io

    import numpy as np

    spans = SpanRecorder(enabled=True)
    list(run_stream(numbers(4), [Stage("a", lambda _n, v: v), Stage("b", lambda _n, v: v)], spans))
    spans.add_queries([10, 20], [15, 29], 0)
    with np.load(io.BytesIO(spans.to_bytes()), allow_pickle=False) as columns:
        names = [columns["strings"][i] for i in columns["name"]]
        assert sorted(names) == ["a"] * 4 + ["b"] * 4 + ["predict"] * 2 + ["query"] * 2
        predict = names.index("predict")
        assert names[columns["parent"][predict]] == "query"
        assert columns["duration_ns"][predict] == 5
