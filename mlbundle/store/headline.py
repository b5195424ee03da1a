"""The one number of a run by which it is listed and compared: each scenario has its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LATENCY, RATE = "ns", "per_s"
"""Units: of latencies less is better, of rates more."""

# LoadGen's own: what it is called, the keys in its log of which the first that is above 0 is taken (an estimate is 0
# where the queries were too few for one), and the unit.
_LOADGEN: dict[str, tuple[tuple[str, str], ...]] = {
    "SingleStream": (
        ("p90, estimated", "early_stopping_latency_ss"),
        ("p90", "result_90.00_percentile_latency_ns"),
    ),
    "MultiStream": (
        ("p99, estimated", "early_stopping_latency_ms"),
        ("p99", "result_99.00_percentile_per_query_latency_ns"),
    ),
    "Server": (("scheduled", "result_scheduled_samples_per_sec"),),
    "Offline": (("samples", "result_samples_per_second"),),
}
_LOADGEN_RATES = ("Server", "Offline")


@dataclass(frozen=True)
class Headline:
    """A number, what it is called, and its unit: `ns` or `per_s`."""

    name: str
    value: float
    unit: str


def headline_of(record: Mapping[str, Any]) -> Headline | None:
    """Return the headline of a run record; None where it has no result, or none that we know."""
    result = record.get("result")
    if not isinstance(result, dict):
        return None
    scenario = str((record.get("scenario") or {}).get("name"))
    loadgen = result.get("loadgen")
    if isinstance(loadgen, dict):
        return _of_loadgen(loadgen, by_token="tokens" in result)
    peak = _number(result, "peak", "rate_per_s")
    if peak is not None:
        return Headline("peak", peak, RATE)
    if scenario == "poisson":
        percent = _number(result, "poisson", "percentile") or 99.0
        return _headline(f"p{percent:g}", _number(result, "poisson", "percentile_latency_ns"), LATENCY)
    if scenario == "batched":
        size = _number(result, "optimal", "batch_size") or 0.0
        return _headline(f"batches of {size:g}", _number(result, "optimal", "throughput_per_s"), RATE)
    if scenario == "pipeline":
        return _headline("samples", _number(result, "pipeline", "samples_per_s"), RATE)
    if scenario == "cold-start":
        return _headline("median start", _number(result, "cold_start", "median", "total_ns"), LATENCY)
    return _headline("trimmed mean", _number(result, "latency_ns", "trimmed_mean"), LATENCY)


def is_quick(record: Mapping[str, Any]) -> bool:
    """Return whether a run was shorter than the rules of its scenario want: its numbers say less."""
    scenario = record.get("scenario") or {}
    return bool((scenario.get("options") or {}).get("quick"))


def _of_loadgen(loadgen: Mapping[str, Any], *, by_token: bool) -> Headline | None:
    scenario = str(loadgen.get("scenario"))
    peak = _number(loadgen, "peak", "rate_per_s")
    if peak is not None:
        return Headline("peak", peak, RATE)
    # Where LoadGen measures tokens, its estimates are of them and not of whole answers.
    keys = _LOADGEN.get(scenario, ())[1 if by_token else 0 :] or _LOADGEN.get(scenario, ())
    for name, key in keys:
        value = _number(loadgen, "result", key)
        if value is not None:
            return Headline(name, value, RATE if scenario in _LOADGEN_RATES else LATENCY)
    return None


def _headline(name: str, value: float | None, unit: str) -> Headline | None:
    return None if value is None else Headline(name, value, unit)


def _number(document: Any, *path: str) -> float | None:
    """Return the number at a place of a document, None where there is none above 0."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    if isinstance(document, bool) or not isinstance(document, int | float) or not document > 0:
        return None
    return float(document)
