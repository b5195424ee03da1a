"""What `batched` adds to a result: throughput and latency of each size, the best size, and why the search ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.errors import ProtocolBroken
from mlbundle.runs.measured import check_closed_loop, count, load_latencies, not_said
from mlbundle.runs.throughputs import throughput_reasons

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mlbundle.runs.measured import MeasureFindings, PassFindings

ENDS = ("given", "no-gain", "largest", "memory", "refused")
_MOST_TEXT = 4096
# Two divisions of the same numbers, in the worker and here.
_ROUNDING = 1e-9


def add(
    folder: Path, processes: Sequence[MeasureFindings], options: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return `batches`, `optimal` and `search`, and why the result is not valid. Raises ProtocolBroken."""
    found = processes[0]
    passes = [part for part in found.passes if part.kind == "batch"]
    batches = [_batch(folder, part) for part in passes]
    sizes = [batch["batch_size"] for batch in batches]
    search = _search(found.values.get("search"))
    if options.get("queries") is not None and any(part.queries != options["queries"] for part in passes):
        raise not_said("queries")
    if not _asked_for(sizes, options.get("batch_sizes"), search["ended"]):
        raise not_said("batch_size")
    if len(passes) != len(found.passes) or sizes != sorted(set(sizes)):
        raise not_said("passes")
    best = max(batches, key=lambda batch: batch["throughput_per_s"])
    headline = batches[passes.index(found.headline)]
    if headline["throughput_per_s"] < best["throughput_per_s"] * (1 - _ROUNDING):
        raise ProtocolBroken(
            f"the worker's headline is the size {headline['batch_size']}, the fastest was {best['batch_size']}"
        )
    optimal = {name: headline[name] for name in ("batch_size", "throughput_per_s")}
    fastest = found.headline
    reasons = throughput_reasons(fastest.queries, fastest.busy_ns, load_latencies(folder, fastest))
    return {"batches": batches, "optimal": optimal, "search": search}, reasons


def _asked_for(sizes: Sequence[int], asked: Sequence[int] | None, ended: str) -> bool:
    """Return whether these are the sizes that were asked for, from the smallest: all of them, or up to its end."""
    if asked is None:
        return ended != "given" and list(sizes) == [1 << step for step in range(len(sizes))]
    wanted = sorted(set(asked))
    return list(sizes) == wanted[: len(sizes)] and (ended == "given") == (len(sizes) == len(wanted))


def _batch(folder: Path, found: PassFindings) -> dict[str, Any]:
    from mlbundle.analysis.statistics import summarise_latencies

    size = count(found.values, "batch_size", least=1)
    if found.queries < 1 or found.samples != found.queries * size:
        raise not_said("samples")
    latencies = load_latencies(folder, found)
    check_closed_loop(found, latencies)
    return {
        "batch_size": size,
        "queries": found.queries,
        "samples": found.samples,
        "throughput_per_s": found.samples / max(1, found.busy_ns) * 1e9,
        "latency_ns": summarise_latencies(latencies).to_document(),
        "settled": found.values.get("settled") is True,
    }


def _search(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict) or said.get("ended") not in ENDS:
        raise not_said("search")
    size, message = said.get("batch_size"), said.get("message")
    return {
        "ended": said["ended"],
        "batch_size": None if size is None else count(said, "batch_size", least=1),
        "message": None if message is None else str(message)[:_MOST_TEXT],
    }
