"""From the files and words of a worker to the `result` of a record: the common keys, and what a scenario adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.errors import ProtocolBroken
from mlbundle.runs.measured import MeasureFindings, load_latencies, read_measure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from mlbundle.wire.events import Result

_HOW = (
    "1 + wall time of the same loop around a call that does nothing, measured in the same process right after the "
    "queries, over p50"
)

# Scenario -> what it adds to the result: a function of the run's folder, the findings of each measuring process in
# order, and the scenario's options. It checks what it reads and raises ProtocolBroken.
Adder = "Callable[[Path, list[MeasureFindings], Mapping[str, Any]], dict[str, Any]]"
ADDERS: dict[str, str] = {}


def collect_result(
    folder: Path, results: Mapping[str, Result], scenario: str, options: Mapping[str, Any]
) -> tuple[dict[str, Any], list[MeasureFindings]]:
    """Return the `result` of a record, and what each measuring process found. Raises ProtocolBroken."""
    processes = [
        read_measure(result.values)
        for name, result in results.items()
        if name == "measure" or name.startswith("repeat:")
    ]
    if not processes:
        raise ProtocolBroken(
            "the worker finished without a result", hint="see worker.log in the run's folder"
        )
    result = common_result(folder, processes[0])
    adder = ADDERS.get(scenario)
    return {**result, **(load_adder(adder)(folder, processes, options) if adder else {})}, processes


def load_adder(place: str) -> Callable[..., dict[str, Any]]:
    """Return the function at `module:name`."""
    import importlib

    module, _, name = place.partition(":")
    function: Callable[..., dict[str, Any]] = getattr(importlib.import_module(module), name)
    return function


def common_result(folder: Path, found: MeasureFindings) -> dict[str, Any]:
    """Return the keys that every scenario has, from the latencies of the headline."""
    from mlbundle.analysis.statistics import summarise_latencies

    headline = found.headline
    summary = summarise_latencies(load_latencies(folder, headline))
    return {
        "latency_ns": summary.to_document(),
        "throughput_per_s": headline.samples / headline.busy_ns * 1e9,
        "queries": headline.queries,
        "samples": headline.samples,
        "duration_s": headline.busy_ns / 1e9,
        "harness_overhead": {"ratio": 1 + found.loop_overhead_ns / max(1, summary.p50), "how": _HOW},
        "warm_up": {"queries": found.warm_up_queries, "settled": found.warm_up_settled},
    }
