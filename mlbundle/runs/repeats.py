"""What a latency scenario adds to its result: bounds of percentiles, stability, and an interval over processes."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from mlbundle.runs.measured import check_closed_loop, load_latencies, not_said

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mlbundle.runs.measured import MeasureFindings, PassFindings


def add_online(
    folder: Path, processes: Sequence[MeasureFindings], options: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return what `online` adds to the result, and why that is not valid. Raises ProtocolBroken."""
    from mlbundle.analysis.percentiles import bounded_percentiles
    from mlbundle.analysis.stability import stability

    latencies = [_latencies(folder, process.headline, options) for process in processes]
    added: dict[str, Any] = {"percentiles": bounded_percentiles(latencies[0]), **over_processes(latencies)}
    found = [
        stability(times, process.headline.busy_ns / 1e9)
        for times, process in zip(latencies, processes, strict=True)
    ]
    if found[0] is not None:
        added["stability"] = found[0].to_document()
    reasons = []
    for number, steady in enumerate(found, start=1):
        reason = None if steady is None else steady.reason()
        if reason is not None:
            reasons.append(reason if len(found) == 1 else f"process {number}: {reason}")
    return added, reasons


def _latencies(folder: Path, found: PassFindings, options: Mapping[str, Any]) -> Any:
    """Return the latencies of one process, as many as were asked for, one after another. Raises ProtocolBroken."""
    latencies = load_latencies(folder, found)
    check_closed_loop(found, latencies)
    if options.get("queries") is not None and found.queries != options["queries"]:
        raise not_said("queries")
    return latencies


def over_processes(latencies_ns: Sequence[Any]) -> dict[str, Any]:
    """Return `repeats` of a result for the latencies of each process; nothing where there is one only."""
    from mlbundle.analysis.intervals import CONFIDENCE
    from mlbundle.analysis.statistics import trimmed_mean

    if len(latencies_ns) < 2:
        return {}
    means = [trimmed_mean(latencies) for latencies in latencies_ns]
    document = {"processes": len(means), "confidence": CONFIDENCE, **spread_of("trimmed_mean", means)}
    return {"repeats": document}


def spread_of(name: str, values_ns: Sequence[float]) -> dict[str, Any]:
    """Return a value of each process in ns, their mean, and between which bounds that lies."""
    from mlbundle.analysis.intervals import mean_interval

    return {
        f"{name}_ns": list(values_ns),
        f"{name}_mean_ns": statistics.fmean(values_ns),
        f"{name}_interval_ns": [max(0.0, bound) for bound in mean_interval(values_ns)],
    }
