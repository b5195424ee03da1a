"""Whether the compliance tests of MLPerf Inference were passed, by the rules of MLCommons' compliance folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.analysis.loadgen_logs import DetailLog, LogUnreadable, read_accuracy_log, read_detail_log
from mlbundle.errors import ProtocolBroken
from mlbundle.runs.measured import number

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# A compliance run may differ this much from the performance run (TEST01), or be faster (TEST04); more where a query of
# the performance run is so short that what else happens on a machine counts.
THRESHOLD, _SHORT_THRESHOLD = 0.1, 0.2
_SHORT_NS = {"SingleStream": 200_000, "MultiStream": 1_600_000}
# LoadGen must be asked for the same as in the performance run.
_SAME = (
    "effective_min_duration_ms",
    "effective_min_query_count",
    "effective_samples_per_query",
    "effective_target_latency_ns",
)
# The numbers that are compared, the first that both logs have.
_RATES = {"Server": ("result_completed_samples_per_sec",), "Offline": ("result_samples_per_second",)}
_LATENCIES = {
    # An estimate needs 64 queries, or 662.
    "SingleStream": ("early_stopping_latency_ss", "result_90.00_percentile_latency_ns"),
    "MultiStream": ("early_stopping_latency_ms", "result_99.00_percentile_per_query_latency_ns"),
}


@dataclass(frozen=True)
class _Compared:
    """The result of a compliance test beside that of the performance run: latencies in ns, or rates a second."""

    scenario: str
    found: float
    wanted: float

    @property
    def speed(self) -> float:
        """The speed of the test over that of the performance run."""
        return self.found / self.wanted if self.scenario in _RATES else self.wanted / self.found

    @property
    def threshold(self) -> float:
        """By how much they may differ."""
        return _SHORT_THRESHOLD if self.wanted <= _SHORT_NS.get(self.scenario, 0) else THRESHOLD

    def problems(self, test: str) -> list[str]:
        """Return why a test was not passed as far as speed goes."""
        if test == "TEST01" and abs(self.found - self.wanted) > self.threshold * self.wanted:
            than = "slower" if self.speed < 1 else "faster"
            return [f"it was {than} than the performance run, {self.speed:.3f} of its speed"]
        if test == "TEST04" and self.speed > 1 + self.threshold:
            return [
                f"the same sample over and over was faster, {self.speed:.3f} of the speed: answers may be kept"
            ]
        return []


def compliance_of(
    folder: Path, scenario: str, tests: Iterable[str], performance: DetailLog, *, speed_counts: bool
) -> dict[str, dict[str, Any]]:
    """Return test -> {passed, why, speed}: `speed` is that of the test over that of the performance run.

    The speeds of runs of a few seconds differ by chance: without `speed_counts` they are told and not judged. Raises
    ProtocolBroken where a log is missing or is none.
    """
    found = {}
    for test in tests:
        compared, problems = _check(folder, scenario, test, performance)
        if speed_counts:
            problems += compared.problems(test)
        found[test] = {"passed": not problems, "why": "; ".join(problems), "speed": compared.speed}
    return found


def _check(folder: Path, scenario: str, test: str, performance: DetailLog) -> tuple[_Compared, list[str]]:
    """Return the result of a test beside that of the performance run, and what else is wrong with it."""
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
        problems.append("it was asked for something else than the performance run: time, queries or latency")
    return _compared(scenario, log, performance), problems


def _compared(scenario: str, log: DetailLog, performance: DetailLog) -> _Compared:
    logs = (log.values, performance.values)
    keys = _RATES.get(scenario) or _LATENCIES[scenario]
    # An estimate that LoadGen could not make is 0, or is not there.
    key = next((key for key in keys if all(values.get(key) for values in logs)), keys[-1])
    found, wanted = (max(1e-12, number(values, key)) for values in logs)
    return _Compared(scenario, found, wanted)


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
