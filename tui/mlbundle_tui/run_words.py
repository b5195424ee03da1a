"""What the sections say of a run in a few words: from its row in the index, or its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.wording import run_rows, units

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlbundle_tui.widgets.row_table import Cell

GOING = ("running", "waiting")
# Status -> what it is shown with: never by colour alone.
SIGNS = {
    "completed": ("✓", "good"),
    "invalid": ("✗", "bad"),
    "quick": ("~", "warn"),
    "failed": ("✗", "bad"),
    "cancelled": ("□", "dim"),
    "partial": ("□", "warn"),
    "running": ("▶", "accent"),
    "waiting": ("▷", "accent"),
}


def status_cell(row: Mapping[str, Any]) -> Cell:
    """Return sign, word and colour of a run's status; of one that goes on its phase and how much of it is done."""
    word = run_rows.status_word(row)
    sign, style = SIGNS.get(word, ("?", "dim"))
    if word == "running" and row.get("phase"):
        share = row.get("progress")
        word = str(row["phase"]) if share is None else f"{row['phase']} {100 * share:.0f} %"
    return f"{sign} {word}", style


def model_text(row: Mapping[str, Any]) -> str:
    """Return name and version of the model."""
    return f"{row['model']}:{row['model_version']}" if row["model"] else ""


def form_text(row: Mapping[str, Any]) -> str:
    """Return `torch 2.13.0`, or `torch-export (torch) 2.13.0` of a form with a name of its own."""
    return run_rows.form_text(row["framework"], row["framework_version"], row["variant"])


def runtime_text(row: Mapping[str, Any]) -> str:
    """Return `docker`, or `process (unpinned)` where nobody knows what exactly the run ran in."""
    return run_rows.runtime_text(row["runtime"] or "", row["isolation"])


def headline_text(row: Mapping[str, Any]) -> str:
    """Return the headline with its unit; empty where there is none."""
    value = row["headline_value"]
    return "" if value is None else run_rows.measure_text(value, row["headline_unit"])


def duration_text(value_ns: float | None) -> str:
    """Return a duration, empty for none."""
    return "" if value_ns is None else units.duration(value_ns)


def rate_text(value_per_s: float | None) -> str:
    """Return a rate, empty for none."""
    return "" if value_per_s is None else units.rate(value_per_s)


def accuracy_text(value: float | None) -> str:
    """Return an accuracy, empty for none."""
    return "" if value is None else f"{value:.4f}"


def moment_text(moment: str | None) -> str:
    """Return a UTC time of a record without its year, seconds and zone: `11-21 18:57`."""
    return "" if not moment else moment[5:16].replace("T", " ")
