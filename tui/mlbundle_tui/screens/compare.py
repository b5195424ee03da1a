"""The section Compare: marked runs side by side, what differed in what was run first."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual import work
from textual.binding import Binding
from textual.containers import Container, VerticalScroll
from textual.widgets import Static
from textual.worker import get_current_worker

from mlbundle.errors import MlbundleError, ReferenceNotFound
from mlbundle.wording import run_rows, units
from mlbundle_tui import record_words
from mlbundle_tui.marks import MOST_COMPARED, marked_runs
from mlbundle_tui.run_tabs.latency import latency_series, scale_of, seconds
from mlbundle_tui.screens.base import Section
from mlbundle_tui.screens.dialogs import show_error
from mlbundle_tui.widgets.plot import Plot, bar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import RenderableType
    from textual.app import ComposeResult

    from mlbundle.runs.comparison import Row
    from mlbundle.runs.latencies import LatencyView
    from mlbundle.runs.side_by_side import DifferingFact
    from mlbundle_tui.context import Context

_NOTHING = (
    "mark two runs or more to compare them\n\n"
    "press 3 for the runs, space marks one, m comes back here\n"
    "or `mlbundle compare RUN RUN`"
)
_BAR = 10
# How many lines of what differed are shown at first: so many fewer than the screen has that the numbers are on it.
_MOST_FACTS, _LEAST_FACTS, _OTHER_LINES = 24, 3, 18
_NAMES = 14


@dataclass(frozen=True)
class Compared:
    """What is shown of the marked runs, the reference first; a view of latencies is None where none were kept."""

    rows: Sequence[Row]
    facts: Sequence[DifferingFact]
    views: Sequence[LatencyView | None]


class CompareSection(Section):
    """Two to six runs: conditions, numbers and ratios, latencies over time."""

    name_of_section: ClassVar[str] = "compare"
    DEFAULT_CSS = """
    CompareSection #compared { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    CompareSection #compared > Static { width: 1fr; height: auto; margin-bottom: 1; }
    CompareSection #charts { height: auto; }
    CompareSection #charts Plot { height: 9; width: 1fr; margin-bottom: 1; margin-right: 2; }
    CompareSection.-normal #charts { layout: grid; grid-size: 2; grid-rows: 10; }
    CompareSection.-wide #charts { layout: grid; grid-size: 3; grid-rows: 10; }
    CompareSection #nothing { display: none; }
    CompareSection.-empty #nothing { display: block; }
    CompareSection.-empty #compared { display: none; }
    """
    BINDINGS: ClassVar = [
        Binding("a", "all", "All that differs", id="compare.all"),
        Binding("b", "next_reference", "Next reference", id="compare.reference"),
        Binding("u", "unmark", "Unmark all", id="compare.unmark"),
        Binding("escape", "back", "Runs", show=False, id="compare.back"),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._shown: list[str] = []
        self._found: Compared | None = None
        self._everything = False

    def body(self) -> ComposeResult:
        """Yield conditions, numbers and charts, one below another."""
        with VerticalScroll(id="compared"):
            yield Static("", id="verdict")
            yield Static("", id="facts")
            yield Static("", id="numbers")
            yield Container(id="charts")
        yield Static(_NOTHING, id="nothing", classes="empty", markup=False)

    def on_mount(self) -> None:
        """Show the runs that are marked."""
        self._load_marked()

    def on_screen_resume(self) -> None:
        """Show the runs that are marked now."""
        if self.is_mounted and self._shown != marked_runs(self.app)[:MOST_COMPARED]:
            self._load_marked()

    def command_line(self) -> str:
        """Return the command that compares the same runs."""
        return shlex.join(["mlbundle", "compare", *self._shown]) if len(self._shown) > 1 else ""

    def action_refresh(self) -> None:
        """Read the runs anew."""
        self._load_marked()

    def action_all(self) -> None:
        """Show all that differs, or the first of it."""
        self._everything = not self._everything
        self._show_texts()

    def action_next_reference(self) -> None:
        """Hold all against the next of the runs."""
        marks = marked_runs(self.app)
        if len(marks) > 1:
            marks.append(marks.pop(0))
            self._load_marked()

    def action_unmark(self) -> None:
        """Unmark all runs."""
        marked_runs(self.app).clear()
        self._load_marked()

    def action_back(self) -> None:
        """Go to the runs."""
        self.app.action_section("runs")  # type: ignore[attr-defined]

    def on_resize(self) -> None:
        """Lay the texts out anew: narrow terminals have one run below another."""
        if self._found is not None:
            self.call_after_refresh(self._show_texts)

    def _load_marked(self) -> None:
        self._shown = marked_runs(self.app)[:MOST_COMPARED]
        self.set_class(len(self._shown) < 2, "-empty")
        self.show_command()
        if len(self._shown) > 1:
            self._load(list(self._shown))
        else:
            self._found = None

    @work(thread=True, exclusive=True, group="compare")
    def _load(self, runs: list[str]) -> None:
        """Read records, outputs and latencies in a thread."""
        from mlbundle.analysis.agreement import Tolerance
        from mlbundle.runs.comparison import compare_runs
        from mlbundle.runs.side_by_side import differing_facts

        worker = get_current_worker()
        try:
            rows = compare_runs(self.context.settings, runs, Tolerance(1e-5, 1e-5))
        except ReferenceNotFound as error:
            # A run was removed meanwhile: the others can still be compared.
            show_error(self.app, error)
            self.app.call_from_thread(self.action_unmark)
            return
        except MlbundleError as error:
            show_error(self.app, error)
            return
        facts = differing_facts([row.record for row in rows])
        views = [None if worker.is_cancelled else self._view(row.record) for row in rows]
        if not worker.is_cancelled:
            self.app.call_from_thread(self.call_later, self._show, Compared(rows, facts, views))

    def _view(self, record: Mapping[str, Any]) -> LatencyView | None:
        from mlbundle.runs.latencies import latency_view

        try:
            return latency_view(self.context.settings.runs_dir / record["run_id"], record, points=120)
        except MlbundleError:  # kept none
            return None

    async def _show(self, found: Compared) -> None:
        self._found = found
        self._show_texts()
        charts = self.query_one("#charts", Container)
        await charts.remove_children()
        scales = [scale_of(view) for view in found.views if view is not None]
        for name, view in zip(self._names(), found.views, strict=True):
            if view is not None:
                plot = Plot(name, y_text=units.duration, x_text=seconds)
                plot.set_series(latency_series(view), most=max(scales))
                await charts.mount(plot)

    def _show_texts(self) -> None:
        found = self._found
        if found is None:
            return
        self.query_one("#verdict", Static).update(self._verdict(found))
        self.query_one("#facts", Static).update(self._facts(found))
        numbers = [("", name, texts) for name, texts in _numbers(found.rows)]
        lay_out = _below_each_other if self.has_class("-narrow") else _side_by_side
        table = lay_out(self._names(), numbers, whole=True)
        self.query_one("#numbers", Static).update(
            Group(Text("numbers", style="bold"), table, *_notes(found.rows))
        )

    def _facts(self, found: Compared) -> RenderableType:
        """Return what differed: all of it, or so much of it that the numbers are on the screen as well."""
        from mlbundle.runs.side_by_side import most_telling

        if not found.facts:
            return Text("nothing differed in what was run", style="bold")
        room = self.size.height - _OTHER_LINES - len(found.rows) - len(_warned(found.rows))
        count = max(_LEAST_FACTS, min(_MOST_FACTS, room))
        shown = found.facts if self._everything else most_telling(found.facts, count)
        facts = [(fact.section, fact.name, [_side(fact, value) for value in fact.values]) for fact in shown]
        lay_out = _below_each_other if self.has_class("-narrow") else _side_by_side
        title = Text("what differed in what was run", style="bold")
        more = len(found.facts) - len(shown)
        if more or self._everything:
            title.append(f"  and {more} more: a shows all" if more else "  a shows less", style="dim")
        return Group(title, lay_out(self._names(), facts, whole=self._everything))

    def _names(self) -> list[str]:
        """Return what each run is called here: a letter and what tells it from the others."""
        rows = self._found.rows if self._found is not None else []
        names = []
        for letter, row in zip("ABCDEF", rows, strict=False):
            record = row.record
            names.append(f"{letter} {record['bundle']['name']} {record['framework']['name']}")
        return names

    def _verdict(self, found: Compared) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        for line in _warned(found.rows):
            text.append("! ", style="bold yellow")
            text.append(f"{line}\n")
        for number, (name, row) in enumerate(zip(self._names(), found.rows, strict=True)):
            word, style, _ = record_words.verdict(row.record)
            text.append("\n" if number else "")
            text.append(f"{name}  ", style="bold")
            text.append(f"{row.record['run_id']}  ", style="dim")
            text.append(word, style={"good": "green", "bad": "red"}.get(style, "yellow"))
            text.append("  reference" if row.is_reference else "", style="dim")
        return text


def _warned(rows: Sequence[Row]) -> list[str]:
    """Return which numbers don't compare, and why; and which are of another model than the reference."""
    told = []
    for letter, row in zip("ABCDEF", rows, strict=False):
        if row.not_comparable:
            told.append(f"no ratio for {letter}: {row.not_comparable}")
        elif row.other_model:
            told.append(f"{letter} is of another model: {row.other_model}")
    return told


def _side(fact: DifferingFact, value: Any) -> str:
    from mlbundle.runs.told import told

    if isinstance(value, list):
        # Of long lists only what the others lack is worth reading.
        others = [other for other in fact.values if isinstance(other, list) and other != value]
        own = [item for item in value if any(item not in other for other in others)]
        value = own or value
    text = told(fact.place.rpartition("/")[2], value) or "-"
    return text[:19] + "…" if text.startswith("sha256:") else text


def _numbers(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    documents = [row.to_document() for row in rows]

    def of(name: str, how: Callable[[Any], str]) -> list[str]:
        return ["" if document[name] is None else how(document[name]) for document in documents]

    headline = [
        "" if d["headline_value"] is None else run_rows.measure_text(d["headline_value"], d["headline_unit"])
        for d in documents
    ]
    named = next((str(d["headline"]) for d in documents if d["headline"]), "headline")
    most = max((d["ratio"] or 0 for d in documents), default=0)
    ratios = [
        f"{units.ratio(d['ratio'])} {bar(d['ratio'] / most, _BAR)}" if d["ratio"] else "none" if most else ""
        for d in documents
    ]
    lines = [
        (named, headline),
        ("ratio", ratios),
        *_percentiles(rows),
        ("throughput", of("throughput_per_s", units.rate)),
        ("accuracy", of("accuracy", "{:.4f}".format)),
        ("outputs", [_outputs(document) for document in documents]),
    ]
    return [(name, texts) for name, texts in lines if any(texts)]


def _percentiles(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """Return percentiles, `-` of runs whose queries are too few to tell."""
    names = ("p50", "p99")
    found = [dict(record_words.percentiles_of(row.record.get("result") or {}, names)) for row in rows]
    return [
        (name, [one.get(name, "-") for one in found]) for name in names if any(name in one for one in found)
    ]


def _outputs(document: Mapping[str, Any]) -> str:
    if document["reference"]:
        return "reference"
    used, differing = document["tolerance_used"], document["differing_predictions"]
    if used is None:
        return ""
    within = "within tolerance" if float(used) <= 1 else "BEYOND tolerance"
    return f"{within}, {differing} predictions differ" if differing else within


def _notes(rows: Sequence[Row]) -> list[Text]:
    if any(row.ratio is not None and row.to_document()["headline_unit"] == "per_s" for row in rows):
        return [Text("ratios are of rates: more is better", style="dim")]
    return []


def _side_by_side(
    names: Sequence[str], lines: Sequence[tuple[str, str, Sequence[str]]], *, whole: bool
) -> Table:
    """Return a column for each run; what is as in the reference is dim. `whole`: long texts go on below."""
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True, max_width=_NAMES)
    table.add_column(no_wrap=True, max_width=22)
    for _ in names:
        table.add_column(ratio=1, overflow="fold" if whole else "ellipsis", no_wrap=not whole)
    table.add_row("", "", *(Text(name, style="bold dim") for name in names))
    last = ""
    for section, name, texts in lines:
        shown = [Text(text, style="dim" if i and text == texts[0] else "") for i, text in enumerate(texts)]
        table.add_row(Text("" if section == last else section, style="bold"), Text(name, style="dim"), *shown)
        last = section
    return table


def _below_each_other(
    names: Sequence[str], lines: Sequence[tuple[str, str, Sequence[str]]], *, whole: bool
) -> Table:
    """Return the runs one below another, each with its lines."""
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(no_wrap=True, max_width=22)
    table.add_column(ratio=1, overflow="fold" if whole else "ellipsis", no_wrap=not whole)
    for place, name in enumerate(names):
        table.add_row(Text(name[:1], style="bold"), Text(name[2:], style="bold"))
        for _, what, texts in lines:
            if texts[place] not in {"", "-"}:
                table.add_row(Text(what, style="dim"), Text(texts[place]))
    return table
