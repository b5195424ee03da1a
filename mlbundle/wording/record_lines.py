"""Lines of the result table, as (name, text): what both the command line and the terminal UI say of a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.runs.words import counted
from mlbundle.wording import (
    percentiles,
    results_batched,
    results_cold_start,
    results_loadgen,
    results_pipeline,
    results_poisson,
    results_tokens,
    units,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Lines = list[tuple[str, str]]

_HARNESS_OF_P50 = "of p50 is the loop itself"
# A cold start has no loop, and what LoadGen costs in Server can't be told from waiting.
_HARNESS: dict[str, str | None] = {
    "offline": "of the throughput is lost to LoadGen",
    "pipeline": "of the time of a sample is threads and queues alone",
    "single-stream": "is what LoadGen adds to p50",
    "multi-stream": "is what LoadGen adds to p50",
    "server": None,
    "cold-start": None,
}


def latency(result: Mapping[str, Any]) -> Lines:
    """Return what is known of the latency: LoadGen gives some percentiles, by its own rules, and no trimmed mean."""
    found = result["latency_ns"]
    # LoadGen's are over samples, which one query has many of.
    queries = None if "loadgen" in result else result["queries"]
    shown = percentiles.texts(found, queries)
    texts = ["  ".join(shown)] if shown else []
    if found.get("trimmed_mean") is not None:
        texts.insert(0, f"{units.duration(found['trimmed_mean'])} trimmed mean")
    return [("latency" if number == 0 else "", text) for number, text in enumerate(texts)]


def throughput(result: Mapping[str, Any]) -> Lines:
    """Return the throughput, and over how many queries and seconds."""
    amount = f"({counted(result['queries'], 'query', 'queries')} in {result['duration_s']:.2f} s)"
    return [("throughput", f"{units.rate(result['throughput_per_s'])}  {amount}")]


def harness(scenario: str, ratio: float) -> Lines:
    """Return what the harness costs, in words of the scenario's headline; nothing where it can't be told."""
    words = _HARNESS.get(scenario, _HARNESS_OF_P50)
    share = 1 - 1 / ratio if scenario == "offline" else ratio - 1
    # Of a time that two measurements make up there is no more than all of it.
    share = min(share, 1.0) if scenario == "pipeline" else share
    if words is None:
        return []
    text = "less than 0.1 %" if share < 0.0005 else f"{100 * share:.1f} %"
    return [("harness", f"{text} {words}")]


def of_scenario(record: Mapping[str, Any], result: Mapping[str, Any]) -> Lines:
    """Return what the scenario adds; each part of a result has a module that knows how to say it."""
    found = results_poisson.lines(result)
    found += results_loadgen.lines(result, record["scenario"]["options"], record["validity"]["reasons"])
    for key, module in (
        ("tokens", results_tokens),
        ("batches", results_batched),
        ("pipeline", results_pipeline),
        ("cold_start", results_cold_start),
    ):
        if key in result:
            found += module.lines(result)
    return found


def used(record: Mapping[str, Any]) -> Lines:
    """Return what the worker used while it was measured, as far as it was seen."""
    measured = (record.get("resources") or {}).get("measure") or {}
    texts = []
    if measured.get("cpu_share_mean") is not None:
        texts.append(f"{measured['cpu_share_mean']:.2f} CPUs")
    if measured.get("memory_peak_bytes") is not None:
        texts.append(units.size(measured["memory_peak_bytes"]))
    return [("used", ", ".join(texts))] if texts else []


def seen(record: Mapping[str, Any]) -> Lines:
    """Return what was seen of a run that did not come to its end."""
    noted = record.get("seen") or {}
    texts: list[str] = []
    found: Lines = []
    measured = noted.get("measured")
    if measured:
        times = "  ".join(
            f"{name} {units.duration(measured[f'{name}_ns'])}" for name in ("p50", "p90", "p99")
        )
        text = f"{times}  over {counted(measured['queries'], 'query', 'queries')}; no result, as the run did not end"
        found.append(("measured", text))
    elif noted.get("queries"):
        texts.append(counted(noted["queries"], "query", "queries"))
    if noted.get("last_window") and not measured:
        texts.append(f"p50 {units.duration(noted['last_window']['p50_ns'])}")
    if noted.get("phase"):
        texts.append(f"ended in phase {noted['phase']}")
    return [*found, ("seen", ", ".join(texts))] if texts else found


def warnings(record: Mapping[str, Any]) -> Lines:
    """Return what to know of the conditions under which it was measured."""
    environment = record.get("environment") or {}
    return [("warning", str(one.get("message"))) for one in environment.get("warnings") or []]
