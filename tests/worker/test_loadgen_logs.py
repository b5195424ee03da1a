"""Logs of LoadGen as the host reads them: what is in them, and files that are none."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlbundle.analysis.loadgen_logs import LogUnreadable, read_accuracy_log, read_detail_log
from mlbundle.errors import ProtocolBroken
from mlbundle.runs.loadgen import collect
from mlbundle.wire.events import Result
from mlbundle.wording.results_loadgen import lines
from mlbundle.worker.errors import WorkerError
from mlbundle.worker.loadgen.accuracy import read_log


def line(key: str, value: Any, **metadata: bool) -> str:
    entry = {
        "key": key,
        "value": value,
        "time_ms": 0.1,
        "metadata": {"is_error": False, "is_warning": False, **metadata},
    }
    return f":::MLLOG {json.dumps(entry)}\n"


def write(path: Path, *parts: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(parts))
    return path


SINGLE = {
    "loadgen_version": "6.0.17",
    "qsl_reported_total_count": 3,
    "effective_scenario": "SingleStream",
    "effective_test_mode": "PerformanceOnly",
    "effective_samples_per_query": 1,
    "effective_min_duration_ms": 600_000,
    "effective_min_query_count": 100,
    "effective_performance_issue_same": False,
    "result_validity": "VALID",
    "result_query_count": 1000,
    "result_qps_with_loadgen_overhead": 2.0,
    "result_mean_latency_ns": 5,
    "result_min_latency_ns": 1,
    "result_max_latency_ns": 9,
    **{
        f"result_{p}_percentile_latency_ns": 5 for p in ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")
    },
}
SAID = {
    "pilot": {"median_ns": 4, "mean_ns": 4.0, "fast_ns": 3, "queries": 10, "settled": True, "batch": 1},
    "busy_ns": 600_000_000_000,
    "predicted_memory_bytes": 1,
    "loop_overhead_ns": 1.0,
    "loaded_samples": 3,
    "peak_memory_bytes": 1,
}
ANSWERS = '[\n{ "seq_id" : 0, "qsl_idx" : 0, "data" : "00" },\n{ "seq_id" : 1, "qsl_idx" : 2, "data" : "02" },\n{ "seq_id" : 2, "qsl_idx" : 1, "data" : "01" }\n]\n'


def a_run(
    folder: Path, changes: dict[str, Any] | None = None, extra: str = "", answers: str = ANSWERS
) -> Path:
    values = {**SINGLE, **(changes or {})}
    write(folder / "job.json", json.dumps({"scenario": {"name": "single-stream"}}))
    write(
        folder / "loadgen/performance/mlperf_log_detail.txt", *(line(k, v) for k, v in values.items()), extra
    )
    accuracy = {**SINGLE, "effective_test_mode": "AccuracyOnly"}
    write(folder / "loadgen/accuracy/mlperf_log_detail.txt", *(line(k, v) for k, v in accuracy.items()))
    write(folder / "loadgen/accuracy/mlperf_log_accuracy.json", answers)
    return folder


def collected(folder: Path, said: dict[str, Any] | None = None, **options: Any) -> Any:
    kinds = {"loadgen:performance": {**SAID, **(said or {})}, "loadgen:accuracy": {}}
    results = {kind: Result(pass_kind=kind, values=values) for kind, values in kinds.items()}
    return collect(folder, results, options)


def test_an_official_run_counts(tmp_path) -> None:
    found = collected(a_run(tmp_path))
    assert found.reasons == []
    assert found.result["loadgen"]["submission_valid"] is True
    assert found.result["loadgen"]["result"]["result_query_count"] == 1000
    assert found.result["throughput_per_s"] == 2.0
    assert found.result["harness_overhead"]["ratio"] == 1.25
    assert found.headline == "loadgen/performance"


@pytest.mark.parametrize(
    ("changes", "extra", "said", "options", "reason"),
    [
        ({"result_validity": "INVALID"}, line("result_invalid_reason", "Do more. "), {}, {}, "LoadGen says INVALID: Do more."),
        ({"result_validity": "INVALID", "early_stopping_met": False}, "", {}, {}, "LoadGen says INVALID: early_stopping_met"),
        ({}, line("error_runtime", "went wrong", is_error=True), {}, {}, "LoadGen reports an error: went wrong"),
        ({}, "", {"busy_ns": 860_000_000}, {}, "the queries took 0.86 s, at least 600 s are wanted"),
        ({"effective_min_duration_ms": 1}, "", {}, {}, "LoadGen ran with a minimum of 0.001 s instead of 600 s"),
    ],
)  # fmt: skip
def test_what_does_not_count_says_why(tmp_path, changes, extra, said, options, reason) -> None:
    assert reason in collected(a_run(tmp_path, changes, extra), said, **options).reasons


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({}, {"quick": True}, "quick: not valid for a submission"),
        ({}, {"duration_s": 5.0}, "at least 600 s are wanted, asked for were 5 s"),
        ({"effective_min_query_count": 10}, {}, "at least 100 queries are wanted, asked for were 10"),
        ({"result_validity": "INVALID"}, {}, "LoadGen says that the result is not valid"),
    ],
)
def test_what_no_submission_may_hold_is_marked(tmp_path, changes, options, reason) -> None:
    found = collected(a_run(tmp_path, changes), **options).result
    assert found["loadgen"]["submission_valid"] is False
    assert reason in found["loadgen"]["submission_reasons"]
    found["loadgen"]["result"]["result_90.00_percentile_latency_ns"] = 5
    assert any(reason in text for _, text in lines(found)), "the table says it, too"


@pytest.mark.parametrize(
    ("changes", "said", "answers", "reason"),
    [
        ({}, {"busy_ns": 3_000_000_000}, ANSWERS, "the queries took 3.00 s, at least 600 s are wanted"),
        ({}, {}, ANSWERS.replace('"qsl_idx" : 1', '"qsl_idx" : 2'), "the accuracy run has 2 of 3 samples"),
        ({"effective_min_duration_ms": 1}, {}, ANSWERS, "LoadGen ran with a minimum of 0.001 s"),
    ],
)  # fmt: skip
def test_what_does_not_count_is_none_to_hand_in(tmp_path, changes, said, answers, reason) -> None:
    found = collected(a_run(tmp_path, changes, answers=answers), said).result["loadgen"]
    assert found["submission_valid"] is False
    assert any(reason in text for text in found["submission_reasons"])


def test_a_failed_compliance_test_is_none_to_hand_in(tmp_path) -> None:
    folder = a_run(tmp_path)
    compliance(folder, "TEST01", {"result_validity": "INVALID"})
    found = collected(folder, compliance=["TEST01"]).result["loadgen"]
    assert found["submission_valid"] is False
    assert any(text.startswith("TEST01 failed") for text in found["submission_reasons"])


def test_what_should_be_known_is_a_warning_and_no_reason(tmp_path) -> None:
    said = {"pilot": {**SAID["pilot"], "settled": False}, "busy_ns": 900_000_000_000}
    found = collected(a_run(tmp_path, {"result_query_count": 100}), said)
    assert found.reasons == []
    unsettled, longer = found.result["loadgen"]["warnings"]
    assert "the pilot did not settle" in unsettled
    assert longer == "the minimum of 100 queries made it last 900.0 s, asked for were 600 s"
    assert collected(a_run(tmp_path)).result["loadgen"]["warnings"] == []


@pytest.mark.parametrize(
    ("estimate", "shown"),
    [(7_000, "early-stopping estimate 7.0"), (0, "90th percentile latency 5.00 ns"), (None, "90th percentile latency 5.00 ns")],
)  # fmt: skip
def test_the_headline_is_the_estimate_that_is_known_with_confidence(tmp_path, estimate, shown) -> None:
    found = collected(a_run(tmp_path, {"early_stopping_latency_ss": estimate})).result
    assert shown in lines(found)[0][1]


@pytest.mark.parametrize(
    "answers",
    [
        ANSWERS.replace('"qsl_idx" : 1', '"qsl_idx" : 2'),
        ANSWERS.replace('"qsl_idx" : 1', '"qsl_idx" : 7'),
        "[\n]\n",
    ],
)
def test_every_sample_must_be_in_the_accuracy_run_once(tmp_path, answers) -> None:
    (reason,) = collected(a_run(tmp_path, answers=answers)).reasons
    assert "of 3 samples" in reason


AGAIN = ANSWERS.replace("\n]", ',\n{ "seq_id" : 3, "qsl_idx" : 0, "data" : "07" }\n]')


@pytest.mark.parametrize(("size", "taken"), [(1, False), (2, True)])
def test_a_last_query_that_is_filled_up_is_no_error_and_first_answers_count(tmp_path, size, taken) -> None:
    folder = a_run(tmp_path, answers=AGAIN)
    accuracy = {**SINGLE, "effective_test_mode": "AccuracyOnly", "effective_samples_per_query": size}
    write(folder / "loadgen/accuracy/mlperf_log_detail.txt", *(line(k, v) for k, v in accuracy.items()))
    assert (collected(folder).reasons == []) is taken
    log = str(folder / "loadgen/accuracy/mlperf_log_accuracy.json")
    assert read_log(log, most_again=1) == {0: b"\x00", 2: b"\x02", 1: b"\x01"}
    with pytest.raises(WorkerError, match="sample 0 comes twice"):
        read_log(log)


def test_estimates_that_are_of_tokens_are_not_called_those_of_latencies(tmp_path) -> None:
    offline = {"requested_use_token_latencies": True, "result_tokens_per_second": 9.0}
    found = collected(a_run(tmp_path, {"early_stopping_latency_ss": 7_000, **offline})).result
    assert "90th percentile latency 5.00 ns" in lines(found)[0][1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"effective_scenario": "Offline"}, {}),
        ({"effective_test_mode": "AccuracyOnly"}, {}),
        ({"result_query_count": "many"}, {}),
        ({"result_query_count": 1.5}, {}),
        ({"result_50.00_percentile_latency_ns": None}, {}),
        ({"result_mean_latency_ns": -1}, {}),
        ({"effective_min_duration_ms": [600_000]}, {}),
        ({}, {"pilot": "fast"}),
        ({}, {"pilot": {"median_ns": True}}),
        ({}, {"busy_ns": 0}),
        ({}, {"busy_ns": 1 << 70}),
        ({}, {"loaded_samples": None}),
        ({}, {"loop_overhead_ns": float("inf")}),
    ],
)
def test_what_is_no_result_is_refused(tmp_path, changes, said) -> None:
    with pytest.raises(ProtocolBroken):
        collected(a_run(tmp_path, changes), said)


def compliance(folder: Path, test: str, changes: dict[str, Any], answers: str = ANSWERS) -> dict[str, Any]:
    values = {**SINGLE, "effective_performance_issue_same": test == "TEST04", **changes}
    write(folder / "loadgen" / test / "mlperf_log_detail.txt", *(line(k, v) for k, v in values.items()))
    write(folder / "loadgen" / test / "mlperf_log_accuracy.json", answers)
    found: dict[str, Any] = collected(folder, compliance=[test]).result["loadgen"]["compliance"][test]
    return found


P90, ESTIMATE = "result_90.00_percentile_latency_ns", "early_stopping_latency_ss"
MS = 1_000_000


@pytest.mark.parametrize(
    ("test", "changes", "answers", "why"),
    [
        ("TEST01", {}, ANSWERS, ""),
        ("TEST01", {}, ANSWERS.replace('"02"', '"03"'), "1 of 3 answers are not those"),
        ("TEST01", {}, "[\n]\n", "no answer was logged"),
        ("TEST01", {"result_validity": "INVALID"}, ANSWERS, "LoadGen says"),
        ("TEST01", {"effective_min_duration_ms": 2000}, ANSWERS, "asked for something else"),
        ("TEST01", {"effective_target_latency_ns": 9}, ANSWERS, "asked for something else"),
        ("TEST04", {}, "[\n]\n", ""),
    ],
)
def test_compliance_tests_are_judged_by_their_rules(tmp_path, test, changes, answers, why) -> None:
    found = compliance(a_run(tmp_path), test, changes, answers)
    assert found["passed"] is (not why)
    assert why in found["why"]


@pytest.mark.parametrize(
    ("test", "performance_ns", "found_ns", "why"),
    [
        ("TEST01", 5 * MS, 5.4 * MS, ""),
        ("TEST01", 5 * MS, 5.6 * MS, "slower than the performance run"),
        ("TEST01", 5 * MS, 4.6 * MS, ""),
        ("TEST01", 5 * MS, 4.4 * MS, "faster than the performance run"),
        ("TEST04", 5 * MS, 9 * MS, ""),
        ("TEST04", 5 * MS, 4.6 * MS, ""),
        ("TEST04", 5 * MS, 4 * MS, "was faster, 1.250 of the speed"),
        # Of a query of 0.2 ms and less it is 20 %.
        ("TEST01", 200_000, 238_000, ""),
        ("TEST01", 200_000, 242_000, "slower than the performance run"),
        ("TEST04", 200_000, 170_000, ""),
        ("TEST04", 200_000, 160_000, "was faster, 1.250 of the speed"),
    ],
)
@pytest.mark.parametrize("key", [P90, ESTIMATE])
def test_compliance_tests_are_judged_by_their_speed(
    tmp_path, key, test, performance_ns, found_ns, why
) -> None:
    # The estimate counts, where LoadGen could make one in both.
    other = {ESTIMATE: 0} if key == P90 else {P90: 1}
    found = compliance(a_run(tmp_path, {key: performance_ns, **other}), test, {key: found_ns, **other})
    assert found["passed"] is (not why)
    assert why in found["why"]
    assert found["speed"] == pytest.approx(performance_ns / found_ns)


@pytest.mark.parametrize(
    "changes",
    [
        {"effective_performance_issue_same": False},
        {"effective_test_mode": "AccuracyOnly"},
        {"effective_scenario": "Offline"},
    ],
)
def test_the_log_of_another_test_is_refused(tmp_path, changes) -> None:
    with pytest.raises(ProtocolBroken):
        compliance(a_run(tmp_path), "TEST04", changes)


def test_warnings_are_kept_but_for_those_about_its_own_log(tmp_path) -> None:
    own = line("warning_generic_message", "Logging allocation detected: tid: 1", is_warning=True)
    other = line("warning_generic_message", "Something  else\n", is_warning=True)
    log = read_detail_log(write(tmp_path / "log", "noise\n", own, other, line("a", [1])))
    assert log.warnings == ("Something else",)
    assert log.values["a"] == [1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not a log\n",
        ":::MLLOG {\n",
        ":::MLLOG []\n",
        ":::MLLOG {}\n",
        line("a", 1).replace('"value": 1', '"value": NaN'),
        line("a", 1).replace('"value": 1', '"value": 1e999'),
        ":::MLLOG " + "[" * 100_000 + "\n",
        ":::MLLOG \ud800\n".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, text) -> None:
    with pytest.raises(LogUnreadable):
        read_detail_log(write(tmp_path / "log", text))


@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    max_examples=60,
    deadline=None,
)
@given(content=st.binary(max_size=200), marked=st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path, content, marked) -> None:
    path = tmp_path / "log"
    path.write_bytes(b":::MLLOG " + content if marked else content)
    for read in (read_detail_log, lambda p: list(read_accuracy_log(p))):
        with contextlib.suppress(LogUnreadable):
            read(path)


def test_the_table_of_server_says_its_target_and_where_the_rate_came_from() -> None:
    loadgen = {
        "scenario": "Server",
        "valid": True,
        "submission_valid": False,
        "submission_reasons": ["quick: not valid for a submission", "beside another"],
        "compliance": {},
        "warnings": [],
        "result": {"result_scheduled_samples_per_sec": 2005.0, "result_99.00_percentile_latency_ns": 108_000},
        "settings": {
            "target_qps": 2000,
            "target_latency_ns": 10_000_000,
            "target_latency_percentile": 0.99,
        },
    }
    chosen = lines({"loadgen": loadgen}, {"quick": True}, ["beside another"])
    assert chosen[1] == ("", "quick: not valid for a submission"), "what is said elsewhere is not said twice"
    assert chosen[2][0] == "rate"
    assert chosen[2][1].startswith("2,000 /s, chosen by the pilot")
    assert chosen[3] == ("target", "p99 108 us, 10.0 ms wanted: kept")
    assert "rate" not in dict(lines({"loadgen": loadgen}, {"rate_per_s": 2000.0}))
    loadgen["result"]["result_99.00_percentile_latency_ns"] = 11_000_000  # type: ignore[index]
    assert dict(lines({"loadgen": loadgen}))["target"].endswith("NOT KEPT")
