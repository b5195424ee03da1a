"""What the result table shows of an open loop, of bounds, and of repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a result for those of `poisson`, `peak`, `repeats` and `percentiles` that it has."""
    found: list[tuple[str, str]] = []
    if "poisson" in result:
        found += _poisson(result["poisson"])
    if "peak" in result:
        found.append(("peak", _peak(result["peak"])))
        found += _trials(result["peak"]["trials"])
    if "repeats" in result:
        found.append(("repeats", _repeats(result["repeats"])))
    return found + _bounds(result)


def _poisson(poisson: Mapping[str, Any]) -> list[tuple[str, str]]:
    late = poisson["late_ns"]
    offered, answered = (units.rate(poisson[f"{name}_rate_per_s"]) for name in ("offered", "achieved"))
    waited = f"{100 * poisson['waited_share']:.1f} % found others before them, {poisson['backlog_at_end']:,} at the end"
    found = [
        ("rate", f"{offered} offered, {answered} answered"),
        ("queue", waited),
        ("loop late", f"p50 {units.duration(late['p50'])}  p99 {units.duration(late['p99'])}, when idle"),
    ]
    if "target_latency_s" in poisson:
        target, name = units.duration(poisson["target_latency_s"] * 1e9), f"p{poisson['percentile']:g}"
        kept = "kept" if poisson["kept"] else "NOT KEPT"
        latency = units.duration(poisson["percentile_latency_ns"])
        found.append(("target", f"{name} {latency}, {target} wanted: {kept}"))
        share = f"({100 * poisson['share_within_target']:.2f} % within {target})"
        found.append(("goodput", f"{units.rate(poisson['goodput_per_s'])}  {share}"))
    return found


def _peak(peak: Mapping[str, Any]) -> str:
    wanted = f"p{peak['percentile']:g} within {units.duration(peak['target_latency_s'] * 1e9)}"
    tried = f"({len(peak['trials'])} rates tried)"
    if not peak["trials"]:
        return f"none: no rate can have {wanted}"
    if peak["rate_per_s"] is None:
        best = max((trial["rate_per_s"] for trial in peak["trials"] if trial["kept"]), default=None)
        if best is not None:
            return f"none confirmed with {wanted}; the best trial was {units.rate(best)} {tried}"
        return f"none found with {wanted} {tried}"
    return f"{units.rate(peak['rate_per_s'])} with {wanted} {tried}"


def _trials(trials: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return a line for each rate that was tried, in order."""
    rates = [units.rate(trial["rate_per_s"]) for trial in trials]
    width = max(map(len, rates), default=0)
    return [
        (
            "" if number else "trials",
            f"{rate:>{width}}  {units.duration(trial['latency_ns'])}  {'kept' if trial['kept'] else 'not kept'}",
        )
        for number, (rate, trial) in enumerate(zip(rates, trials, strict=True))
    ]


def _repeats(repeats: Mapping[str, Any]) -> str:
    low, high = repeats["trimmed_mean_interval_ns"]
    mean = units.duration(repeats["trimmed_mean_mean_ns"])
    between = f"{units.duration(low)} to {units.duration(high)}"
    return f"{mean} trimmed mean of {repeats['processes']} processes, {between} ({100 * repeats['confidence']:g} %)"


def _bounds(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    percentiles = result.get("percentiles")
    if not percentiles:
        return []
    bound = [
        f"{p} {units.duration(percentiles[f'{p}_ns'])}"
        for p in ("p90", "p99", "p99_9")
        if percentiles[f"{p}_ns"]
    ]
    text = "  ".join(bound).replace("p99_9", "p99.9") or "too few queries"
    return [("at most", f"{text}  ({100 * percentiles['confidence']:g} % sure)")]
