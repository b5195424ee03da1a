"""`tokens` of a result, from what a worker sent and from what LoadGen wrote; nothing is believed unseen."""

from __future__ import annotations

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.analysis.loadgen_logs import DetailLog
from mlbundle.errors import ProtocolBroken
from mlbundle.runs.loadgen_peak import peak_of
from mlbundle.runs.measured import PassFindings
from mlbundle.runs.tokens import tokens_of, tokens_of_loadgen
from mlbundle.wording import results_tokens


def tokens(folder: Path, latencies: list[int], first: list[int], counts: list[int], said: Any = None) -> Any:
    (folder / "passes/01-measure").mkdir(parents=True)
    for name, values in (("latencies", latencies), ("first_tokens", first), ("tokens", counts)):
        np.save(folder / f"passes/01-measure/{name}.npy", np.array(values, np.int64))
    values = {"tokens": sum(counts) if said is None else said}
    found = PassFindings(
        folder="passes/01-measure",
        kind="measure",
        headline=True,
        queries=len(latencies),
        samples=len(latencies),
        busy_ns=10**9,
        traced_queries=0,
        values=values,
    )
    return tokens_of(folder, found)["tokens"]


answers = st.lists(
    st.tuples(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 10**6)), min_size=1, max_size=60
)


@given(answers)
def test_numbers_are_those_of_the_definition(found) -> None:
    first, latencies = [one for one, _, _ in found], [one + after for one, after, _ in found]
    with TemporaryDirectory() as folder:
        said = tokens(Path(folder), latencies, first, [count for _, _, count in found])
    after = sorted(rest / (count - 1) for _, rest, count in found if count > 1)
    assert said["tokens"] == said["tokens_per_s"] == sum(count for _, _, count in found)
    assert said["ttft_ns"]["mean"] == pytest.approx(statistics.fmean(first))
    assert said["ttft_ns"]["p50"] == sorted(first)[-(-len(first) // 2) - 1]
    if not after:
        assert said["tpot_ns"] is None
        return
    assert said["tpot_ns"]["mean"] == pytest.approx(statistics.fmean(after))
    assert said["tpot_ns"]["p90"] == pytest.approx(after[-(-9 * len(after) // 10) - 1])
    assert (said["tpot_ns"]["min"], said["tpot_ns"]["max"]) == pytest.approx((after[0], after[-1]))


@pytest.mark.parametrize(
    "lie",
    [
        {"first": [11, 1]},
        {"first": [-1, 1]},
        {"first": [1]},
        {"counts": [0, 1]},
        {"counts": [1 << 62, 1 << 62]},
        {"said": 4},
        {"said": "3"},
        {"said": True},
    ],
)
def test_tokens_that_cannot_be_those_of_the_answers_are_refused(tmp_path, lie) -> None:
    truth: dict[str, Any] = {"latencies": [10, 20], "first": [5, 5], "counts": [1, 2]}
    with pytest.raises(ProtocolBroken):
        tokens(tmp_path, **{**truth, **lie})


def test_the_table_has_a_line_for_each_and_none_for_what_is_not_known() -> None:
    times = {"p50": 1_000.0, "p90": 2_000.0, "p99": 3_000_000.0}
    said = {"tokens_per_s": 1234.5, "tokens_per_answer": {"mean": 8.04}, "ttft_ns": times, "tpot_ns": None}
    assert results_tokens.lines({"tokens": said}) == [
        ("tokens", "1,234 /s  (8.0 an answer)"),
        ("first token", "p50 1.00 us  p90 2.00 us  p99 3.00 ms"),
    ]
    assert results_tokens.lines({"tokens": {"tokens_per_s": 3.0}}) == [("tokens", "3.00 /s")]


def test_a_log_without_tokens_has_none_and_one_that_lacks_a_number_is_refused() -> None:
    assert tokens_of_loadgen({"requested_use_token_latencies": False}) == {}
    offline = {"requested_use_token_latencies": True, "result_tokens_per_second": 50.5}
    assert tokens_of_loadgen(offline) == {"tokens": {"tokens_per_s": 50.5}}
    with pytest.raises(ProtocolBroken):
        tokens_of_loadgen({"requested_use_token_latencies": True, "result_completed_tokens_per_second": 1})


SEARCH = (
    "Starting FindPeakPerformance mode",
    "FindPeakPerformance: Check validity of the base settings field: 10.000000",
    "FindBoundaries: Checking fields [10.000000, 20.000000)",
    "FindBoundaries: Checking fields [20.000000, 40.000000)",
    "FindPeakPerformance: Found boundaries: [20.000000, 40.000000)",
    "FindPeakPerformanceBinarySearch: Testing the mid value of bounds [20.000000, 40.000000): 30.000000",
    "FindPeakPerformanceBinarySearch: Testing the mid value of bounds [20.000000, 30.000000): 25.000000",
    "FindPeakPerformance: Found peak performance field: 25.000000",
)


def searched(folder: Path, kind: str, *messages: str, **values: Any) -> None:
    import json

    entries = [
        *({"key": "generic_message", "value": text} for text in messages),
        *({"key": key, "value": value} for key, value in values.items()),
    ]
    path = folder / "loadgen" / kind / "mlperf_log_detail.txt"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f":::MLLOG {json.dumps({**entry, 'metadata': {}})}\n" for entry in entries))


def performance(rate: float, validity: str = "VALID") -> DetailLog:
    return DetailLog({"effective_target_qps": rate, "result_validity": validity}, (), (), ())


FIND = {"effective_test_mode": "FindPeakPerformance"}


def test_the_trials_of_a_search_are_those_that_loadgen_tells_of(tmp_path) -> None:
    searched(tmp_path, "peak-0", *SEARCH[:2], **FIND)
    searched(tmp_path, "peak-1", *SEARCH, **FIND)
    searched(tmp_path, "unconfirmed-0", effective_target_qps=25)
    found, reasons = peak_of(tmp_path, performance(22.5))
    assert not reasons
    assert found == {
        "rate_per_s": 22.5,
        "found_per_s": 25.0,
        "trials": [
            {"rate_per_s": rate, "kept": kept}
            for rate, kept in ((10, True), (10, True), (20, True), (40, False), (30, False), (25, True))
        ],
        "unconfirmed_per_s": [25],
    }


def test_a_peak_that_was_not_confirmed_or_not_found_is_none(tmp_path) -> None:
    searched(tmp_path / "a", "peak-0", *SEARCH, **FIND)
    found, reasons = peak_of(tmp_path / "a", performance(20.25, "INVALID"))
    assert (found["rate_per_s"], found["found_per_s"]) == (None, 25.0)
    assert reasons == ["the peak that LoadGen found, 25 a second, was not confirmed: see loadgen.peak"]
    searched(tmp_path / "b", "peak-0", *SEARCH[:2], **FIND)
    found, reasons = peak_of(tmp_path / "b", performance(10.0))
    assert found["trials"] == [{"rate_per_s": 10.0, "kept": False}]
    assert "10 a second did not; choose a lower --rate" in reasons[0]


@pytest.mark.parametrize(
    ("messages", "values", "rate"),
    [
        (SEARCH, {"effective_test_mode": "PerformanceOnly"}, 25.0),
        (SEARCH[:1], FIND, 25.0),
        ((*SEARCH, SEARCH[-1]), FIND, 25.0),
        (SEARCH, FIND, 26.0),
    ],
)
def test_a_search_that_cannot_have_been_one_is_refused(tmp_path, messages, values, rate) -> None:
    searched(tmp_path, "peak-0", *messages, **values)
    with pytest.raises(ProtocolBroken):
        peak_of(tmp_path, performance(rate))
