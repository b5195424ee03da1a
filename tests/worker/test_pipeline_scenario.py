"""The pipeline scenario with a session of its own: what is run, what is counted, and what the host believes of it."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext

import numpy as np
import pytest

from mlbundle.errors import ProtocolBroken
from mlbundle.runs.measured import read_measure
from mlbundle.runs.pipelines import add
from mlbundle.wording import results_pipeline
from mlbundle.worker.emit import Emitter
from mlbundle.worker.errors import WorkerError, bundle_error
from mlbundle.worker.pipeline.stream import Gather, Spread, Stage, run_stream
from mlbundle.worker.scenarios import pipeline as scenario_module
from mlbundle.worker.scenarios.base import Subject
from mlbundle.worker.scenarios.pipeline import PipelineScenario
from mlbundle.worker.spans import SpanRecorder

OFF = SpanRecorder(enabled=False)


class Session:
    """A dataset of numbers, a model that doubles them into memory that it uses again, and an answer for each."""

    def __init__(self, samples: int = 5) -> None:
        self.dataset = range(samples)
        self.pipeline = self
        self.loaded: list[int] = []
        self.batches: list[int] = []
        self.answered: list[tuple[int, float]] = []
        self._memory = np.zeros(64)
        self.input_stages = [Stage("load", self._load), Stage("tensor", lambda _n, v: {"x": np.float64(v)})]
        self.output_stages = [Stage("answer", self._answer)]

    def _load(self, number: int, _value) -> int:
        self.loaded.append(number)
        return number

    def _answer(self, number: int, outputs: list) -> float:
        self.answered.append((number, float(outputs[0])))
        return float(outputs[0])

    def prepare(self, feeds):
        return feeds["x"]

    def predict(self, batch):
        self.batches.append(len(batch))
        self._memory[: len(batch)] = 2 * batch
        return [self._memory[: len(batch)]]

    def in_order(self, outputs):
        return outputs

    def blamed(self):
        return nullcontext()


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(scenario_module, "WARM_UP_NS", 0)
    descriptor = os.open(tmp_path / "frames", os.O_WRONLY | os.O_CREAT)
    events: list[dict] = []

    def start(session: Session, **options):
        emitter = Emitter(descriptor)
        monkeypatch.setattr(emitter, "event", lambda event: events.append(event.to_document()))
        subject = Subject(call=lambda _b: None, batches=[], emitter=emitter, seed=0, session=session)
        before = set(threading.enumerate())
        outcome = PipelineScenario(options).run(subject)
        assert set(threading.enumerate()) <= before, "no thread may be left"
        return outcome, events

    yield start
    os.close(descriptor)


def stages_of(outcome) -> dict[str, dict]:
    return {stage["name"]: stage for stage in outcome.passes[0].values["pipeline"]["stages"]}


def test_every_sample_goes_through_every_operator_again_and_again(run) -> None:
    session = Session(samples=5)
    outcome, events = run(session, samples=12)
    warm_up = outcome.values["warm_up_queries"]
    assert warm_up == 2
    assert session.loaded == [0, 1, *range(5), *range(5), 0, 1]
    assert session.answered[warm_up:] == [(n % 5, 2.0 * (n % 5)) for n in range(12)]
    (found,) = outcome.passes
    assert found.headline
    assert found.kind == "measure"
    assert len(found.timings.starts_ns) == len(found.timings.ends_ns) == 12
    assert all(end > start for start, end in zip(found.timings.starts_ns, found.timings.ends_ns, strict=True))
    assert found.timings.busy_ns == found.timings.ends_ns[-1] - found.timings.starts_ns[0]
    assert [stage["items"] for stage in stages_of(outcome).values()] == [12, 12, 12, 12], (
        "of what is timed alone"
    )
    assert list(stages_of(outcome)) == ["load", "tensor", "predict", "answer"]
    windows = [event for event in events if event["kind"] == "window"]
    assert sum(window["queries"] for window in windows) == 12
    assert events[-2]["done"] == events[-2]["total"] == 12


def test_batches_are_made_before_the_model_and_taken_apart_after_it(run) -> None:
    session = Session(samples=3)
    outcome, _ = run(session, samples=10, batch_size=4)
    assert session.batches == [4, 4, 4, 4, 2], "two to warm up, then 10 samples"
    assert session.answered[8:] == [(n % 3, 2.0 * (n % 3)) for n in range(10)]
    stages = stages_of(outcome)
    assert list(stages) == ["load", "tensor", "batch", "predict", "unbatch", "answer"]
    assert [stages[name]["items"] for name in ("load", "predict", "answer")] == [10, 3, 10]
    assert outcome.passes[0].values["pipeline"]["threads"] == 8


def test_a_duration_is_filled_with_whole_batches(run) -> None:
    session = Session()
    outcome, _ = run(session, duration_s=0.4, batch_size=7)
    assert set(session.batches) == {7}
    # Threads take their time to begin.
    assert outcome.passes[0].timings.busy_ns >= 0.1e9


def test_one_sample_alone_is_enough(run) -> None:
    session = Session(samples=1)
    outcome, _ = run(session, samples=3, batch_size=2)
    assert session.answered[-3:] == [(0, 0.0)] * 3
    assert len(outcome.passes[0].timings.ends_ns) == 3


def test_the_stage_that_works_is_the_busy_one_and_the_others_wait(run) -> None:
    session = Session()
    slow, resized = threading.Event(), []

    def resize(_number: int, value: int) -> int:
        # Nothing is on its way to the model any more: whatever the machine does meanwhile, nobody else works.
        while len(session.answered) < len(resized):
            slow.wait(0.0001)
        slow.wait(0.002)
        resized.append(value)
        return value

    session.input_stages.insert(1, Stage("resize", resize))
    outcome, _ = run(session, samples=40)
    stages = stages_of(outcome)
    wall_ns = outcome.passes[0].timings.busy_ns
    assert max(stages, key=lambda name: stages[name]["busy_ns"]) == "resize"
    assert stages["resize"]["busy_ns"] > 0.5 * wall_ns
    assert stages["answer"]["starved_ns"] > 0.5 * wall_ns
    assert all(stage["busy_ns"] <= wall_ns for stage in stages.values())


def test_a_full_queue_is_counted_as_blocked() -> None:
    slow = threading.Event()
    stages = [Stage("fast", lambda _n, v: v), Stage("slow", lambda _n, v: slow.wait(0.002))]
    list(run_stream(((n, n) for n in range(40)), stages, OFF))
    assert stages[0].blocked_ns > 10 * 2_000_000
    assert stages[0].blocked_ns > stages[0].busy_ns


@pytest.mark.parametrize("where", [0, 1])
def test_an_operator_that_fails_ends_the_run_with_its_error(run, where) -> None:
    session = Session()
    calls = []

    def failing(number: int, value):
        calls.append(number)
        if len(calls) == 6:
            raise bundle_error("operator-failed", "no more")
        return value

    session.input_stages.insert(where, Stage("failing", failing))
    before = set(threading.enumerate())
    with pytest.raises(WorkerError, match="no more"):
        run(session, samples=50)
    assert set(threading.enumerate()) <= before


def test_gathering_and_spreading_keep_the_order_and_the_rest() -> None:
    stages = [
        Gather("batch", 3),
        Stage("twice", lambda _n, items: [(n, 2 * v) for n, v in items]),
        Spread("unbatch"),
    ]
    assert list(run_stream(((n, n) for n in range(8)), stages, OFF)) == [(n, 2 * n) for n in range(8)]
    assert list(run_stream(iter(()), [Gather("batch", 3), Spread("unbatch")], OFF)) == []


# What the host makes of it.


def said(**changes):
    stage = {"name": "load", "items": 10, "busy_ns": 600, "starved_ns": 5, "blocked_ns": 0}
    return {
        "passes": [
            {
                "folder": "passes/00-measure",
                "kind": "measure",
                "headline": True,
                "queries": 10,
                "samples": 10,
                "busy_ns": 1000,
                "traced_queries": 0,
                "pipeline": {
                    "batch_size": 1,
                    "threads": 4,
                    "stages": [stage, {**stage, "name": "predict", "busy_ns": 900}],
                    **changes,
                },
            }
        ],
        "loop_overhead_ns": 10.0,
        "warm_up_queries": 3,
        "warm_up_settled": True,
        "peak_memory_bytes": 1,
    }


def test_the_result_has_the_share_of_each_operator(tmp_path) -> None:
    added, reasons = add(tmp_path, [read_measure(said())], {"batch_size": 1})
    assert len(reasons) == 1, "ten samples in a microsecond"
    assert "at least 16 queries or 1 s" in reasons[0]
    assert added["pipeline"]["samples_per_s"] == pytest.approx(1e7)
    assert [stage["share"] for stage in added["pipeline"]["stages"]] == [0.6, 0.9]
    assert added["pipeline"]["stages"][1]["mean_ns"] == 90
    assert added["harness_overhead"]["ratio"] == pytest.approx(1.1)
    shown = [text for _, text in results_pipeline.lines(added)]
    assert "10,000,000 /s from file to prediction" in shown[0]
    assert [text.endswith("(holds up the others)") for text in shown] == [False, False, True]


LIES = {
    "no pipeline": lambda p: p.update(pipeline=7),
    "no stages": lambda p: p["pipeline"].update(stages=[]),
    "stages without end": lambda p: p["pipeline"].update(stages=p["pipeline"]["stages"] * 1000),
    "a stage that is none": lambda p: p["pipeline"]["stages"].append("x"),
    "another size of batches": lambda p: p["pipeline"].update(batch_size=4),
    "no threads": lambda p: p["pipeline"].update(threads=0),
    "a name with an escape": lambda p: p["pipeline"]["stages"][0].update(name="\x1b[31m"),
    "a name as long as a book": lambda p: p["pipeline"]["stages"][0].update(name="x" * 10_000),
    "no name": lambda p: p["pipeline"]["stages"][0].pop("name"),
    "busier than there was time": lambda p: p["pipeline"]["stages"][0].update(busy_ns=1001),
    "time that runs backwards": lambda p: p["pipeline"]["stages"][0].update(starved_ns=-1),
    "more samples than asked for": lambda p: p.update(samples=11),
    "items that are no number": lambda p: p["pipeline"]["stages"][0].update(items=True),
}


@pytest.mark.parametrize("name", sorted(LIES))
def test_a_lie_about_a_pipeline_is_not_believed(tmp_path, name) -> None:
    document = said()
    LIES[name](document["passes"][0])
    with pytest.raises(ProtocolBroken):
        add(tmp_path, [read_measure(document)], {"batch_size": 1, "samples": 10})
