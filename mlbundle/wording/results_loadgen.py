"""What LoadGen says, as lines of the result table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

# LoadGen's own headline of each scenario: the key, what it is called, and how it is written. Latencies are known with
# confidence only as the estimate that the rule for stopping early gives; LoadGen says 0 where queries were too few.
_ESTIMATES: dict[str, tuple[str, str]] = {
    "SingleStream": ("early_stopping_latency_ss", "90th percentile latency, early-stopping estimate"),
    "MultiStream": ("early_stopping_latency_ms", "99th percentile per query, early-stopping estimate"),
}
_NOT_VALID = "LoadGen says that the result is not valid"
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


def lines(
    result: Mapping[str, Any], options: Mapping[str, Any] | None = None, told: Collection[str] = ()
) -> list[tuple[str, str]]:
    """Return (name, text) of the lines that a LoadGen scenario adds; none for another result.

    `options` are those of the scenario, None where they are not known; `told` are reasons that are shown anyway.
    """
    found = result.get("loadgen")
    if not found:
        return []
    verdict = "VALID" if found["valid"] else "INVALID"
    headline = _headline(found, by_token="tokens" in result)
    shown = [("loadgen", f"{found['scenario']} {verdict}  {headline}".rstrip())]
    # What makes the result not valid says so itself, LoadGen's verdict too.
    told = {*told, _NOT_VALID} if told else told
    reasons = [text for text in found["submission_reasons"] if text not in told]
    if not found["submission_valid"] and (reasons or not told):
        shown.append(("", "; ".join(reasons or found["submission_reasons"])))
    shown += _target(result, found, options)
    if "peak" in found:
        shown.append(("peak", _peak(found["peak"])))
    for test, outcome in found["compliance"].items():
        shown.append((test.lower(), "passed" if outcome["passed"] else f"FAILED: {outcome['why']}"))
    return [*shown, *(("warning", text) for text in found["warnings"])]


def _target(
    result: Mapping[str, Any], found: Mapping[str, Any], options: Mapping[str, Any] | None
) -> list[tuple[str, str]]:
    """Return what Server was asked to keep to, and where its rate comes from."""
    if found["scenario"] != "Server":
        return []
    lines = []
    settings = found.get("settings") or {}
    rate = _positive(settings, "target_qps")
    if options is not None and not options.get("rate_per_s") and "peak" not in found and rate:
        lines.append(("rate", f"{units.rate(rate)}, chosen by the pilot: a share of what the model can do"))
    target_ns, percent = (
        _positive(settings, "target_latency_ns"),
        100 * _positive(settings, "target_latency_percentile"),
    )
    latency_ns = _positive(found["result"], f"result_{percent:.2f}_percentile_latency_ns")
    if "tokens" not in result and target_ns and latency_ns:
        kept = "kept" if latency_ns <= target_ns else "NOT KEPT"
        latency, target = units.duration(latency_ns), units.duration(target_ns)
        lines.append(("target", f"p{percent:g} {latency}, {target} wanted: {kept}"))
    return lines


def _positive(document: Mapping[str, Any], key: str) -> float:
    """Return the number of a key, 0 where there is none above it."""
    value = document.get(key)
    return float(value) if value is not None and _is_positive(value) else 0.0


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
