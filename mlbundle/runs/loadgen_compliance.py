"""Whether the compliance tests of MLPerf Inference were passed, by the rules of MLCommons' compliance folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.analysis.loadgen_logs import DetailLog, LogUnreadable, read_accuracy_log, read_detail_log
from mlbundle.errors import ProtocolBroken
from mlbundle.runs.measured import number

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# A compliance run may be this much slower than the performance run (TEST01), or faster (TEST04).
THRESHOLD = 0.1
# LoadGen must be asked for the same as in the performance run.
_SAME = ("effective_min_duration_ms", "effective_min_query_count", "effective_samples_per_query")
# The number that is compared, and whether more of it is better.
_METRICS = {
    "SingleStream": ("result_90.00_percentile_latency_ns", False),
    "MultiStream": ("result_99.00_percentile_per_query_latency_ns", False),
    "Server": ("result_completed_samples_per_sec", True),
    "Offline": ("result_samples_per_second", True),
}


def compliance_of(
    folder: Path, scenario: str, tests: Iterable[str], performance: DetailLog, *, speed_counts: bool
) -> dict[str, dict[str, Any]]:
    """Return test -> {passed, why, speed}: `speed` is that of the test over that of the performance run.

    The speeds of runs of a few seconds differ by chance: without `speed_counts` they are told and not judged. Raises
    ProtocolBroken where a log is missing or is none.
    """
    found = {}
    for test in tests:
        speed, problems = _check(folder, scenario, test, performance)
        if speed_counts:
            problems += _speed_problems(test, speed)
        found[test] = {"passed": not problems, "why": "; ".join(problems), "speed": speed}
    return found


def _check(folder: Path, scenario: str, test: str, performance: DetailLog) -> tuple[float, list[str]]:
    """Return the speed of a test over that of the performance run, and what else is wrong with it."""
    place = folder / "loadgen" / test
    try:
        log = read_detail_log(place / "mlperf_log_detail.txt")
        problems = _differing(folder, place) if test == "TEST01" else []
    except (OSError, LogUnreadable) as error:
        raise ProtocolBroken(
            f"the log of {test} can't be read: {error}"[:1000], where=f"loadgen/{test}"
        ) from error
    same, wanted = log.values.get("effective_performance_issue_same"), (scenario, "PerformanceOnly")
    found = (log.values.get("effective_scenario"), log.values.get("effective_test_mode"))
    if same is not (test == "TEST04") or found != wanted:
        raise ProtocolBroken(f"the log is none of {test}", where=f"loadgen/{test}")
    if not log.valid or log.errors:
        said = [*log.invalid_reasons, *log.errors] or ["INVALID"]
        problems.append(f"LoadGen says: {' '.join(said)}")
    if any(log.values.get(key) != performance.values.get(key) for key in _SAME):
        problems.append("it was asked for another duration or number of queries than the performance run")
    return _speed(scenario, log) / max(1e-12, _speed(scenario, performance)), problems


def _speed_problems(test: str, speed: float) -> list[str]:
    if test == "TEST01" and speed < 1 - THRESHOLD:
        return [f"it was slower than the performance run, {speed:.3f} of its speed"]
    if test == "TEST04" and speed > 1 + THRESHOLD:
        return [f"the same sample over and over was faster, {speed:.3f} of the speed: answers may be kept"]
    return []


def _speed(scenario: str, log: DetailLog) -> float:
    key, more_is_better = _METRICS[scenario]
    value = max(1e-12, number(log.values, key))
    return value if more_is_better else 1 / value


def _differing(folder: Path, place: Path) -> list[str]:
    """Return what is wrong with the answers that were logged while performance was measured."""
    accuracy = folder / "loadgen/accuracy/mlperf_log_accuracy.json"
    if not accuracy.is_file():
        return ["there is no accuracy run to compare the answers with"]
    wanted = dict(read_accuracy_log(accuracy))
    found = list(read_accuracy_log(place / "mlperf_log_accuracy.json"))
    if not found:
        return ["no answer was logged"]
    differing = sum(wanted.get(index) != data for index, data in found)
    return [f"{differing} of {len(found)} answers are not those of the accuracy run"] if differing else []
