"""The batched scenario: which sizes are measured, how the search ends, and what the host believes of it."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from mlbundle.errors import ProtocolBroken
from mlbundle.runs.batches import add
from mlbundle.runs.measured import read_measure
from mlbundle.wording import results_batched
from mlbundle.worker.emit import Emitter
from mlbundle.worker.errors import WorkerError, bundle_error
from mlbundle.worker.scenarios import batched, closed, headroom, loop
from mlbundle.worker.scenarios.base import Subject
from mlbundle.worker.scenarios.batched import BatchedScenario, without_gain

AUTO = {"duration_s": 0.05, "warmup": "auto"}


class Model:
    """A model on a clock of its own: a batch takes what `cost_ns` says, and `fails` may raise for its size."""

    def __init__(self, cost_ns=lambda size: 100_000 + 1_000 * size, fails=lambda size, calls: None) -> None:
        self.now_ns = 1
        self.calls: dict[int, int] = {}
        self._cost_ns, self._fails = cost_ns, fails

    def monotonic_ns(self) -> int:
        return self.now_ns

    def batches_of(self, size: int) -> list[int]:
        return [size, size]

    def __call__(self, size: int) -> list[range]:
        self.calls[size] = self.calls.get(size, 0) + 1
        self._fails(size, self.calls[size])
        self.now_ns += self._cost_ns(size)
        return [range(size)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    descriptor = os.open(tmp_path / "frames", os.O_WRONLY | os.O_CREAT)

    def start(model: Model, options: dict, session=None):
        for module in (loop, closed, batched):
            monkeypatch.setattr(module, "time", model)
        emitter = Emitter(descriptor)
        monkeypatch.setattr(emitter, "event", lambda event: events.append(event.to_document()))
        events: list[dict] = []
        subject = Subject(
            call=model, batches=[1], emitter=emitter, seed=0, batches_of=model.batches_of, session=session
        )
        outcome = BatchedScenario(options).run(subject)
        return outcome, events

    yield start
    os.close(descriptor)


def sizes_of(outcome) -> list[int]:
    return [found.values["batch_size"] for found in outcome.passes]


def best_of(outcome) -> int:
    return next(found.values["batch_size"] for found in outcome.passes if found.headline)


def failing(size: int, error: BaseException, call: int = 1):
    def fails(asked: int, calls: int) -> None:
        if asked >= size and calls >= call:
            raise error

    return fails


def test_sizes_double_until_the_throughput_grows_no_more(run) -> None:
    # size / (100 + size): 2048 still gains 4.6 %, 4096 and 8192 gain 2.4 % and 1.2 %.
    outcome, _ = run(Model(), AUTO)
    assert sizes_of(outcome) == [2**power for power in range(14)]
    assert best_of(outcome) == 8192
    assert outcome.values["search"] == {"ended": "no-gain", "batch_size": None, "message": None}
    assert outcome.values["warm_up_settled"] is True


def test_the_fastest_size_is_the_headline_and_not_the_last(run) -> None:
    outcome, _ = run(Model(lambda size: 10_000 + 1_000 * size + (size > 64) * 30 * size * size), AUTO)
    assert sizes_of(outcome) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert best_of(outcome) == 64


def test_interruptions_do_not_end_the_search(run) -> None:
    """From 4 on every tenth batch takes a hundred times as long: throughput falls, the median batch does not."""
    model = Model()
    model._cost_ns = lambda size: (
        (100_000 + 1_000 * size) * (100 if size in {4, 8} and model.calls[size] % 10 == 0 else 1)
    )
    outcome, _ = run(model, AUTO)
    assert sizes_of(outcome)[-1] == 8192


def test_one_step_without_gain_does_not_end_the_search() -> None:
    assert not without_gain([1.0, 1.0])
    assert not without_gain([1.0, 2.0, 2.0])
    assert not without_gain([1.0, 2.0, 2.0, 2.1])
    assert without_gain([1.0, 2.0, 2.0, 2.05])
    assert without_gain([1.0, 2.0, 1.0, 1.5]), "what only makes up for a loss is no gain"


def test_the_search_ends_at_the_largest_size(run, monkeypatch) -> None:
    monkeypatch.setattr(batched, "LARGEST", 16)
    outcome, _ = run(Model(lambda size: 100_000), AUTO)
    assert sizes_of(outcome) == [1, 2, 4, 8, 16]
    assert outcome.values["search"]["ended"] == "largest"


def test_given_sizes_are_all_measured_for_as_many_batches_as_asked(run) -> None:
    outcome, events = run(Model(), {"batch_sizes": [4, 1, 4], "queries": 70, "warmup": 0.001})
    assert sizes_of(outcome) == [1, 4]
    assert [len(found.timings.starts_ns) for found in outcome.passes] == [70, 70]
    assert [found.samples_per_query for found in outcome.passes] == [1, 4]
    assert outcome.values["search"]["ended"] == "given"
    windows = [event for event in events if event["kind"] == "window"]
    assert sum(window["queries"] for window in windows) == 140
    assert windows[-1]["throughput"] == pytest.approx(4 / 104e-6), "samples a second, not batches"
    last = [event for event in events if event["kind"] == "progress"][-1]
    assert (last["done"], last["total"], last["eta_s"]) == (2, 2, 0)


def test_progress_without_an_end_in_sight_has_no_total(run) -> None:
    _, events = run(Model(), AUTO)
    progress = [event for event in events if event["kind"] == "progress"]
    assert all(event["total"] is None and event["eta_s"] is None for event in progress)
    done = [event["done"] for event in progress]
    assert done == sorted(done)


SHORTAGES = {
    "python": MemoryError(),
    "onnxruntime": WorkerError("inference-failed", "ONNX Runtime: std::bad_alloc", fault="framework"),
    "torch": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    "a gpu": WorkerError("out-of-memory", "the memory of the GPU is full", fault="environment"),
}


@pytest.mark.parametrize("call", [1, 2, 400])
@pytest.mark.parametrize("name", sorted(SHORTAGES))
def test_a_size_that_does_not_fit_ends_the_search_with_what_was_found(run, name, call) -> None:
    outcome, events = run(Model(fails=failing(8, SHORTAGES[name], call)), AUTO)
    assert sizes_of(outcome) == [1, 2, 4]
    assert best_of(outcome) == 4
    search = outcome.values["search"]
    assert (search["ended"], search["batch_size"]) == ("memory", 8)
    assert search["message"]
    assert [event["reference"] for event in events if event["kind"] == "warning"] == ["batch-size-memory"]


def test_a_size_that_would_not_fit_is_not_tried(run, monkeypatch) -> None:
    """50 MB a sample below a limit of 1 GB: 16 take 850 MB and are tried, 32 would take 1,650."""
    used = iter([50, 100, 150, 250, 450, 850])
    monkeypatch.setattr(batched, "high_water_bytes", lambda: next(used) * 1_000_000)
    monkeypatch.setattr(batched, "limit_bytes", lambda: 1_000_000_000)
    model = Model()
    outcome, _ = run(model, AUTO)
    assert sizes_of(outcome) == [1, 2, 4, 8, 16]
    assert 32 not in model.calls
    assert (outcome.values["search"]["ended"], outcome.values["search"]["batch_size"]) == ("memory", 32)


def test_where_the_system_says_nothing_of_memory_the_search_goes_on(run, monkeypatch) -> None:
    monkeypatch.setattr(headroom, "_kilobytes", lambda path: {})
    monkeypatch.setattr(headroom, "_GROUP_LIMITS", ())
    assert headroom.limit_bytes() is None
    assert headroom.high_water_bytes() is None
    outcome, _ = run(Model(), {**AUTO, "batch_sizes": [1, 2, 4]})
    assert sizes_of(outcome) == [1, 2, 4]


def test_the_lowest_limit_counts(tmp_path, monkeypatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(headroom, "_GROUP_LIMITS", (str(limit), str(tmp_path / "missing")))
    limit.write_text("max\n")
    of_the_machine = headroom.limit_bytes()
    assert of_the_machine > headroom.high_water_bytes() / 2
    limit.write_text("12345\n")
    assert headroom.limit_bytes() == 12345


def test_a_model_of_single_samples_is_measured_with_those(run) -> None:
    error = bundle_error("inputs-mismatch", "the input takes the shape [1, 6], it is fed [2, 6]")
    outcome, events = run(Model(fails=failing(2, error)), AUTO)
    assert sizes_of(outcome) == [1]
    assert outcome.values["search"]["ended"] == "refused"
    warned = next(event for event in events if event["kind"] == "warning")
    assert "[1, 6]" in warned["message"]


def test_a_model_that_answers_another_number_of_samples_does_not_count_as_taking_batches(run) -> None:
    class Flat(Model):
        def __call__(self, size: int) -> list[range]:
            super().__call__(size)
            return [range(1)]

    outcome, _ = run(Flat(), AUTO, session=SimpleNamespace(in_order=list))
    assert sizes_of(outcome) == [1]
    assert outcome.values["search"]["message"] == "the model answers a batch of 2 with 1 results"


def test_given_sizes_none_of_which_can_be_measured_are_an_error_that_says_why(run) -> None:
    refusing = bundle_error("inputs-mismatch", "fed [4, 6]")
    with pytest.raises(WorkerError, match=r"no batches of 4.*fed") as caught:
        run(Model(fails=failing(2, refusing)), {**AUTO, "batch_sizes": [4, 8]})
    assert (caught.value.reference, caught.value.fault) == ("batch-size-refused", "bundle")
    with pytest.raises(WorkerError, match="4 does not fit") as caught:
        run(Model(fails=failing(2, MemoryError())), {**AUTO, "batch_sizes": [4, 8]})
    assert (caught.value.reference, caught.value.fault) == ("out-of-memory", "environment")


@pytest.mark.parametrize("call", [1, 50])
def test_what_is_wrong_with_single_samples_is_told_as_it_is(run, call) -> None:
    error = WorkerError("inference-failed", "it broke", fault="framework")
    with pytest.raises(WorkerError) as caught:
        run(Model(fails=failing(1, error, call)), AUTO)
    assert caught.value is error


def test_a_model_that_breaks_in_the_middle_of_a_size_fails_the_run(run) -> None:
    error = WorkerError("inference-failed", "it broke", fault="framework")
    with pytest.raises(WorkerError, match="it broke"):
        run(Model(fails=failing(4, error, 100)), AUTO)


def test_a_host_that_is_gone_ends_the_search(run) -> None:
    with pytest.raises(BrokenPipeError):
        run(Model(fails=failing(4, BrokenPipeError())), AUTO)


def test_more_sizes_than_a_run_has_folders_for_are_refused() -> None:
    with pytest.raises(WorkerError, match="100 sizes"):
        BatchedScenario({"batch_sizes": list(range(1, 101))})


# What the host makes of it.


def said(folder, batches=((1, 100, 1000), (4, 50, 1000)), **changes):
    """Write the latencies of batches of (size, queries, latency in ns); return what a worker would say of them."""
    passes = []
    for number, (size, queries, latency_ns) in enumerate(batches):
        place = f"passes/{number:02}-batch"
        (folder / place).mkdir(parents=True)
        np.save(folder / place / "latencies.npy", np.full(queries, latency_ns, np.int64))
        passes.append(
            {
                "folder": place,
                "kind": "batch",
                "headline": number == len(batches) - 1,
                "queries": queries,
                "samples": queries * size,
                "busy_ns": queries * latency_ns,
                "traced_queries": 0,
                "batch_size": size,
                "settled": True,
            }
        )
    return {
        "passes": passes,
        "loop_overhead_ns": 1.0,
        "warm_up_queries": 3,
        "warm_up_settled": True,
        "peak_memory_bytes": 1,
        "search": {"ended": "given", "batch_size": None, "message": None},
        **changes,
    }


def test_the_result_has_every_size_and_the_best(tmp_path) -> None:
    added, reasons = add(tmp_path, [read_measure(said(tmp_path))], {"batch_sizes": [4, 1]})
    assert reasons == []
    assert [batch["batch_size"] for batch in added["batches"]] == [1, 4]
    assert added["batches"][1]["latency_ns"]["p99"] == 1000
    assert added["optimal"] == {"batch_size": 4, "throughput_per_s": pytest.approx(4e6)}
    shown = dict(results_batched.lines(added))
    assert shown["best batch"] == "4 samples: 4,000,000 /s"


LIES = {
    "no size": lambda s: s["passes"][0].pop("batch_size"),
    "a size of nothing": lambda s: s["passes"][0].update(batch_size=0),
    "a size that is no number": lambda s: s["passes"][0].update(batch_size="4"),
    "the same size twice": lambda s: s["passes"][0].update(batch_size=4, samples=400),
    "sizes in no order": lambda s: s["passes"].reverse(),
    "more samples than batches hold": lambda s: s["passes"][1].update(samples=10_000),
    "faster than its latencies": lambda s: s["passes"][1].update(busy_ns=10),
    "another kind among them": lambda s: s["passes"][0].update(kind="measure", folder="passes/00-measure"),
    "a headline that is not the fastest": lambda s: [
        s["passes"][0].update(headline=True),
        s["passes"][1].update(headline=False),
    ],
    "no search": lambda s: s.pop("search"),
    "an end of its own": lambda s: s["search"].update(ended="tired"),
    "a search that ended at a word": lambda s: s["search"].update(batch_size="x"),
    "nothing measured": lambda s: s["passes"][0].update(queries=0, samples=0),
}


@pytest.mark.parametrize("name", sorted(LIES))
def test_a_lie_about_batches_is_not_believed(tmp_path, name) -> None:
    document = said(tmp_path)
    LIES[name](document)
    json.dumps(document)
    with pytest.raises(ProtocolBroken):
        add(tmp_path, [read_measure(document)], {"batch_sizes": [4, 1]})


@pytest.mark.parametrize(
    ("options", "ended", "believed"),
    [
        ({"batch_sizes": [1, 4]}, "given", True),
        ({"batch_sizes": [1, 4, 8]}, "memory", True),
        ({"batch_sizes": [1, 4, 8]}, "given", False),
        ({"batch_sizes": [1, 4]}, "no-gain", False),
        ({"batch_sizes": [1, 2]}, "given", False),
        ({}, "given", False),
        ({}, "no-gain", False),
        ({"batch_sizes": [1, 4], "queries": 100}, "given", True),
        ({"batch_sizes": [1, 4], "queries": 50}, "given", False),
    ],
)
def test_sizes_and_queries_are_those_that_were_asked_for(tmp_path, options, ended, believed) -> None:
    document = said(tmp_path, ((1, 100, 1000), (4, 100, 1000)), search={"ended": ended})
    with nullcontext() if believed else pytest.raises(ProtocolBroken):
        add(tmp_path, [read_measure(document)], options)


def test_a_search_that_doubles_is_believed(tmp_path) -> None:
    document = said(tmp_path, ((1, 9, 10), (2, 9, 10), (4, 9, 10)), search={"ended": "no-gain"})
    added, _ = add(tmp_path, [read_measure(document)], {})
    assert added["optimal"]["batch_size"] == 4
