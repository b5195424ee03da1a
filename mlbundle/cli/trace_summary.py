"""`mlbundle trace summary`: where the time of a run went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.cli.params import complete_run
from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlbundle.runs.trace_summary import LayerTimes, TraceSummary

_STEPS = ("pass", "step", "count", "total", "mean", "p50")
_LAYERS = ("layer", "type", "p50", "share")
_TYPES = ("type", "layers", "p50", "share")
_SHOWN = 10


@click.command("summary")
@click.argument("run", default="latest", shell_complete=complete_run)
@click.option(
    "--layers",
    "shown",
    type=click.IntRange(min=0),
    default=_SHOWN,
    show_default=True,
    help="How many layers, the slowest first; JSON has all.",
)
@click.option(
    "--by",
    type=click.Choice(["name", "type"]),
    help="Only the layers: each by itself, or those of a type together.",
)
@output.format_options()
def summary(run: str, shown: int, by: str | None, output_format: str) -> None:
    """Show where the time went: steps, slowest layers, their types.

    RUN is the latest by default. Layers are those of the profile that looked least deep; times are medians over its
    queries, shares are of such a query, which the profiler makes longer. Steps of the accuracy pass run side by side
    in threads of their own, so they take longer there than alone; the latency of a model is the one of the measured
    pass.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.trace_summary import trace_summary

    found = trace_summary(load_settings(), run)
    if output_format == "json":
        output.document(found.to_document())
        return
    if by is None:
        if found.rows or output_format not in {"table", "markdown"}:
            output.records(found.rows, _STEPS, _step_cells, output_format=output_format)
        # What programs read is one table: the layers are asked for with --by.
        if output_format in {"table", "markdown"}:
            _show_rest(found, shown, output_format)
        return
    if found.layers is None:
        _say_why_none(found)
        return
    if by == "type":
        output.records(found.layers.types, _TYPES, _type_cells, output_format=output_format)
    else:
        output.records(found.layers.layers[:shown], _LAYERS, _layer_cells, output_format=output_format)


def _show_rest(found: TraceSummary, shown: int, output_format: str) -> None:
    if found.layers is not None:
        layers = found.layers
        output.data("")
        output.records(layers.layers[:shown], _LAYERS, _layer_cells, output_format=output_format)
        output.data("")
        output.records(layers.types, _TYPES, _type_cells, output_format=output_format)
        output.notes([_of_what(layers, shown)], output_format=output_format)
    if found.status != "completed":
        _say_how_it_ended(found, output_format)


def _of_what(layers: LayerTimes, shown: int) -> str:
    """Return what the layers are of, and how far to trust them."""
    count = f"the {shown} slowest of " if shown < len(layers.layers) else ""
    text = f"{count}{len(layers.layers)} layers, in the pass `{layers.pass_name}`"
    if layers.query_ns:
        text += f"; a query took {units.duration(layers.query_ns)} there"
    return text + (f", x{layers.ratio:.2f} of what it takes unprofiled" if layers.ratio is not None else "")


def _say_how_it_ended(found: TraceSummary, output_format: str) -> None:
    phase = f" in phase {found.phase}" if found.phase else ""
    done = ", ".join(f"{name} {units.duration(s * 1e9)}" for name, s in found.phases_s.items())
    lines = [f"the run did not come to its end: {found.status}{phase}; nothing here is a result"]
    if done:
        lines.append(f"phases that were done: {done}")
    if not found.rows:
        lines.append(f"no pass was whole; `mlbundle trace open {found.run_id}` shows what was seen")
    output.notes(lines, output_format=output_format)


def _say_why_none(found: TraceSummary) -> None:
    output.narrate(
        f"run {found.run_id} has no layers: `mlbundle run --trace framework` looks at them, "
        "with a framework that has a profiler"
    )


def _step_cells(row: Mapping[str, Any]) -> Sequence[Any]:
    times = (units.duration(row[f"{name}_ns"]) for name in ("total", "mean", "p50"))
    return (row["pass"], row["step"], row["count"], *times)


def _layer_cells(row: Mapping[str, Any]) -> Sequence[Any]:
    return (
        row["original_name"] or row["name"],
        row["type"],
        units.duration(row["p50_ns"]),
        _percent(row["share"]),
    )


def _type_cells(row: Mapping[str, Any]) -> Sequence[Any]:
    return (row["type"], row["layers"], units.duration(row["p50_ns"]), _percent(row["share"]))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
