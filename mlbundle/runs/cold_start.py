"""The result of `cold-start`: times from the spawning of a process to its first answer, by phase."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from mlbundle.errors import ProtocolBroken
from mlbundle.runs.measured import count, load_times, not_said
from mlbundle.runs.results import Collected
from mlbundle.wire.passes import LATENCIES, folder_number

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mlbundle.wire.events import Result

PHASES = ("interpreter", "import", "load", "prepare", "answer")
_HOW = "nothing of ours runs between the spawning of a process and its first answer but what is counted as its phases"


def collect(folder: Path, results: Mapping[str, Result], options: Mapping[str, Any]) -> Collected:
    """Return the times of all starts, checked. Raises ProtocolBroken."""
    from mlbundle.analysis.statistics import summarise_latencies

    repeats = int(options.get("repeats") or 1)
    said = [results.get(f"cold-start:{number}") for number in range(repeats)]
    starts = [_start(folder, result) for result in said]
    totals = [start["total_ns"] for start in starts]
    if len({found.values["folder"] for found in said if found}) != repeats:
        raise not_said("folder")
    first = said[0]
    assert first is not None
    result = {
        "latency_ns": summarise_latencies(totals).to_document(),
        "throughput_per_s": len(totals) / sum(totals) * 1e9,
        "queries": len(totals),
        "samples": len(totals),
        "duration_s": sum(totals) / 1e9,
        "harness_overhead": {"ratio": 1.0, "how": _HOW},
        "warm_up": {"queries": 0, "settled": True},
        "cold_start": {"starts": starts, "first_ns": totals[0], "median": _median(starts)},
    }
    return Collected(
        result=result,
        queries=None,
        settled=True,
        headline=str(first.values["folder"]),
        framework=first.values.get("framework"),
        peak_memory_bytes=max(count(found.values, "peak_memory_bytes") for found in said if found),
        traced_queries=len(totals),
    )


def _start(folder: Path, result: Result | None) -> dict[str, Any]:
    """Return one start: `total_ns` and its `phases` in ns, which it is the sum of."""
    if result is None:
        raise ProtocolBroken(
            "the worker finished without one of its starts", hint="see worker.log in the run's folder"
        )
    values, phases = result.values, result.values.get("phases")
    place = values.get("folder")
    if not isinstance(place, str) or folder_number(place) is None or not place.endswith("-cold-start"):
        raise not_said("folder")
    if place.count("/") != 1 or not isinstance(phases, dict) or not phases.keys() <= set(PHASES):
        raise not_said("phases")
    total_ns = count(values, "total_ns", least=1)
    lengths = {name: count(phases, name) for name in PHASES if name in phases}
    if sum(lengths.values()) != total_ns or load_times(folder, f"{place}/{LATENCIES}", 1)[0] != total_ns:
        raise not_said("total_ns")
    return {"total_ns": total_ns, "phases": lengths}


def _median(starts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of the total and of each phase: of all starts but the first, which finds caches cold."""
    later = starts[1:] or starts
    phases = {
        name: median(start["phases"].get(name, 0) for start in later)
        for name in PHASES
        if any(name in start["phases"] for start in later)
    }
    return {"total_ns": median(start["total_ns"] for start in later), "phases": phases}
