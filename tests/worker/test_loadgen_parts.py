"""LoadGen's side of the worker without LoadGen: hints, memory, samples put together, signs of life."""

from __future__ import annotations

import re
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlbundle.wire.job import Job, LimitsJob, ModelJob
from mlbundle.worker.errors import WorkerError
from mlbundle.worker.loadgen import accuracy
from mlbundle.worker.loadgen.compliance import audit_config
from mlbundle.worker.loadgen.issue import IN_LINE, THREAD, arrivals_ns, aside, choose_issue, in_line
from mlbundle.worker.loadgen.pilot import run_offline_pilot, run_pilot
from mlbundle.worker.loadgen.samples import Samples, performance_count
from mlbundle.worker.loadgen.signs import Signs, WaitingSigns
from mlbundle.worker.loadgen.sut import Payloads, SystemUnderTest
from mlbundle.worker.loadgen.wanted import (
    Hints,
    Pilot,
    Wanted,
    expected_s,
    hints_of,
    require_memory,
    require_samples,
    wanted_of,
)

MS = 1_000_000


def job(name: str, **options: Any) -> Job:
    return Job(
        "run", ModelJob("p", {}, (), ()), None, {"name": name, "options": options}, None, limits=LimitsJob()
    )


def pilot(ns: int, batch: int = 1) -> Pilot:
    return Pilot(fast_ns=ns, median_ns=ns, mean_ns=float(ns), queries=10, settled=True, batch=batch)


def test_minimums_are_official_unless_chosen() -> None:
    assert wanted_of(job("single-stream"), 360).min_duration_s == 600
    assert wanted_of(job("single-stream", quick=True), 360).min_duration_s == 2
    assert wanted_of(job("server", duration_s=5.0, queries=7), 360).min_queries == 7
    assert wanted_of(job("offline"), 360).min_queries == 360
    assert wanted_of(job("offline"), 50_000).min_queries == 24_576
    assert wanted_of(job("offline", quick=True), 50_000).min_queries == 64
    assert wanted_of(job("multi-stream", samples_per_query=8), 360).samples_per_query == 8


def test_a_closed_loop_gets_more_queries_than_it_can_answer_and_many_more_where_they_cost_little() -> None:
    for latency_ns in (50_000, MS, 100 * MS):
        hints = hints_of(Wanted("SingleStream", 600, None), pilot(latency_ns), 1 << 40)
        made = 2 * 600e9 / hints.expected_ns
        times = made / (600e9 / latency_ns)
        assert 1.2 < times < 2 if latency_ns <= MS else 8 < times < 16


def test_offline_makes_enough_samples_for_the_time() -> None:
    hints = hints_of(Wanted("Offline", 2, 64), pilot(20 * MS, batch=4), 1 << 40)
    samples_per_s = 4 / 0.02
    assert samples_per_s < hints.rate_per_s < 1.5 * samples_per_s


def test_a_rate_that_nobody_chose_can_be_held_and_fits_the_memory() -> None:
    wanted = Wanted("Server", 600, None)
    assert hints_of(wanted, pilot(10 * MS), 1 << 30).rate_per_s == pytest.approx(40, rel=0.01)
    tight = hints_of(wanted, pilot(10_000), 1 << 30)
    assert tight.memory_bytes <= 1 << 29
    require_memory(wanted, tight, 1 << 30, 100 << 20)


def test_memory_beyond_the_limit_is_refused_with_the_amount() -> None:
    wanted = Wanted("SingleStream", 600, None)
    with pytest.raises(WorkerError, match=r"beforehand: 22\.\d GiB for 600 s .* there are 2 GiB") as refused:
        require_memory(wanted, hints_of(wanted, pilot(11_000), 1 << 40), 2 << 30, 50 << 20)
    assert refused.value.fault == "environment"
    assert "23 GiB or more (--memory)" in str(refused.value.hint)


@pytest.mark.parametrize("scenario", ["SingleStream", "MultiStream", "Offline", "Server"])
def test_the_longest_duration_that_fits_is_told_and_fits(scenario: str) -> None:
    def asked(duration_s: float, found: Pilot) -> None:
        wanted = Wanted(scenario, duration_s, None, rate_per_s=40_000)
        require_memory(wanted, hints_of(wanted, found, 1 << 40), 2 << 30, 50 << 20)

    with pytest.raises(WorkerError) as refused:
        asked(600, pilot(11_000))
    said = re.match(r"--duration (\d+)s fits here, or --quick", str(refused.value.hint))
    assert said is not None
    # The next pilot is never quite the same, and much more does not fit.
    asked(float(said[1]), pilot(10_500))
    with pytest.raises(WorkerError, match="makes its queries beforehand"):
        asked(1.25 * float(said[1]), pilot(11_000))


def test_too_many_queries_fit_in_no_duration() -> None:
    wanted = Wanted("SingleStream", 1, 10**9)
    with pytest.raises(WorkerError) as refused:
        require_memory(wanted, hints_of(wanted, pilot(11_000), 1 << 40), 2 << 30, 50 << 20)
    assert "fewer --queries" in str(refused.value.hint)


def test_a_query_of_more_samples_than_there_are_is_refused() -> None:
    require_samples(Wanted("MultiStream", 2, None, samples_per_query=60), 60, 60)
    require_samples(Wanted("Offline", 2, None, samples_per_query=60), 3, 3)
    wanted = Wanted("MultiStream", 2, None, samples_per_query=100)
    with pytest.raises(WorkerError, match="a query has 100 samples, the data set has 60") as refused:
        require_samples(wanted, 60, 60)
    assert "--samples-per-query 60" in str(refused.value.hint)
    with pytest.raises(WorkerError, match="100 samples, 20 fit in memory"):
        require_samples(wanted, 20, 360)


def test_a_server_with_few_queries_a_second_is_expected_to_take_longer() -> None:
    assert expected_s(Wanted("Server", 2, None), Hints(1, 4.0, 0)) == 25
    assert expected_s(Wanted("Server", 2, 7), Hints(1, 100.0, 0)) == 2
    assert expected_s(Wanted("SingleStream", 2, 1000), Hints(1, 1.0, 0)) == 2


def test_audit_settings_name_a_sample_that_is_loaded() -> None:
    assert "performance_issue_same_index = 3\n" in audit_config("TEST04", 360)
    assert "performance_issue_same_index = 1\n" in audit_config("TEST04", 2)
    assert "accuracy_log_rng_seed" in audit_config("TEST01", 360)


class FakeModel:
    """Doubles its input; `copies` says that a prepared batch no longer sees its memory, `single` refuses batches."""

    def __init__(self, copies: bool = False, single: bool = False) -> None:
        self.copies, self.single, self.asked = copies, single, 0
        self.predictor = SimpleNamespace(predict=lambda _handle, batch: self.predict(batch))
        self.handle = None
        self.dataset = range(20)
        self.pipeline = SimpleNamespace(
            prepare=lambda n: {"x": np.full((3,), n, np.float32)}, output_stages=[]
        )

    def prepare(self, feeds: Any) -> Any:
        return {k: v.copy() for k, v in feeds.items()} if self.copies else feeds

    def predict(self, batch: Any) -> Any:
        if self.single and len(batch["x"]) > 1:
            raise WorkerError("inputs-mismatch", "one at a time", fault="bundle")
        self.asked += 1
        return [batch["x"] * 2]

    def in_order(self, outputs: Any) -> Any:
        return outputs

    def blamed(self) -> Any:
        import contextlib

        return contextlib.nullcontext()


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(
    "indices", [[4], [4, 2], [7, 7, 7, 7], [3, 4, 5, 6, 0, 1], [0, 3, 1], list(range(8)), [5, 4, 4, 4]]
)
def test_a_batch_holds_the_samples_that_were_asked_for(copies, indices) -> None:
    samples = Samples(FakeModel(copies), window=4)
    samples.load([*range(8), 0, 1, 2])
    for _ in range(2):
        for ask in (samples.answer, samples.gathered):
            (found,) = ask(indices)
            assert found[: len(indices), 0].tolist() == [2 * index for index in indices]
            if len(indices) > 1:
                (rest,) = ask(indices[:-1])
                assert rest[: len(indices) - 1, 0].tolist() == [2 * index for index in indices[:-1]]


def test_a_rest_is_asked_for_in_the_shape_of_the_others() -> None:
    samples = Samples(model := FakeModel())
    samples.load(list(range(20)))
    sut = SystemUnderTest(FakeLoadGen(), samples, Signs(Silent(), "measure", 1.0, "s"), fail, None)
    issue, shapes = sut.chunks(16), set()
    samples.gathered([0])
    model.predictor.predict = lambda _handle, batch: shapes.add(batch["x"].shape) or model.predict(batch)
    samples._predict = model.predictor.predict
    issue(list(range(40)), [i % 20 for i in range(40)])
    assert shapes == {(16, 3)}


def test_windows_of_the_loaded_order_are_ready_beforehand() -> None:
    samples = Samples(model := FakeModel(), window=4)
    samples.load([5, 3, 1, 7, 5, 3, 1])
    prepared = []
    model.prepare = lambda feeds: prepared.append(1) or feeds
    for start, wanted in {5: [5, 3, 1, 7], 7: [7, 5, 3, 1]}.items():
        assert samples.answer([*wanted])[0][:, 0].tolist() == [2 * i for i in wanted], start
    assert not prepared


class FakeLoadGen:
    """Takes down who was told to be complete, and the bytes of the answers at that time."""

    def __init__(self) -> None:
        self.told: list[list[tuple[int, bytes]]] = []

    def QuerySampleResponse(self, query: int, address: int, size: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(id=query, data=address, size=size)

    def QuerySamplesComplete(self, responses: Any) -> None:  # noqa: N802
        import ctypes

        self.told.append([(r.id, ctypes.string_at(r.data, r.size) if r.size else b"") for r in responses])


class Silent:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def event(self, event: Any) -> None:
        self.events.append(event)


def fail(error: BaseException) -> Any:
    raise AssertionError from error


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("kind", ["chunks", "batches", "single"])
@pytest.mark.parametrize("logged", [False, True])
def test_every_sample_is_completed_once_with_its_own_answer(single, kind, logged) -> None:
    model = FakeModel(single=single)
    samples = Samples(model, window=4 if kind == "batches" else 1)
    samples.load(list(range(20)))
    fake, signs = FakeLoadGen(), Signs(Silent(), "measure", 1.0, "s")
    payloads = Payloads(model, keep_layouts=True) if logged else None
    sut = SystemUnderTest(fake, samples, signs, fail, payloads)
    issue = {"chunks": lambda: sut.chunks(16), "batches": sut.batches, "single": sut.single}[kind]()
    indices = {"chunks": [i % 20 for i in range(600)], "batches": [3, 4, 5, 6], "single": [9]}[kind]
    issue(list(range(100, 100 + len(indices))), indices)
    told = [pair for group in fake.told for pair in group]
    assert [query for query, _ in told] == list(range(100, 100 + len(indices)))
    wanted = [np.full(3, 2 * i, np.float32).tobytes() if logged else b"" for i in indices]
    assert [data for _, data in told] == wanted
    assert signs.samples == len(indices)
    if kind == "chunks":
        assert all(len(group) >= (64 if logged else 256) for group in fake.told[:-1])


def test_several_outputs_are_logged_one_after_another_and_objects_are_refused() -> None:
    payloads = Payloads(SimpleNamespace(in_order=lambda outputs: outputs), keep_layouts=True)  # type: ignore[arg-type]
    first, second = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([7, 8, 9], np.int64)
    _places, size, held = payloads.of([first, second], [4, 5], own=False)
    assert size == 16
    for place, index in enumerate([4, 5]):
        logged = accuracy._outputs(held[place].tobytes(), payloads.layouts[index])
        assert logged[0].tolist() == first[place].tolist()
        assert logged[1] == second[place]
    with pytest.raises(WorkerError, match="objects of Python"):
        payloads.of([np.array([{}], object)], [0], own=False)


def test_an_answer_is_found_where_it_is_now() -> None:
    payloads = Payloads(SimpleNamespace(in_order=lambda outputs: outputs), keep_layouts=False)  # type: ignore[arg-type]
    bound, other = np.ones((1, 3), np.float32), np.zeros((1, 3), np.float32)
    for output in (bound, bound, other, bound):
        _, place, size, _ = payloads.one([output], 5)
        assert (place, size) == (output.ctypes.data, 12)
    turned = np.asfortranarray(np.arange(4, dtype=np.float32).reshape(1, 2, 2).transpose(0, 2, 1))
    for _ in range(2):
        *_, held = payloads.one([turned], 6)
        assert held.tobytes() == turned.tobytes(order="C")


def test_an_exception_goes_to_who_ends_the_process_and_not_to_loadgen() -> None:
    caught: list[BaseException] = []
    samples = Samples(FakeModel())
    samples.load([0])
    sut = SystemUnderTest(
        FakeLoadGen(),
        samples,
        Signs(Silent(), "measure", 1.0, "s"),
        caught.append,
        None,  # type: ignore[arg-type]
    )
    sut.single()([1], [5])
    assert isinstance(caught[0], KeyError)


def test_signs_of_life_come_twice_a_second_at_most_however_fast_queries_are(monkeypatch) -> None:
    now, emitter = [0], Silent()
    monkeypatch.setattr("mlbundle.worker.loadgen.signs.time.monotonic_ns", lambda: now[0])
    signs = Signs(emitter, "measure", 20.0, "s")
    signs.begin()
    for query_ns in [20_000] * 200_000 + [300 * MS] * 20:
        now[0] += query_ns
        signs.done(1)
    seen = [event.done for event in emitter.events]
    assert 5 <= len(seen) <= 2 * now[0] / 1e9
    assert all(later - earlier >= 0.4 for earlier, later in zip(seen, seen[1:], strict=False))
    assert all(event.eta_s >= 0 for event in emitter.events)


def test_the_pilot_tells_the_times_of_a_loop_that_has_settled(monkeypatch) -> None:
    now = [0]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])

    def call(_query: Any) -> None:
        now[0] += MS

    found = run_pilot(call, [1, 2, 3], 1.0, lambda: None)
    assert found.median_ns == found.fast_ns == MS
    assert found.settled is True


def test_the_pilot_of_offline_finds_the_batch_that_answers_most(monkeypatch) -> None:
    now, model = [0], FakeModel()
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])

    def predict(_handle: Any, batch: Any) -> Any:
        size = len(batch["x"])
        now[0] += 100_000 + size * (10_000 if size <= 16 else 100_000)
        return [batch["x"]]

    model.predictor.predict = predict
    samples = Samples(model)
    samples.load(list(range(20)))
    found = run_offline_pilot(samples, list(range(20)), 1.0, lambda: None)
    assert found.batch == 16
    assert found.median_ns == 260_000


def test_what_may_be_loaded_is_a_share_of_the_memory() -> None:
    assert performance_count(FakeModel(), 1 << 30) == 20
    assert performance_count(FakeModel(), 4 * 12 * 5) == 5
    assert performance_count(FakeModel(), 1) == 1


@pytest.mark.parametrize(
    "text",
    [
        "no log",
        '[\n{ "seq_id" : 0, "qsl_idx" : 0, "data" : "0" }\n]',
        '[\n{ "seq_id" : 0, "data" : "00" }\n]',
        '[\n{ "seq_id" : 0, "qsl_idx" : 0, "data" : "00" },\n{ "seq_id" : 1, "qsl_idx" : 0, "data" : "00" }\n]',
    ],
)
def test_an_accuracy_log_that_is_none_is_told(tmp_path, text) -> None:
    path = tmp_path / "log.json"
    path.write_text(text)
    with pytest.raises(WorkerError) as refused:
        accuracy.read_log(str(path))
    assert refused.value.reference == "loadgen-log"


@pytest.mark.parametrize(
    ("line", "thread", "rate", "wanted"),
    [
        ([100] * 5, [50] * 5, 10_000, THREAD),
        ([100] * 5, [95] * 5, 10_000, IN_LINE),
        ([100] * 5, [50, 50, 50, 50, 120], 10_000, IN_LINE),
        ([100] * 5, [50] * 5, 10, IN_LINE),
    ],
)
def test_a_worker_thread_is_chosen_where_its_tail_is_clearly_lower_each_time(
    monkeypatch, line, thread, rate, wanted
) -> None:
    def way(tails: list[int]) -> Any:
        left = iter(tails)
        return lambda _answer, queries, _due_ns: [next(left)] * len(queries)

    monkeypatch.setattr("mlbundle.worker.loadgen.issue.in_line", way(line))
    monkeypatch.setattr("mlbundle.worker.loadgen.issue.aside", way(thread))
    found = choose_issue(lambda _index: None, [0, 1], rate, 1000.0, most_s=1.0, tell=lambda: None)
    assert found == wanted


@pytest.mark.parametrize("way", [in_line, aside])
def test_the_pilot_of_a_server_answers_each_arrival_once_and_counts_from_when_it_was_due(way) -> None:
    answered: list[int] = []
    due_ns = [0, MS, MS, 2 * MS]
    latencies = way(lambda index: (answered.append(index), time.sleep(0.002)), [4, 2, 7, 2], due_ns)
    assert answered == [4, 2, 7, 2]
    assert len(latencies) == 4
    assert latencies[3] >= 6 * MS, "it waited for the others"

    def raises(_index: int) -> None:
        raise ArithmeticError("a wire came loose")

    with pytest.raises(ArithmeticError):
        way(raises, [1], [0])


def test_arrivals_come_at_the_rate() -> None:
    found = arrivals_ns(1000.0, 20_000, 1)
    assert found == sorted(found)
    assert found[-1] == pytest.approx(20e9, rel=0.05)


def test_a_worker_thread_answers_in_order_and_is_waited_for() -> None:
    samples = Samples(FakeModel())
    samples.load(list(range(20)))
    fake, signs = FakeLoadGen(), Signs(Silent(), "measure", 1.0, "s")
    sut = SystemUnderTest(fake, samples, signs, fail, None)
    issue = sut.aside(sut.single())
    for query in range(500):
        issue([query], [query % 20])
    sut.flush()
    sut.finish()
    assert [query for group in fake.told for query, _ in group] == list(range(500))
    assert sut.ended_ns >= sut.begun_ns > 0


def test_signs_of_life_come_while_no_query_is_there_and_not_while_the_model_has_one() -> None:
    emitter, said, told = Silent(), [], threading.Event()
    emitter.event = lambda event: (said.append(event), told.set())  # type: ignore[method-assign]
    signs = Signs(emitter, "measure", 10.0, "s")
    signs.begin()
    waiting = WaitingSigns(signs, every_s=0.005)
    model_has_it, go_on = threading.Event(), threading.Event()

    def issue(ids: Any, _indices: Any) -> None:
        if ids[0]:
            model_has_it.set()
            go_on.wait()
        signs.samples += 1

    noting = waiting.watching(issue)
    noting([0], [0])
    assert told.wait(60)
    query = threading.Thread(target=noting, args=([1], [0]))
    query.start()
    model_has_it.wait()
    before = len(said)
    time.sleep(0.1)
    assert len(said) <= before + 1, "but for one that had begun"
    told.clear()
    go_on.set()
    assert told.wait(60)
    query.join()
    waiting.stop()
    told.clear()
    assert not told.wait(0.03)
