"""The plan and the results of a sweep, as tables and as documents."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from mlbundle.cli import output
from mlbundle.runs.words import counted as counted_as
from mlbundle.wire.scenarios import BY_NAME, COUNT, NUMBER
from mlbundle.wording import units
from mlbundle.wording.run_rows import headline_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlbundle.runs.sweep_estimate import Estimate
    from mlbundle.runs.sweep_plan import SweepPlan
    from mlbundle.runs.sweep_state import CellState, SweepFolder

_SHOWN_CELLS = 200
_INTEGERS = frozenset({"threads", "seed"})
_KEPT = (
    "good", "reason", "run_id", "framework", "framework_version", "runtime", "trimmed_mean_ns", "p50_ns", "p90_ns",
    "p99_ns", "throughput_per_s", "queries", "accuracy", "accuracy_passed", "wall_s", "exit_status", "error",
    "headline", "headline_value", "headline_unit", "quick",
)  # fmt: skip
_SPARE = ("p99", "throughput", "run", "accuracy")
_SPARE_OF_GROUPS = ("rounds", "good")
_STOPPED = "stopped, to do again"


def show_plan(plan: SweepPlan, output_format: str, *, dry_run: bool) -> None:
    """Show the cells: as the result of a dry run with their commands, else as narration before what follows."""
    from mlbundle.cli.tables import lay_out
    from mlbundle.runs.sweep_plan import command_text

    rounds = ["round"] if plan.rounds > 1 else []
    columns = ["cell", *rounds, *plan.axes]
    rows = [
        [cell.number, *([cell.round] if rounds else []), *(cell.values.get(name, "") for name in plan.axes)]
        for cell in plan.cells
    ]
    text = f"{counted(plan)} of {plan.name}:{plan.version}, {about(plan.estimate)}"
    if dry_run:
        rows = [[*row, command_text(cell)] for row, cell in zip(rows, plan.cells, strict=True)]
        output.table([*columns, "command"], rows, output_format=output_format)
        output.notes([text], output_format=output_format)
        return
    output.narrate(text)
    texts = [[str(cell) for cell in row] for row in rows[:_SHOWN_CELLS]]
    for line in lay_out(columns, texts, shutil.get_terminal_size().columns - 2).lines:
        output.narrate(f"  {line}")
    if len(plan.cells) > _SHOWN_CELLS:
        output.narrate(f"  … and {len(plan.cells) - _SHOWN_CELLS} more; --dry-run shows all")


def counted(plan: SweepPlan) -> str:
    """Return how many cells a plan has: `1 cell`."""
    return counted_as(len(plan.cells), "cell", "cells")


def about(estimate: Estimate) -> str:
    """Return how long cells will take, in words; `at least` where not all of them can be told from their own past."""
    text = _rough(estimate.seconds)
    if estimate.unknown:
        return f"at least {text}; {counted_as(estimate.unknown, 'cell', 'cells')} can't be told"
    return f"at least {text}" if estimate.guessed else f"about {text}"


def _rough(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def outcome_text(line: dict[str, Any]) -> str:
    """Return how an attempt ended, from its line of the log."""
    if line["outcome"] == "completed":
        found = [headline_text(_with_headline(line))]
        if line.get("throughput_per_s") is not None and line.get("headline_unit") != "per_s":
            found.append(units.rate(line["throughput_per_s"]))
        words = [*found, *([line["reason"]] if line.get("reason") else [])]
        return ("done: " if line.get("good") else "NOT GOOD: ") + "  ".join(word for word in words if word)
    error = line.get("error") or {}
    said = f": [{error.get('reference')}] {error.get('message')}" if error else ""
    return f"{line['outcome']}{said}"


def cell_document(
    folder: SweepFolder, plan: SweepPlan, states: dict[int, CellState], number: int
) -> dict[str, Any]:
    """Return what is known of a cell as JSON-ready values."""
    from mlbundle.runs.sweep_plan import command_text
    from mlbundle.runs.sweep_state import CellState

    cell = plan.cells[number - 1]
    state = states.get(number, CellState())
    kept = _with_headline({name: (state.last or {}).get(name) for name in _KEPT})
    found = {
        "cell": number,
        "round": cell.round,
        "scenario": cell.scenario,
        "values": {name: _typed(cell.scenario, name, value) for name, value in cell.values.items()},
        "attempts": state.attempts,
        "outcome": state.outcome,
        **kept,
        "command": command_text(cell),
    }
    # Nobody works on a cell that had begun when its driver went away.
    under_way = state.under_way and folder.is_driven()
    return {**found, "state": "under way" if under_way else _state_text(found)}


def _with_headline(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line with a headline: those of older logs have a trimmed mean alone."""
    if line.get("headline_value") is not None or line.get("trimmed_mean_ns") is None:
        return {"headline": None, "headline_value": None, "headline_unit": None, **line}
    mean_ns = line["trimmed_mean_ns"]
    return {**line, "headline": "trimmed mean", "headline_value": mean_ns, "headline_unit": "ns"}


def _typed(scenario: str, name: str, value: str) -> Any:
    """Return the value of an axis as a number where it is one; a duration stays as it is written."""
    spec = BY_NAME.get(scenario)
    option = None if spec is None else spec.option(name)
    if name not in _INTEGERS and (option is None or option.kind not in {COUNT, NUMBER}):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if number.is_integer() else number


def show_results(folder: SweepFolder, plan: SweepPlan, output_format: str) -> None:
    """Show each cell with what came of it; of several rounds, also what each kind of cell comes to."""
    from mlbundle.runs.sweep_drive import status_of
    from mlbundle.runs.sweep_rounds import groups_of

    states = folder.states()
    documents = [cell_document(folder, plan, states, cell.number) for cell in plan.cells]
    counts = status_of(plan, states)
    groups = groups_of(documents) if plan.rounds > 1 else []
    if output_format == "json":
        output.document({
            "schema": "mlbundle/sweep-result/v1",
            "sweep_id": folder.sweep_id,
            "bundle": plan.to_document()["bundle"],
            "counts": counts,
            "cells": documents,
            "groups": groups,
        })  # fmt: skip
        return
    axes = plan.axes
    if output_format in {"csv", "jsonl"}:
        flat = [_flat(document, axes) for document in documents] if output_format == "csv" else documents
        output.records(flat, (), tuple, output_format=output_format)
        return
    rounds = ["round"] if plan.rounds > 1 else []
    columns = ["cell", *rounds, *axes, "headline", "p99", "throughput", "accuracy", "state", "run"]
    rows = [_row(document, axes, with_round=bool(rounds)) for document in documents]
    output.table(columns, rows, output_format=output_format, spare=_SPARE)
    if groups:
        output.data("")
        columns = [*axes, "rounds", "good", "mean", "lowest", "highest"]
        output.table(
            columns,
            [_group_row(group, axes) for group in groups],
            output_format=output_format,
            spare=_SPARE_OF_GROUPS,
        )
    said = [f"{counts[name]} {name.replace('_', ' ')}" for name in counts if counts[name]]
    output.notes([f"sweep {folder.sweep_id}: {', '.join(said)}"], output_format=output_format)


def _flat(document: dict[str, Any], axes: list[str]) -> dict[str, Any]:
    values, error = document["values"], document["error"] or {}
    found = {"cell": document["cell"], "round": document["round"]}
    found |= {f"axis {name}": values.get(name) for name in axes if name != "scenario"}
    found |= {name: value for name, value in document.items() if name not in {*found, "values", "error"}}
    return {**found, "error": error.get("message")}


def _row(document: dict[str, Any], axes: list[str], *, with_round: bool) -> list[Any]:
    def shown(name: str, how: Any) -> str:
        return "" if document[name] is None else how(document[name])

    return [
        document["cell"],
        *([document["round"]] if with_round else []),
        *(document["values"].get(name, "") for name in axes),
        headline_text(document),
        "" if document["scenario"] == "cold-start" else shown("p99_ns", units.duration),
        shown("throughput_per_s", units.rate),
        shown("accuracy", "{:.4f}".format),
        document["state"],
        document["run_id"],
    ]


def _group_row(group: Mapping[str, Any], axes: list[str]) -> list[Any]:
    def shown(name: str) -> str:
        return headline_text({**group, "headline_value": group[name]}).removesuffix(f" {group['headline']}")

    values = [group["values"].get(name, "") for name in axes]
    return [*values, group["rounds"], group["good"], *map(shown, ("mean", "lowest", "highest"))]


def _state_text(document: dict[str, Any]) -> str:
    if document["outcome"] == "completed":
        if document["accuracy_passed"] is False:
            return "NOT AS CLAIMED"
        return "INVALID" if not document["good"] else "quick" if document["quick"] else "valid"
    if document["outcome"] == "interrupted":
        return _STOPPED
    if document["outcome"] is None:
        return _STOPPED if document["attempts"] else "to do"
    error = document["error"] or {}
    return f"{document['outcome']}: {error['reference']}" if error else str(document["outcome"])
