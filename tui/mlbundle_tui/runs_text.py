"""The rows of the section Runs, and what is said of the run under the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from mlbundle.store.run_filter import SORTS
from mlbundle.wording import run_rows
from mlbundle_tui import run_words
from mlbundle_tui.widgets.row_table import Cell, Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLUMNS = (
    Column("mark", "", 1),
    Column("started", "started", 11, from_width=60),
    Column("status", "status", 14),
    Column("model", "model", 14, flex=3),
    Column("framework", "framework", 14, flex=2, from_width=72),
    Column("scenario", "scenario", 13, from_width=86),
    Column("headline", "headline", 12, right=True),
    Column("of", "", 13, from_width=100),
    Column("p99", "p99", 8, right=True, from_width=112),
    Column("throughput", "throughput", 11, right=True, from_width=126),
    Column("accuracy", "accuracy", 8, right=True, from_width=136),
    Column("runtime", "runtime", 18, from_width=156),
)


def sort_of(column: str) -> str | None:
    """Return by what the index sorts for a column, None where it does not."""
    name = "run" if column == "started" else column
    return name if name in SORTS else None


def titled(column: str, *, descending: bool) -> list[Column]:
    """Return the columns, that by which is sorted with an arrow."""
    arrow = " ↓" if descending else " ↑"
    return [
        Column(c.key, c.title + (arrow if c.key == column else ""), c.width, c.flex, c.right, c.from_width)
        for c in COLUMNS
    ]  # fmt: skip


def needs_reason(row: Mapping[str, Any]) -> bool:
    """Return whether one wants to know why a run is what it is called."""
    return run_rows.status_word(row) not in {"completed", "quick", *run_words.GOING}


def cells(row: Mapping[str, Any], *, marked: bool) -> Sequence[Cell]:
    """Return the cells of a run's row; numbers that do not count stand back."""
    counts = not needs_reason(row)
    plain = "" if counts else "dim"
    cold = row["scenario"] == "cold-start"  # starts are too few for a p99
    headline = run_words.headline_text(row)
    return (
        ("●", "accent") if marked else " ",
        (run_words.moment_text(row["started_at"]), "dim"),
        run_words.status_cell(row),
        run_words.model_text(row),
        run_words.form_text(row),
        row["scenario"] or "",
        (headline, "strong" if counts else "dim"),
        (row["headline"] or "", "dim"),
        ("" if cold else run_words.duration_text(row["p99_ns"]), plain),
        (run_words.rate_text(row["throughput_per_s"]), plain),
        (run_words.accuracy_text(row["accuracy"]), plain),
        (run_words.runtime_text(row), "dim"),
    )


def preview(row: Mapping[str, Any], *, wide: bool, why: str = "") -> Text:
    """Return what is known of a run from its row, and why it is invalid or failed.

    A line each where there is room, else one after the other.
    """
    word = run_words.status_cell(row)[0]
    text = Text(run_words.model_text(row), style="bold")
    text.append(f"\n{word}", style="bold")
    text.append(f"\n{why}" if why else "", style="not bold")
    lines = [
        ("framework", run_words.form_text(row)),
        ("scenario", str(row["scenario"] or "")),
        ("headline", f"{run_words.headline_text(row)} {row['headline'] or ''}".strip()),
        ("p50", run_words.duration_text(row["p50_ns"])),
        ("p99", run_words.duration_text(row["p99_ns"])),
        ("throughput", run_words.rate_text(row["throughput_per_s"])),
        ("accuracy", run_words.accuracy_text(row["accuracy"])),
        ("runtime", run_words.runtime_text(row)),
        ("trace", str(row["trace_level"] or "")),
        ("started", str(row["started_at"] or "")[:19].replace("T", " ")),
        ("run", row["run_id"]),
    ]
    shown = [(name, value) for name, value in lines if value]
    if wide:
        for name, value in shown:
            text.append(f"\n{name:<11}", style="dim not bold")
            text.append(value, style="not bold")
        return text
    text = Text(f"{run_words.model_text(row)}  {word}\n", style="bold")
    text.append(f"{why}\n" if why else "", style="not bold")
    for name, value in shown:
        text.append(f"{name} ", style="dim not bold")
        text.append(f"{value}   ", style="not bold")
    return text


def count_text(total: int, going: int) -> str:
    """Return how many runs there are, those that go on among them."""
    count = total + going
    text = "1 run" if count == 1 else f"{count:,} runs"
    return f"{text}, {going} going on" if going else text


def run_line(row: Mapping[str, Any]) -> str:
    """Return a run as people know it: `digits-cnn:1.0.0, 11-21 19:34, 13.8 us trimmed mean, invalid`."""
    headline = run_rows.headline_text(row)
    parts = [run_words.model_text(row), run_words.moment_text(row["started_at"]), headline]
    return ", ".join(filter(None, [*parts, run_rows.status_word(row)]))
