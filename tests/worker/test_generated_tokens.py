"""Answers token by token in the worker: what is noted of them, what LoadGen is told, and its search for the peak."""

from __future__ import annotations

import contextlib
import io
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlbundle.wire.job import Job, LimitsJob, ModelJob
from mlbundle.wire.passes import passes_of, wanted_files
from mlbundle.worker import tokens
from mlbundle.worker.errors import WorkerError
from mlbundle.worker.loadgen import peak
from mlbundle.worker.loadgen import tokens as loadgen_tokens
from mlbundle.worker.loadgen.wanted import Wanted
from mlbundle.worker.predictors.answer import AnswerCheck
from mlbundle.worker.scenarios.base import Timings


def job(name: str, **options: Any) -> Job:
    return Job(
        "run", ModelJob("p", {}, (), ()), None, {"name": name, "options": options}, None, limits=LimitsJob()
    )


class Clock:
    """Time that goes on only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        monkeypatch.setattr("time.monotonic_ns", lambda: self.now)

    def generate(self, _handle: Any, batch: list[int]) -> Any:
        """A token after each of these times; the answer is their number."""
        for wait in batch[:-1]:
            self.now += wait
            yield
        self.now += batch[-1]
        return [np.array([[len(batch) - 1]])]


class Sent:
    """An emitter that keeps arrays."""

    def __init__(self) -> None:
        self.files: dict[str, list[int]] = {}

    def file(self, name: str, content: bytes) -> None:
        self.files[name] = np.load(io.BytesIO(content)).tolist()


def test_the_first_token_and_their_number_are_noted_and_the_outputs_are_returned(monkeypatch) -> None:
    clock = Clock(monkeypatch)
    call = tokens.TokenCall(clock.generate, None)
    assert call([5, 7, 7, 100])[0].tolist() == [[3]]
    assert call([40, 1])[0].tolist() == [[1]]
    assert call.first_ns.tolist() == [5, 5 + 7 + 7 + 100 + 40]
    assert call.counts.tolist() == [3, 1]


@pytest.mark.parametrize("scheduled", [None, array("q", [90, 240])])
def test_what_is_sent_is_of_the_last_queries_and_counts_from_where_their_latency_does(scheduled) -> None:
    call = tokens.TokenCall(lambda *_: iter(()), None)
    call.first_ns, call.counts = array("q", [1, 2, 130, 330]), array("q", [9, 9, 4, 5])
    emitter, timings = Sent(), Timings(array("q", [100, 300]), array("q", [200, 400]), 300, scheduled)
    assert call.send(emitter, "passes/01-measure", timings) == 9
    assert emitter.files == {
        "passes/01-measure/first_tokens.npy": [30, 30] if scheduled is None else [40, 90],
        "passes/01-measure/tokens.npy": [4, 5],
    }
    call.counts[-1] = 0
    with pytest.raises(WorkerError, match="before it gave a token"):
        call.send(emitter, "passes/01-measure", timings)


class Model:
    """A session whose predictor answers with what it is given; `own` is the answer of `generate`, token by token."""

    def __init__(self, own: Any, whole: Any = None, count: int = 2) -> None:
        whole = own if whole is None else whole

        def generate(_handle: Any, _batch: Any) -> Any:
            for _ in range(count):
                yield
            return own

        self.predictor = SimpleNamespace(generate=generate, predict=lambda _handle, _batch: whole)
        self.handle = None
        self.answers = AnswerCheck([{"element_type": "int64", "shape": ["N", 2]}], [0], own=True)

    def predict(self, batch: Any) -> Any:
        return self.predictor.predict(None, batch)

    def in_order(self, outputs: Any) -> Any:
        return outputs

    def blamed(self, _call: str = "") -> Any:
        return contextlib.nullcontext()


GOOD = [np.array([[1, 2]], np.int64)]


def test_an_answer_in_order_is_taken_and_its_first_try_is_not_counted() -> None:
    assert not len(tokens.token_call(Model(GOOD), {}).counts)


@pytest.mark.parametrize(
    ("model", "least", "said"),
    [
        (Model(None), 1, r"generate\(\) returned nothing"),
        (Model([[1, 2]]), 1, "a NumPy array is expected"),
        (Model([np.array([[1.5, 2]])]), 1, "elements of float64, and the manifest says int64"),
        (Model(GOOD, [np.array([[1, 3]])]), 1, "answer the first sample otherwise"),
        (Model(GOOD, count=0), 1, "before it gave a token"),
        (Model(GOOD, count=1), 2, "LoadGen takes none of fewer than two"),
    ],
)
def test_an_answer_that_is_none_is_found_before_anything_is_timed(model, least, said) -> None:
    with pytest.raises(WorkerError, match=said) as refused:
        tokens.token_call(model, {}, least=least)
    assert refused.value.fault == "bundle"


class FakeLoadGen:
    """Notes what it is told, in order."""

    TestMode = SimpleNamespace(FindPeakPerformance="find peak")

    def __init__(self) -> None:
        self.told: list[Any] = []

    def QuerySampleResponse(self, *values: int) -> tuple[int, ...]:  # noqa: N802 - LoadGen's name
        return values

    def FirstTokenComplete(self, responses: Any) -> None:  # noqa: N802
        self.told.append(("first", *responses))

    def QuerySamplesComplete(self, responses: Any) -> None:  # noqa: N802
        self.told.append(("whole", *responses))


def answers(generate: Any, payloads: Any = None) -> tuple[FakeLoadGen, Any]:
    loadgen = FakeLoadGen()
    session = SimpleNamespace(predictor=SimpleNamespace(generate=generate), handle=None)
    samples = SimpleNamespace(ready={7: [1, 2, 3], 8: [1, 2, 3, 4]})
    signs = SimpleNamespace(done=lambda _count: loadgen.told.append("sign"))
    return loadgen, loadgen_tokens.Answers(session, samples, signs, payloads).callback(loadgen)


def test_loadgen_hears_of_the_first_token_then_of_the_whole_answer_with_their_number() -> None:
    told: list[Any] = []

    def generate(_handle: Any, batch: list[int]) -> Any:
        for token in batch:
            told.append((token, len(loadgen.told)))
            yield
        return GOOD

    loadgen, run = answers(generate)
    run([100, 101], [7, 8])
    assert loadgen.told == [
        ("first", (100, 0, 0)),
        ("whole", (100, 0, 0, 3)),
        "sign",
        ("first", (101, 0, 0)),
        ("whole", (101, 0, 0, 4)),
        "sign",
    ]
    assert told[:2] == [(1, 0), (2, 1)], "LoadGen hears of the first token before the second is made"


def test_loadgen_gets_the_outputs_where_it_logs_them() -> None:
    payloads = SimpleNamespace(one=lambda answer, index: (answer, index * 10, 16, None))
    loadgen, run = answers(lambda _handle, batch: (yield from iter(batch)) or GOOD, payloads)
    run([100], [7])
    assert loadgen.told[1] == ("whole", (100, 70, 16, 3))


def test_an_answer_of_one_token_never_reaches_loadgen() -> None:
    loadgen, run = answers(lambda _handle, _batch: iter([None]))
    with pytest.raises(WorkerError, match="fewer than two"):
        run([100], [7])
    assert [entry[0] for entry in loadgen.told] == ["first"]


def test_limits_for_tokens_need_tokens_and_a_limit_for_answers_means_whole_ones() -> None:
    generating, whole = (
        SimpleNamespace(predictor=SimpleNamespace(**calls))
        for calls in ({"generate": print}, {"predict": print})
    )
    assert loadgen_tokens.wants_tokens(job("single-stream"), generating)
    assert loadgen_tokens.wants_tokens(job("server", ttft_latency_s=0.1), generating)
    assert not loadgen_tokens.wants_tokens(job("server", target_latency_s=0.1), generating)
    assert not loadgen_tokens.wants_tokens(job("server"), whole)
    with pytest.raises(WorkerError, match=r"no generate\(\)"):
        loadgen_tokens.wants_tokens(job("server", tpot_latency_s=0.1), whole)
    settings = SimpleNamespace(ttft_latency=1, tpot_latency=1)
    loadgen_tokens.set_up(settings, job("server", ttft_latency_s=0.25))
    assert vars(settings) == {"ttft_latency": 250_000_000, "tpot_latency": 1, "use_token_latencies": True}


def test_a_peak_has_searches_and_confirmations_each_with_logs_of_its_own() -> None:
    names = passes_of(job("server", find_peak=True))
    assert names == [
        *(f"loadgen:peak-{number}" for number in range(3)),
        "loadgen:performance",
        "loadgen:performance:1",
        "loadgen:performance:2",
    ]
    assert passes_of(job("server")) == ["loadgen:performance"]
    files = wanted_files(job("server", find_peak=True))
    assert {f"loadgen/{k}/mlperf_log_detail.txt" for k in ("peak-2", "unconfirmed-1")} <= files


def test_a_search_begins_where_the_user_says_else_below_what_the_pilot_allows_and_then_lower() -> None:
    assert peak.first_rate(None, {"rate_per_s": 80.0}, 80.0) == 80
    assert peak.first_rate(None, {}, 80.0) == 40
    assert peak.first_rate(peak.Peak(40.0, found=False), {}, 80.0) == 4


def test_a_trial_is_long_enough_for_its_percentile_and_no_longer_than_the_test() -> None:
    wanted = Wanted("Server", 600, None)
    assert peak.trial_of(wanted, 5000.0, {"target_latency_s": 0.01}).min_duration_s == 2
    assert peak.trial_of(wanted, 100.0, {"target_latency_s": 0.01}).min_duration_s == 10
    assert peak.trial_of(wanted, 5000.0, {"target_latency_s": 0.5}).min_duration_s == 10
    assert peak.trial_of(wanted, 1.0, {"ttft_latency_s": 0.5}).min_duration_s == 600


@pytest.mark.parametrize(("rate", "decimals"), [(0.5, 2), (10, 1), (49, 1), (100, 0), (50_000, 0)])
def test_a_rate_is_searched_to_two_percent_or_one_a_second(rate, decimals) -> None:
    settings = SimpleNamespace()
    peak.set_up(FakeLoadGen(), settings, rate)
    assert settings.mode == "find peak"
    assert settings.server_target_qps == rate
    assert settings.server_find_peak_qps_decimals_of_precision == decimals
    assert 10**-decimals <= max(0.02 * rate, 1)


def test_a_peak_that_a_test_does_not_confirm_is_lowered_until_the_last() -> None:
    found = peak.Peak(100.0, found=True)
    assert found.after(valid=True, attempt=0) == peak.Peak(100.0, found=True, settled=True)
    second = found.after(valid=False, attempt=0)
    assert (second.rate_per_s, second.settled) == (90, False)
    last = second.after(valid=False, attempt=1).after(valid=False, attempt=2)
    assert (last.rate_per_s, last.settled) == (pytest.approx(81), True)
    assert peak.Peak(100.0, found=False).after(valid=False, attempt=0).settled, "there is nothing to confirm"


def test_what_a_search_leaves_is_read_from_the_log_and_kept_for_the_next_process(tmp_path) -> None:
    log = tmp_path / "mlperf_log_detail.txt"
    text = ':::MLLOG {{"key": "generic_message", "value": "FindPeakPerformance: {}"}}\n'
    log.write_text(text.format("Found boundaries: [2.000000, 4.000000)"))
    assert peak.found_in(str(tmp_path), 2.0, {}) == peak.Peak(2.0, found=False)
    assert peak.found_in(str(tmp_path), 2.0, {"rate_per_s": 2.0}).searched, "a user's rate is not lowered"
    log.write_text(text.format("Found peak performance field: 3.250000"))
    found = peak.found_in(str(tmp_path), 2.0, {})
    assert found == peak.Peak(3.25, found=True)
    assert peak.Peak.load(str(tmp_path)) is None
    found.save(str(tmp_path))
    assert peak.Peak.load(str(tmp_path)) == found


def test_a_search_without_an_end_is_ended() -> None:
    failed: list[BaseException] = []
    end = peak.end_of_trial(failed.append)
    for _ in range(peak.MOST_TRIALS - 1):
        end()
    assert not failed
    end()
    assert "has made 64 trials" in str(failed[0])
