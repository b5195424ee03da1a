"""The rows of the section Runs, and what is said of the run under the cursor."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.text import Text

from mlbundle.store.run_filter import SORTS
from mlbundle.wording import run_rows
from mlbundle_tui import run_words
from mlbundle_tui.widgets.row_table import Cell, Column

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

COLUMNS = (
    Column("mark", "", 1),
    Column("started", "started", 11, from_width=60),
    Column("status", "status", 11),
    Column("model", "model", 14, flex=3),
    Column("framework", "framework", 14, flex=2, from_width=72),
    Column("scenario", "scenario", 8, from_width=86),
    Column("headline", "headline", 8, right=True),
    Column("of", "", 0, from_width=100),
    Column("p99", "p99", 8, right=True, from_width=112),
    Column("throughput", "throughput", 10, right=True, from_width=126),
    Column("accuracy", "accuracy", 8, right=True, from_width=136),
    Column("runtime", "runtime", 7, from_width=156),
)
# Of a column that has no part of what is left: a long name of a phase, or of a scenario, takes no more.
_MOST = 18
_NAMES = (
    "model", "model_version", "framework", "framework_version", "variant",
    "scenario", "headline", "runtime", "isolation",
)  # fmt: skip
_MEASURED, _MOST_MEASURED = 100, 500


def sort_of(column: str) -> str | None:
    """Return by what the index sorts for a column, None where it does not."""
    name = "run" if column == "started" else column
    return name if name in SORTS else None


def titled(column: str, *, descending: bool, rows: Iterable[Mapping[str, Any]] = ()) -> list[Column]:
    """Return the columns, as wide as these rows need them, and that by which is sorted with an arrow."""
    arrow = " ↓" if descending else " ↑"
    needs = _needs(rows)
    found = []
    for plain in COLUMNS:
        title = plain.title + (arrow if plain.key == column else "")
        # No column grows when one sorts by it.
        need = max(needs.get(plain.key, 0), len(plain.title) + (len(arrow) if sort_of(plain.key) else 0))
        if plain.flex:
            found.append(replace(plain, title=title, width=min(plain.width, need), most=need))
        else:
            found.append(replace(plain, title=title, width=max(plain.width, min(need, _MOST))))
    return found


def _needs(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how wide the cells of each column are: of runs that differ in nothing but numbers not all are measured."""
    here = list(rows)
    named = {tuple(row[key] for key in _NAMES): row for row in here}
    lines = [
        cells(row, marked=False) for row in islice(chain(here[:_MEASURED], named.values()), _MOST_MEASURED)
    ]
    texts = [[cell if isinstance(cell, str) else cell[0] for cell in line] for line in lines]
    needs = {
        column.key: max(map(cell_len, column_texts))
        for column, column_texts in zip(COLUMNS, zip(*texts, strict=True), strict=False)
    }
    if any(row["status"] in run_words.GOING for row in here):
        needs["status"] = max(needs["status"], len("▶ measure 100 %"))
    return needs


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
