"""What LoadGen says, as lines of the result table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.cli import units

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# LoadGen's own headline of each scenario: the key, what it is called, and how it is written. Latencies are known with
# confidence only as the estimate that the rule for stopping early gives; LoadGen says 0 where queries were too few.
_ESTIMATES: dict[str, tuple[str, str]] = {
    "SingleStream": ("early_stopping_latency_ss", "90th percentile latency, early-stopping estimate"),
    "MultiStream": ("early_stopping_latency_ms", "99th percentile per query, early-stopping estimate"),
}
_HEADLINES: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "SingleStream": ("result_90.00_percentile_latency_ns", "90th percentile latency", units.duration),
    "MultiStream": (
        "result_99.00_percentile_per_query_latency_ns",
        "99th percentile per query",
        units.duration,
    ),
    "Server": ("result_scheduled_samples_per_sec", "scheduled", units.rate),
    "Offline": ("result_samples_per_second", "samples", units.rate),
}


def lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) of the lines that a LoadGen scenario adds; none for another result."""
    found = result.get("loadgen")
    if not found:
        return []
    verdict = "VALID" if found["valid"] else "INVALID"
    headline = _headline(found, by_token="tokens" in result)
    shown = [("loadgen", f"{found['scenario']} {verdict}  {headline}".rstrip())]
    if "peak" in found:
        shown.append(("peak", _peak(found["peak"])))
    if not found["submission_valid"]:
        shown.append(("", "; ".join(found["submission_reasons"])))
    for test, outcome in found["compliance"].items():
        shown.append((test.lower(), "passed" if outcome["passed"] else f"FAILED: {outcome['why']}"))
    return [*shown, *(("warning", text) for text in found["warnings"])]


def _peak(peak: Mapping[str, Any]) -> str:
    tried = f"({len(peak['trials'])} rates tried)"
    if peak["rate_per_s"] is not None:
        return f"{units.rate(peak['rate_per_s'])}, confirmed {tried}"
    if peak["found_per_s"] is not None:
        return f"none confirmed: LoadGen found {units.rate(peak['found_per_s'])} {tried}"
    return f"none found {tried}"


def _headline(found: Mapping[str, Any], *, by_token: bool) -> str:
    key, name, write = _HEADLINES[found["scenario"]]
    # Where LoadGen measures tokens, its estimates are of them.
    estimate, called = (key, name) if by_token else _ESTIMATES.get(found["scenario"], (key, name))
    if _is_positive(found["result"].get(estimate)):
        key, name = estimate, called
    value = found["result"].get(key)
    return f"{name} {write(value)}" if _is_positive(value) else ""


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
