"""Lines of the result table about the passes that profiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def lines(profiles: Sequence[Mapping[str, Any]], folder: Path | None = None) -> list[tuple[str, str]]:
    """Return what was seen to each depth, what the profiler cost, and what a reader has to know.

    `folder`: that of the run, whose columns know the slowest layer.
    """
    found = _slowest(folder) if profiles and folder is not None else []
    for number, profile in enumerate(profiles):
        found.append(("profile" if number == 0 else "", f"{profile['level']}: {_seen(profile)}"))
        found += [("", f"  {note}") for note in profile.get("notes", ())]
    return found


def _slowest(folder: Path) -> list[tuple[str, str]]:
    from mlbundle.runs.trace_summary import slowest_layer

    layer = slowest_layer(folder)
    if layer is None:
        return []
    name = layer.original_name or layer.name
    text = f"layer {name} ({layer.type}), p50 {units.duration(layer.p50_ns)} under the profiler"
    return [("slowest", f"{text}; all of them: `mlbundle trace summary`")]


def _seen(profile: Mapping[str, Any]) -> str:
    if profile.get("missing"):
        return f"failed: {profile.get('error') or 'the events and worker.log say why'}"
    if not profile["queries"]:
        return "the predictor has no profiler"
    layers, kernels = profile["layers"], profile["kernels"]
    parts = [f"{_each(layers, profile['queries'])} layers"]
    if kernels:
        parts.append(f"{_each(kernels, profile['queries'])} kernels or operators")
    ratio = f"x{profile['ratio']:.2f} of {units.duration(profile['unprofiled_p50_ns'])} without the profiler"
    return f"{' and '.join(parts)} in each of {_queries(profile)}; {ratio}"


def _queries(profile: Mapping[str, Any]) -> str:
    size = profile.get("batch_size", 1)
    return f"{profile['queries']} queries{f' of {size} samples' if size > 1 else ''}"


def _each(rows: int, queries: int) -> str:
    return f"{rows / queries:.0f}" if rows % queries == 0 else f"about {rows / queries:.0f}"
