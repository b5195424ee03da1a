"""What makes a test of LoadGen a result for MLPerf Inference, as far as its logs say it.

Rules: MLCommons' inference submission rules, v6.1, and its compliance tests. Told apart from what a run's record says
of the same logs: a checker that shares its rules with what it checks finds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle.runs.submission_logs import ACCURACY, DETAIL, answers_of, is_cut, is_whole, read_detail

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from mlbundle.runs.submission_logs import DetailLog

MIN_DURATION_MS = 600_000
MIN_OFFLINE_SAMPLES = 24_576
MULTI_STREAM_SAMPLES = 8
# Of MLCommons' mlperf.conf.
MIN_QUERIES = {"SingleStream": 100, "MultiStream": 662, "Server": 100, "Offline": 1}
# Scenarios of a suite.
SUITES = {
    "edge": ("SingleStream", "MultiStream", "Offline"),
    "datacenter": ("Server", "Offline"),
}
TESTS = ("TEST01", "TEST04")
# The clocks are rounded to milliseconds, rates to six digits.
_CLOCK_SLACK = 0.999
# A compliance test may differ this much from the performance test (TEST01), or be faster (TEST04); more where a query
# is so short that what else happens on a machine counts.
_THRESHOLD, _SHORT_THRESHOLD = 0.1, 0.2
_SHORT_NS = {"SingleStream": 200_000, "MultiStream": 1_600_000}
_MOST_DAMAGE = 3
# What MLCommons' checker takes for the result of a scenario, and its compliance tests compare; whether more is better.
_RESULTS = {
    "SingleStream": ("early_stopping_latency_ss", False),
    "MultiStream": ("early_stopping_latency_ms", False),
    "Server": ("result_completed_samples_per_sec", True),
    "Offline": ("result_samples_per_second", True),
}


def suite_of(scenarios: Iterable[str]) -> str:
    """Return the type of a system (`edge`, `datacenter` or both) whose suites have all these scenarios."""
    found = set(scenarios)
    fitting = [name for name in SUITES if found <= {*SUITES[name]}]
    return fitting[0] if fitting else "datacenter,edge"


def not_in_suite(system_type: str, scenarios: Iterable[str]) -> list[str]:
    """Return the scenarios that no suite of such a system has."""
    known = {name for suite in system_type.lower().split(",") for name in SUITES.get(suite.strip(), ())}
    return sorted({*scenarios} - known)


def why_not(log: DetailLog) -> list[str]:
    """Return why the performance test of a detail log is no result, in words; empty for one that is."""
    reasons = []
    if log.text("effective_test_mode") != "PerformanceOnly":
        reasons.append(f"LoadGen ran in the mode {log.text('effective_test_mode') or 'unknown'}")
    if log.text("result_validity") != "VALID":
        why = log.text("result_invalid_reason").strip()
        reasons.append(
            f"LoadGen says {log.text('result_validity') or 'nothing'}" + (f": {why}" if why else "")
        )
    reasons += [f"LoadGen reports an error: {error}" for error in log.errors]
    asked_ms, took_s = log.number("effective_min_duration_ms") or 0, log.duration_s
    if asked_ms < MIN_DURATION_MS:
        reasons.append(f"the minimum duration was {asked_ms / 1000:g} s, not {MIN_DURATION_MS // 1000} s")
    if took_s is None:
        reasons.append("the log does not say how long the test took")
    elif took_s * 1000 < asked_ms * _CLOCK_SLACK:
        reasons.append(f"the test took {took_s:g} s, less than its minimum of {asked_ms / 1000:g} s")
    if log.text("effective_scenario") != "Offline" and log.values.get("early_stopping_met") is not True:
        reasons.append("the condition for stopping early was not met")
    return [*reasons, *_no_result(log), *_too_few(log)]


def samples_asked(log: DetailLog) -> float | None:
    """Return how many samples an accuracy test was of, None where its log does not say."""
    asked = "effective_accuracy_sample_count"
    return log.number(asked if asked in log.values else "qsl_reported_total_count")


def damage_of(log: DetailLog) -> Iterator[str]:
    """Yield why a detail log is not one that LoadGen wrote in one test."""
    yield from (f"the log is damaged: {problem}" for problem in log.damage[:_MOST_DAMAGE])


def _no_result(log: DetailLog) -> Iterator[str]:
    yield from damage_of(log)
    scenario = log.text("effective_scenario")
    if scenario in _RESULTS:
        key, result = result_of(scenario, log)
        if result <= 0:
            yield f"the log has no {key}"
    if (log.number("effective_performance_sample_count") or 0) <= 0:
        yield "the log does not say how many samples were loaded"


def _too_few(log: DetailLog) -> Iterator[str]:
    scenario, size = log.text("effective_scenario"), log.number("effective_samples_per_query") or 0
    if scenario == "Offline":
        # A data set that is smaller may be taken whole.
        least = min(MIN_OFFLINE_SAMPLES, log.number("qsl_reported_total_count") or MIN_OFFLINE_SAMPLES)
        if size < least:
            yield f"{size:.0f} samples, not at least {least:.0f}"
    if scenario == "MultiStream" and size != MULTI_STREAM_SAMPLES:
        yield f"a query has {size:.0f} samples, not {MULTI_STREAM_SAMPLES}"
    wanted = MIN_QUERIES.get(scenario, 0)
    asked, answered = log.number("effective_min_query_count") or 0, log.number("result_query_count") or 0
    if asked < wanted:
        yield f"the minimum of queries was {asked:.0f}, not {wanted}"
    if answered < wanted:
        yield f"{answered:.0f} queries, not at least {wanted}"


def compliance_why_not(test: Path, scenario: str, performance: DetailLog, accuracy: Path) -> Iterator[str]:
    """Yield why a compliance test was not passed.

    `test` is the folder of its logs, `accuracy` the accuracy log that its answers must be in. Of a test that is not
    known here only its own log is judged. Raises UsageError, StorageFailed for what can't be read.
    """
    yield from speed_why_not(test, scenario, performance)
    if test_of(test) == "TEST01" and read_detail(test / DETAIL).text("effective_scenario") == scenario:
        yield from answers_why_not(test / ACCURACY, accuracy)


def test_of(folder: Path) -> str:
    """Return the compliance test whose logs a folder holds, by the name of the folder or one above it."""
    return next((part for part in reversed(folder.parts) if part.startswith("TEST")), folder.name)


def speed_why_not(test: Path, scenario: str, performance: DetailLog) -> Iterator[str]:
    """Yield why a compliance test was not passed as far as its detail log says it. Raises as compliance_why_not."""
    name, log = test_of(test), read_detail(test / DETAIL)
    if log.text("effective_scenario") != scenario:
        yield f"is a log of the scenario {log.text('effective_scenario') or 'unknown'}, not {scenario}"
        return
    yield from why_not(log)
    if name not in TESTS:
        return
    if (log.values.get("effective_performance_issue_same") is True) is not (name == "TEST04"):
        yield f"is a log of another test than {name}"
    yield from _speed_problems(name, scenario, log, performance)


def result_of(scenario: str, log: DetailLog) -> tuple[str, float]:
    """Return by which key a log says the result of a scenario, and the value there; 0 where there is none."""
    key, _ = _RESULTS[scenario]
    return key, log.number(key) or 0


def _speed_problems(test: str, scenario: str, log: DetailLog, performance: DetailLog) -> Iterator[str]:
    _, more_is_better = _RESULTS[scenario]
    (key, found), (_, wanted) = result_of(scenario, log), result_of(scenario, performance)
    if found <= 0 or wanted <= 0:
        yield f"its speed can't be compared: {key} is not in both logs"
        return
    speed = found / wanted if more_is_better else wanted / found
    threshold = _SHORT_THRESHOLD if wanted <= _SHORT_NS.get(scenario, 0) else _THRESHOLD
    if test == "TEST01" and abs(found - wanted) > threshold * wanted:
        yield f"was {'slower' if speed < 1 else 'faster'} than the performance test, {speed:.3f} of its speed"
    if test == "TEST04" and speed > 1 + threshold:
        yield f"was faster than the performance test, {speed:.3f} of its speed: answers may be kept"
    limit = "effective_target_latency_ns"
    if scenario == "Server" and log.number(limit) != performance.number(limit):
        yield "had another target latency than the performance test"


def answers_why_not(logged: Path, accuracy: Path) -> Iterator[str]:
    """Yield why the answers of a compliance test are not those of the accuracy test. Raises StorageFailed."""
    if not logged.is_file():
        yield "has logged no answer"
        return
    found = answers_of(logged)
    if not found:
        yield "has logged no answer"
    if not accuracy.is_file() or is_cut(accuracy) or not found:
        return
    wanted = answers_of(accuracy)
    differing = sum(wanted.get(sample) != answer for sample, answer in found.items())
    if differing:
        yield f"{differing} of {len(found)} answers are not those of the accuracy test"


def accuracy_log_problems(path: Path) -> Iterator[str]:
    """Yield what is wrong with the form of an accuracy log, whole or shortened."""
    if not is_whole(path):
        yield "begins or ends in the middle: it is not what LoadGen wrote to its end"
