"""What LoadGen found: every number is read from the log that LoadGen itself wrote, under the name that it has there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mlbundle.analysis.loadgen_logs import DetailLog, LogUnreadable, read_accuracy_log, read_detail_log
from mlbundle.errors import ProtocolBroken
from mlbundle.runs.folder import JOB
from mlbundle.runs.loadgen_compliance import compliance_of
from mlbundle.runs.loadgen_peak import peak_of
from mlbundle.runs.measured import count, not_said, number
from mlbundle.runs.results import Collected
from mlbundle.runs.tokens import by_token, tokens_of_loadgen
from mlbundle.runs.words import duration
from mlbundle.wire.passes import performance_passes
from mlbundle.wire.scenarios import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mlbundle.wire.events import Result

ISSUES = ("in line", "worker thread")
FOLDER = "loadgen/performance"
DETAIL = "mlperf_log_detail.txt"
OFFICIAL_DURATION_S, QUICK_DURATION_S = 600.0, 2.0
# Of MLCommons' mlperf.conf: the fewest queries, for Offline samples (or all of a smaller set).
OFFICIAL_QUERIES = {"SingleStream": 100, "MultiStream": 662, "Server": 100}
OFFICIAL_OFFLINE_SAMPLES, OFFICIAL_MULTI_STREAM = 24_576, 8
QUICK = "quick: not valid for a submission"
# Our clock stops when the last query is answered, LoadGen's a moment later.
_DURATION_TOLERANCE_S = 0.01
# A test that took this much more than it was to take is worth a word.
_LONGER = 1.1
_PERCENTILES = {"p50": "50.00", "p90": "90.00", "p99": "99.00", "p99_9": "99.90"}
_LATENCIES = {"mean": "mean", "min": "min", "max": "max"}
_HOW = {
    "Server": "1 + what a raw loop costs a query beside the call, over p50; what LoadGen costs can't be told from "
    "waiting, which the latency of Server counts",
    "Offline": "time of a sample under LoadGen over its time in a raw loop of the same batches, measured before in the "
    "same process; 1 where LoadGen was not slower",
}
_HOW_CLOSED = (
    "p50 under LoadGen over p50 of a raw loop of the same queries, measured before in the same process; 1 where "
    "LoadGen was not slower"
)


def collect(folder: Path, results: Mapping[str, Result], options: Mapping[str, Any]) -> Collected:
    """Return the result of a LoadGen scenario from its logs. Raises ProtocolBroken where they are not LoadGen's."""
    # After a search for the peak the first of several tests that confirms it speaks.
    said = next((results[name] for name in performance_passes(options) if name in results), None)
    if said is None:
        raise ProtocolBroken(
            "the worker finished without a result", hint="see worker.log in the run's folder"
        )
    scenario = _scenario(folder)
    log = read_log(folder, "performance")
    _require(log, "effective_scenario", scenario)
    _require(log, "effective_test_mode", "PerformanceOnly")
    values = said.values
    duration_s = count(values, "busy_ns", least=1) / 1e9
    result = _common(log, scenario, duration_s, values)
    compliance = compliance_of(
        folder, scenario, options.get("compliance") or (), log, speed_counts=not options.get("quick")
    )
    reasons = [*_gates(log, options, duration_s), *_samples_missing(folder, results)]
    reasons += [f"{test} failed: {found['why']}" for test, found in compliance.items() if not found["passed"]]
    extra, peak_reasons = _extra(folder, log, options)
    reasons += peak_reasons
    beyond = _beyond_reach(log, options, values)
    if beyond is not None:
        # The test was cut short: nothing else that is said of it helps.
        reasons = [beyond]
    result["loadgen"] = {
        "scenario": scenario,
        "valid": log.valid,
        "quick": bool(options.get("quick")),
        **_submission(log, options, reasons, checked="loadgen:accuracy" in results),
        "version": str(log.values.get("loadgen_version", ""))[:200],
        "result": log.scalars("result_") | log.scalars("early_stopping_"),
        "settings": {key.removeprefix("effective_"): v for key, v in log.scalars("effective_").items()},
        "errors": list(log.errors),
        "warnings": [
            *log.warnings,
            *_warnings(log, options, duration_s, settled=result["warm_up"]["settled"]),
        ],
        "predicted_memory_bytes": count(values, "predicted_memory_bytes"),
        "loaded_samples": count(values, "loaded_samples", least=1),
        "compliance": compliance,
        **extra,
    }
    if scenario == "Server":
        result["loadgen"]["issue"] = _issue(values)
    return Collected(
        result=result,
        # LoadGen has its own minimum, and Offline is one query.
        queries=None,
        settled=True,
        headline=FOLDER,
        framework=values.get("framework"),
        peak_memory_bytes=count(values, "peak_memory_bytes"),
        reasons=reasons,
    )


def _extra(folder: Path, log: DetailLog, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return what only some results have: the limits of tokens, the peak; and why there is no peak."""
    found: dict[str, Any] = {}
    if by_token(log.values) and log.values.get("effective_scenario") == "Server":
        limits = {name: number(log.values, f"requested_server_{name}_latency") for name in ("ttft", "tpot")}
        found["token_limits_ns"] = limits
    if not options.get("find_peak"):
        return found, []
    found["peak"], reasons = peak_of(folder, log)
    return found, reasons


def read_log(folder: Path, kind: str) -> DetailLog:
    """Return the detail log of a test (`performance`, `accuracy`, `TEST01`). Raises ProtocolBroken."""
    path = f"loadgen/{kind}/{DETAIL}"
    try:
        return read_detail_log(folder / path)
    except (OSError, LogUnreadable) as error:
        raise ProtocolBroken(
            f"LoadGen's log can't be read: {error}"[:1000],
            where=path,
            hint="see worker.log in the run's folder",
        ) from error


def _scenario(folder: Path) -> str:
    name = json.loads((folder / JOB).read_text("utf-8"))["scenario"]["name"]
    scenario = BY_NAME[name].loadgen
    assert scenario is not None
    return scenario


def _require(log: DetailLog, key: str, wanted: str) -> None:
    if log.values.get(key) != wanted:
        raise ProtocolBroken(
            f"LoadGen's log says {key} {str(log.values.get(key))[:80]!r}, wanted was {wanted!r}", where=FOLDER
        )


def _common(log: DetailLog, scenario: str, duration_s: float, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that every scenario has. LoadGen has no trimmed mean, so there is none."""
    found = log.values
    latency_ns = {name: number(found, f"result_{key}_latency_ns") for name, key in _LATENCIES.items()}
    latency_ns |= {
        name: number(found, f"result_{key}_percentile_latency_ns") for name, key in _PERCENTILES.items()
    }
    queries = count(found, "result_query_count", least=1)
    samples = queries * count(found, "effective_samples_per_query", least=1)
    throughput_per_s = {
        "SingleStream": lambda: number(found, "result_qps_with_loadgen_overhead"),
        "MultiStream": lambda: samples / duration_s,
        "Server": lambda: number(found, "result_completed_samples_per_sec"),
        "Offline": lambda: number(found, "result_samples_per_second"),
    }[scenario]()
    pilot = _pilot(values)
    return {
        "latency_ns": latency_ns,
        "throughput_per_s": throughput_per_s,
        "queries": queries,
        "samples": samples,
        "duration_s": duration_s,
        "harness_overhead": {
            "ratio": _overhead(scenario, latency_ns["p50"], throughput_per_s, pilot),
            "how": _HOW.get(scenario, _HOW_CLOSED),
        },
        "warm_up": {"queries": int(pilot["queries"]), "settled": bool(pilot["settled"])},
        **tokens_of_loadgen(found),
    }


def _pilot(values: Mapping[str, Any]) -> dict[str, float]:
    pilot = values.get("pilot")
    if not isinstance(pilot, dict):
        raise not_said("pilot")
    return {
        "median_ns": number(pilot, "median_ns"),
        "mean_ns": number(pilot, "mean_ns"),
        "overhead_ns": number(values, "loop_overhead_ns"),
        "queries": count(pilot, "queries"),
        "batch": count(pilot, "batch", least=1),
        "settled": pilot.get("settled") is True,
    }


def _issue(values: Mapping[str, Any]) -> str:
    """Return where queries were answered. Raises ProtocolBroken where nothing known is said."""
    found = values["pilot"].get("issue")
    if found not in ISSUES:
        raise not_said("pilot.issue")
    return str(found)


def _overhead(scenario: str, p50_ns: float, throughput_per_s: float, pilot: Mapping[str, float]) -> float:
    raw_ns = max(1.0, pilot["median_ns"])
    if scenario == "Server":
        return 1 + pilot["overhead_ns"] / max(1.0, p50_ns)
    if scenario == "Offline":
        raw_per_s = pilot["batch"] / max(1.0, pilot["mean_ns"]) * 1e9
        return max(1.0, raw_per_s / max(throughput_per_s, 1e-9))
    return max(1.0, p50_ns / raw_ns)


def _wanted_duration_s(options: Mapping[str, Any]) -> float:
    if options.get("quick"):
        return QUICK_DURATION_S
    return float(options.get("duration_s") or OFFICIAL_DURATION_S)


def _submission(
    log: DetailLog, options: Mapping[str, Any], wrong: list[str], *, checked: bool
) -> dict[str, Any]:
    """Return whether MLPerf's rules would take this result, as far as one run shows it, and why not.

    `wrong` is why the result does not count at all: then it is none to hand in either.
    """
    reasons = [QUICK] if options.get("quick") else []
    wanted_s = _wanted_duration_s(options)
    if not options.get("quick") and wanted_s < OFFICIAL_DURATION_S:
        reasons.append(f"at least {OFFICIAL_DURATION_S:g} s are wanted, asked for were {wanted_s:g} s")
    if not options.get("quick"):
        reasons += _settings_not_official(log)
    if not checked:
        reasons.append("there is no accuracy run")
    if not log.valid or log.errors:
        reasons.append("LoadGen says that the result is not valid")
    reasons += [reason for reason in wrong if reason not in reasons]
    return {"submission_valid": not reasons, "submission_reasons": reasons}


def _warnings(log: DetailLog, options: Mapping[str, Any], duration_s: float, *, settled: bool) -> list[str]:
    """Return what is no reason against the result and should be known to who reads it."""
    found = []
    if not settled:
        found.append("the pilot did not settle: times still moved by more than 5 % when LoadGen began")
    wanted_s, values = _wanted_duration_s(options), log.values
    queries, least = count(values, "result_query_count", least=1), count(values, "effective_min_query_count")
    if duration_s > _LONGER * wanted_s and 1 < queries <= _LONGER * least:
        found.append(
            f"the minimum of {least} queries made it last {duration_s:.1f} s, asked for were {wanted_s:g} s"
        )
    return found


def _settings_not_official(log: DetailLog) -> list[str]:
    """Return which settings are below the minimum of MLPerf Inference's rules."""
    scenario, values = str(log.values["effective_scenario"]), log.values
    least = OFFICIAL_QUERIES.get(scenario, 0)
    key = "effective_min_query_count"
    if scenario == "Offline":
        key = "effective_min_sample_count"
        least = min(OFFICIAL_OFFLINE_SAMPLES, count(values, "qsl_reported_total_count", least=1))
    reasons = []
    if count(values, key) < least:
        what = "samples" if scenario == "Offline" else "queries"
        reasons.append(f"at least {least} {what} are wanted, asked for were {count(values, key)}")
    size = count(values, "effective_samples_per_query", least=1)
    if scenario == "MultiStream" and size != OFFICIAL_MULTI_STREAM:
        reasons.append(f"a query has {size} samples, not {OFFICIAL_MULTI_STREAM}")
    return reasons


def _gates(log: DetailLog, options: Mapping[str, Any], duration_s: float) -> list[str]:
    """Return why the result does not count, in LoadGen's words where they are its."""
    reasons = []
    if not log.valid:
        why = " ".join(log.invalid_reasons) or _unmet(log)
        reasons.append(f"LoadGen says {log.values.get('result_validity', 'nothing')}: {why}")
    reasons += [f"LoadGen reports an error: {error}" for error in log.errors]
    wanted_s = _wanted_duration_s(options)
    if duration_s < wanted_s - _DURATION_TOLERANCE_S:
        reasons.append(f"the queries took {duration_s:.2f} s, at least {wanted_s:g} s are wanted")
    effective_s = number(log.values, "effective_min_duration_ms") / 1000
    if effective_s < wanted_s - _DURATION_TOLERANCE_S:
        reasons.append(f"LoadGen ran with a minimum of {effective_s:g} s instead of {wanted_s:g} s")
    return reasons


def _beyond_reach(log: DetailLog, options: Mapping[str, Any], values: Mapping[str, Any]) -> str | None:
    """Return why no rate of Server keeps to the latency that was asked for: the pilot took longer for a sample."""
    target_s, pilot = options.get("target_latency_s"), values.get("pilot")
    if log.values.get("effective_scenario") != "Server" or target_s is None or not isinstance(pilot, dict):
        return None
    target_ns, floor_ns = float(target_s) * 1e9, count(pilot, "median_ns")
    if target_ns > floor_ns:
        return None
    return f"no rate can keep to {duration(target_ns)}: a sample alone takes {duration(floor_ns)}"


def _unmet(log: DetailLog) -> str:
    unmet = [key for key, value in log.values.items() if key.endswith("_met") and value is False]
    return ", ".join(unmet) or "without a reason"


def _samples_missing(folder: Path, results: Mapping[str, Result]) -> list[str]:
    """Return what is missing in the accuracy run: every sample must be in it, once."""
    if "loadgen:accuracy" not in results:
        return []
    log = read_log(folder, "accuracy")
    _require(log, "effective_test_mode", "AccuracyOnly")
    path = folder / "loadgen/accuracy/mlperf_log_accuracy.json"
    try:
        indices = [index for index, _ in read_accuracy_log(path)]
    except (OSError, LogUnreadable) as error:
        raise ProtocolBroken(
            f"LoadGen's accuracy log can't be read: {error}"[:1000], where=path.name
        ) from error
    wanted = count(log.values, "qsl_reported_total_count", least=1)
    reasons = [f"LoadGen reports an error in the accuracy run: {error}" for error in log.errors]
    # The last query of several samples is filled up with some that LoadGen had before.
    again = len(indices) - wanted
    most_again = count(log.values, "effective_samples_per_query", least=1) - 1
    if set(indices) != set(range(wanted)) or again > most_again:
        reasons.append(
            f"the accuracy run has {len(set(indices))} of {wanted} samples, {len(indices)} answers"
        )
    return reasons
