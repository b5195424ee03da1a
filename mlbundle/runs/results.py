"""From the files and words of a worker to the `result` of a record: the common keys, and what a scenario adds."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlbundle.analysis.claims import LEAST_QUERIES
from mlbundle.errors import ProtocolBroken
from mlbundle.runs.measured import MeasureFindings, load_latencies, not_said, read_measure
from mlbundle.runs.tokens import tokens_of
from mlbundle.wire.scenarios import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from mlbundle.wire.events import Result

_HOW = (
    "1 + wall time of the same loop around a call that does nothing, measured in the same process right after the "
    "queries, over p50"
)


@dataclass(frozen=True)
class Collected:
    """What a run found: the `result` of its record, and what execution needs to know of it.

    `queries` are those of the headline, None where their number says nothing about validity; `settled` is whether all
    warm-ups settled; `reasons` are why the result is not valid, as its scenario sees it. `headline` is the folder of
    the pass that the result is taken from (`passes/01-measure` or `loadgen/performance`), `traced_queries` how many of
    its queries became spans, `framework` what the framework said of itself (not checked yet).
    """

    result: dict[str, Any]
    queries: int | None
    settled: bool
    headline: str
    framework: Any
    peak_memory_bytes: int
    traced_queries: int = 0
    reasons: list[str] = field(default_factory=list)


# Scenario -> `module:function`, called with the run's folder, the findings of each measuring process in order, and the
# scenario's options; returns what it adds to the result and why that is not valid. It checks what it reads and raises
# ProtocolBroken.
ADDERS: dict[str, str] = {
    "online": "mlbundle.runs.repeats:add_online",
    "poisson": "mlbundle.runs.open_loop:add",
    "batched": "mlbundle.runs.batches:add",
    "pipeline": "mlbundle.runs.pipelines:add",
}
_BY_THROUGHPUT = ("batched", "pipeline")
# Scenarios whose queries are of one sample each.
_SINGLE_SAMPLES = ("online", "poisson", "pipeline")
# Families whose worker sends no passes of queries: -> `module:function`, called with the run's folder, the results by
# name and the options; returns Collected.
COLLECTORS: dict[str, str] = {
    "cold-start": "mlbundle.runs.cold_start:collect",
    "loadgen": "mlbundle.runs.loadgen:collect",
}


def collect_results(
    folder: Path, results: Mapping[str, Result], scenario: str, options: Mapping[str, Any]
) -> Collected:
    """Return what the worker found, checked. Raises ProtocolBroken."""
    spec = BY_NAME.get(scenario)
    family = "loadgen" if spec is not None and spec.loadgen is not None else scenario
    if family in COLLECTORS:
        found: Collected = _load(COLLECTORS[family])(folder, results, options)
        return found
    processes = _processes(results, options)
    first, result, reasons = processes[0], common_result(folder, processes[0]), []
    if scenario in _SINGLE_SAMPLES and any(p.headline.samples != p.headline.queries for p in processes):
        raise not_said("samples")
    result |= tokens_of(folder, first.headline)
    if scenario in ADDERS:
        added, reasons = _load(ADDERS[scenario])(folder, processes, options)
        result |= added
    if scenario not in _BY_THROUGHPUT:
        reasons = [*reasons, *_too_few(processes)]
    return Collected(
        result=result,
        # Where the headline is a throughput, a few long queries are as good as many short ones; `poisson` says itself
        # how many its percentile needs.
        queries=None if scenario in (*_BY_THROUGHPUT, "poisson") else first.headline.queries,
        settled=all(process.warm_up_settled for process in processes),
        headline=first.headline.folder,
        framework=first.values.get("framework"),
        peak_memory_bytes=max(process.peak_memory_bytes for process in processes),
        traced_queries=first.headline.traced_queries,
        reasons=reasons,
    )


def _processes(results: Mapping[str, Result], options: Mapping[str, Any]) -> list[MeasureFindings]:
    """Return what each measuring process of a job said, in order: none is missing, none speaks of another's files."""
    names = ["measure", *(f"repeat:{number}" for number in range(1, int(options.get("repeats") or 1)))]
    missing = [name for name in names if name not in results]
    if missing:
        which = "" if missing == names else f" of {missing[0]}"
        raise ProtocolBroken(
            f"the worker finished without a result{which}", hint="see worker.log in the run's folder"
        )
    processes = [read_measure(results[name].values) for name in names]
    folders = [found.folder for process in processes for found in process.passes]
    if len(set(folders)) != len(folders):
        raise not_said("folder")
    return processes


def _too_few(processes: Sequence[MeasureFindings]) -> list[str]:
    """Return why processes after the first do not count; that one is judged as every run is."""
    return [
        f"process {number}: {process.headline.queries} queries, at least {LEAST_QUERIES} are needed for a "
        "90th percentile"
        for number, process in enumerate(processes[1:], start=2)
        if process.headline.queries < LEAST_QUERIES
    ]


def common_result(folder: Path, found: MeasureFindings) -> dict[str, Any]:
    """Return the keys that every scenario has, from the latencies of the headline."""
    from mlbundle.analysis.statistics import summarise_latencies

    headline = found.headline
    latencies = load_latencies(folder, headline)
    # However many queries went on at the same time, none was answered before the load was on or after it.
    if int(latencies.max()) > headline.busy_ns:
        raise not_said("busy_ns")
    summary = summarise_latencies(latencies)
    return {
        "latency_ns": summary.to_document(),
        "throughput_per_s": headline.samples / headline.busy_ns * 1e9,
        "queries": headline.queries,
        "samples": headline.samples,
        "duration_s": headline.busy_ns / 1e9,
        "harness_overhead": {"ratio": 1 + found.loop_overhead_ns / max(1, summary.p50), "how": _HOW},
        "warm_up": {"queries": found.warm_up_queries, "settled": found.warm_up_settled},
    }


def _load(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
