"""What a latency scenario adds to its result: bounds of percentiles, stability, and an interval over processes."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from mlbundle.runs.measured import load_latencies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mlbundle.runs.measured import MeasureFindings


def add_online(
    folder: Path, processes: Sequence[MeasureFindings], _options: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return what `online` adds to the result, and why that is not valid. Raises ProtocolBroken."""
    from mlbundle.analysis.percentiles import bounded_percentiles
    from mlbundle.analysis.stability import stability

    latencies = [load_latencies(folder, process.headline) for process in processes]
    added: dict[str, Any] = {"percentiles": bounded_percentiles(latencies[0]), **over_processes(latencies)}
    steady = stability(latencies[0], processes[0].headline.busy_ns / 1e9)
    if steady is not None:
        added["stability"] = steady.to_document()
    reason = None if steady is None else steady.reason()
    return added, [] if reason is None else [reason]


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
