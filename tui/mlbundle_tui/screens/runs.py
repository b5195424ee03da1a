"""The section Runs: what was run, and what goes on; filtered, sorted, marked, opened, removed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import work
from textual.binding import Binding
from textual.containers import Container, Vertical
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from mlbundle.errors import MlbundleError
from mlbundle.wording import run_rows
from mlbundle_tui import run_words
from mlbundle_tui.marks import MOST_COMPARED, marked_runs
from mlbundle_tui.screens.base import Section
from mlbundle_tui.screens.dialogs import confirm, show_error
from mlbundle_tui.widgets.row_table import Cell, Column, RowTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.timer import Timer

    from mlbundle.runs.catalog import RunPage
    from mlbundle_tui.context import Context

PAGE = 500
_TYPING_S = 0.15
_REFRESH_S = 1.0
_KEPT_PAGES = 8
# Column -> by what it sorts, and whether the largest or latest comes first.
_SORTS = {
    "started": ("run", True),
    "status": ("status", False),
    "model": ("model", False),
    "framework": ("framework", False),
    "scenario": ("scenario", False),
    "runtime": ("runtime", False),
    "headline": ("headline", False),
    "p99": ("p99", False),
    "throughput": ("throughput", True),
    "accuracy": ("accuracy", True),
}
_COLUMNS = (
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
_HELP = "model: framework: scenario: status: runtime: trace: since:7d, * and ? are wildcards, any other word anywhere"
_NOTHING = "no runs yet\n\npress 1 to choose a bundle and r to run it\nor `mlbundle run digits-cnn`"


class RunsSection(Section):
    """All runs, newest first; those that go on stand above them."""

    name_of_section: ClassVar[str] = "runs"
    AUTO_FOCUS = "#table"
    DEFAULT_CSS = """
    RunsSection #filter { display: none; height: 1; border: none; padding: 0 1; }
    RunsSection #filter.-shown { display: block; }
    RunsSection #info { height: 1; padding: 0 1; color: $text-muted; }
    RunsSection #list { height: 1fr; padding: 0 1; }
    RunsSection #preview { display: none; padding: 0 1; }
    RunsSection.-normal #preview { display: block; height: 6; border-top: solid $panel; }
    RunsSection.-wide #main { layout: horizontal; }
    RunsSection.-wide #list { width: 1fr; }
    RunsSection.-wide #preview { display: block; width: 40; height: 1fr; border-left: solid $panel; }
    RunsSection #nothing { display: none; }
    RunsSection.-empty #nothing { display: block; }
    RunsSection.-empty #table { height: 1; }
    """
    BINDINGS: ClassVar = [
        Binding("space", "mark", "Mark", id="runs.mark"),
        Binding("m", "compare", "Compare", id="runs.compare"),
        Binding("slash", "filter", "Filter", id="runs.filter"),
        Binding("s", "sort(1)", "Sort", id="runs.sort"),
        Binding("S", "sort(-1)", "Sort by the column before", show=False, id="runs.sort_back"),
        Binding("o", "turn", "Other order", show=False, id="runs.turn"),
        Binding("u", "unmark", "Unmark all", show=False, id="runs.unmark"),
        Binding("t", "trace", "Trace", id="runs.trace"),
        Binding("l", "open('logs')", "Logs", show=False, id="runs.logs"),
        Binding("y", "raw", "Record", show=False, id="runs.raw"),
        Binding("x", "stop", "Stop", id="runs.stop"),
        Binding("d", "remove", "Remove", id="runs.remove"),
        Binding("escape", "clear", "Back", show=False, id="runs.clear"),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._going: list[dict[str, Any]] = []
        self._pages: dict[int, list[dict[str, Any]]] = {}
        self._asked: set[int] = set()
        self._generation = 0
        self._taken_in = False
        self._total = 0
        self._text = ""
        self._column, self._descending = "started", True
        self._could_stop = False
        self._typing: Timer | None = None

    def body(self) -> ComposeResult:
        """Yield filter, table and what is known of the run under the cursor."""
        yield Input(placeholder=_HELP, id="filter", compact=True)
        yield Static("", id="info", markup=False)
        with Container(id="main"):
            with Vertical(id="list"):
                yield RowTable(_COLUMNS, opens=True, id="table")
                yield Static(_NOTHING, id="nothing", classes="empty", markup=False)
            yield Static("", id="preview")

    def on_mount(self) -> None:
        """Show what the index knows, then take in what is new."""
        self.table.focus()
        self._watching = self.set_interval(_REFRESH_S, self._watch, pause=True)
        self._load_anew()
        self._take_in()

    def on_screen_resume(self) -> None:
        """Look for runs that began or ended while another section was shown."""
        if self.is_mounted and self._pages:
            self._take_in()

    @property
    def table(self) -> RowTable:
        """The table."""
        return self.query_one("#table", RowTable)

    @property
    def run(self) -> dict[str, Any] | None:
        """The row of the run under the cursor."""
        return self._row(self.table.cursor)

    def command_line(self) -> str:
        """Return the command for what is marked, else for the run under the cursor."""
        marks = marked_runs(self.app)
        if marks:
            return shlex.join(["mlbundle", "compare", *marks])
        if self.run is None:
            return "mlbundle runs list"
        going = self.run["status"] in run_words.GOING
        return f"mlbundle runs {'attach' if going else 'show'} {self.run['run_id']}"

    def chosen(self) -> dict[str, str]:
        """Return the run under the cursor, and those that are marked."""
        marks = marked_runs(self.app)
        found = {"RUN RUN": shlex.join(marks)} if len(marks) > 1 else {}
        return found if self.run is None else {**found, "RUN": str(self.run["run_id"])}

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what is not allowed, or means nothing for the run under the cursor."""
        if action == "remove":
            return not self.context.readonly
        if action == "stop":
            return self.context.may_run and bool(self.run) and self._is_going()
        return True

    def _is_going(self) -> bool:
        return self.run is not None and self.run["status"] in run_words.GOING

    # Rows: those that go on, then the pages of the index, which are read as they come into sight.

    def _row(self, number: int) -> dict[str, Any] | None:
        if number < len(self._going):
            return self._going[number]
        page, place = divmod(number - len(self._going), PAGE)
        rows = self._pages.get(page)
        if rows is None:
            if 0 <= number < len(self._going) + self._total:
                self._ask(page)
            return None
        return rows[place] if place < len(rows) else None

    def _cells(self, number: int) -> Sequence[Cell] | None:
        row = self._row(number)
        if row is None:
            return None
        invalid = run_rows.status_word(row) not in {"completed", "quick"}
        cold = row["scenario"] == "cold-start"  # starts are too few for a p99
        headline = run_words.headline_text(row)
        return (
            ("●", "accent") if row["run_id"] in marked_runs(self.app) else " ",
            (run_words.moment_text(row["started_at"]), "dim"),
            run_words.status_cell(row),
            run_words.model_text(row),
            run_words.form_text(row),
            row["scenario"] or "",
            (headline, "dim" if invalid else "strong"),
            (row["headline"] or "", "dim"),
            "" if cold else run_words.duration_text(row["p99_ns"]),
            run_words.rate_text(row["throughput_per_s"]),
            run_words.accuracy_text(row["accuracy"]),
            (run_words.runtime_text(row), "dim"),
        )

    def _load_anew(self) -> None:
        self._load_first(None)

    def _load_first(self, keep: str | None) -> None:
        """Forget all pages and read the first; the cursor goes to a run that it shall stay on, else to the first."""
        self._asked = {0}
        self._generation += 1
        self._load(0, self._generation, keep)

    def _ask(self, page: int) -> None:
        """Read a page that came into sight, once."""
        if page not in self._asked:
            self._asked.add(page)
            self._load(page, self._generation)

    @work(thread=True, group="runs-page")
    def _load(self, page: int, generation: int, keep: str | None = None) -> None:
        """Read a page in a thread; what was asked for before something else was wanted is not shown."""
        from mlbundle.runs.catalog import search_runs

        try:
            found = search_runs(
                self.context.settings,
                self._text,
                sort=_SORTS[self._column][0],
                descending=self._descending,
                offset=page * PAGE,
                limit=PAGE,
            )
        except MlbundleError as error:
            show_error(self.app, error)
            return
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._show, page, generation, found, keep)

    def _show(self, page: int, generation: int, found: RunPage, keep: str | None) -> None:
        if generation != self._generation:
            return
        if page == 0:
            self._pages.clear()
        while len(self._pages) >= _KEPT_PAGES:
            oldest = next(iter(self._pages))
            self._asked.discard(oldest)
            del self._pages[oldest]
        self._pages[page], self._total = found.rows, found.total
        if page:
            self._show_table()
            return
        ids = [row["run_id"] for row in [*self._going, *found.rows]]
        self._show_table(ids.index(keep) if keep in ids else 0 if keep is None else None)

    def _show_table(self, cursor: int | None = None) -> None:
        count = len(self._going) + self._total
        # The index may be new: whether there are no runs is known when the folders were looked at.
        self.set_class(self._taken_in and count == 0 and not self._text, "-empty")
        self.table.set_columns(self._titled())
        self.table.set_source(count, self._cells, cursor=cursor)
        self._show_chosen()

    def _titled(self) -> list[Column]:
        arrow = " ↓" if self._descending else " ↑"
        return [
            Column(c.key, c.title + (arrow if c.key == self._column else ""), c.width, c.flex, c.right, c.from_width)
            for c in _COLUMNS
        ]  # fmt: skip

    # Runs that go on.

    @work(thread=True, exclusive=True, group="runs-going")
    def _take_in(self) -> None:
        """Take in what the folders have and the index has not, and find the runs that go on."""
        from mlbundle.runs.catalog import refresh_runs
        from mlbundle.runs.running import running_rows

        try:
            refresh_runs(self.context.settings)
            going = running_rows(self.context.settings)
        except MlbundleError as error:
            show_error(self.app, error)
            return
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._show_going, going, ended=True)

    @work(thread=True, exclusive=True, group="runs-going")
    def _watch(self) -> None:
        """Look at the runs that go on, and at nothing else: once a second, and only while they are shown."""
        from mlbundle.runs.running import running_run

        folders = [self.context.settings.runs_dir / row["run_id"] for row in self._going]
        found = [run.to_row() for run in map(running_run, folders) if run is not None]
        if get_current_worker().is_cancelled:
            return
        if len(found) < len(folders):
            self.app.call_from_thread(self._take_in)
        else:
            self.app.call_from_thread(self._show_going, found, ended=False)

    def _show_going(self, going: list[dict[str, Any]], *, ended: bool) -> None:
        keep = self.run["run_id"] if self.run is not None else None
        self._going = going
        self._taken_in = True
        if ended:
            self._load_first(keep or "")
        else:
            self.table.refresh()
            self._show_chosen()
        if going and self.is_current:
            self._watching.resume()
        else:
            self._watching.pause()

    # What is chosen.

    def on_row_table_highlighted(self) -> None:
        """Show what is known of the run."""
        self._show_chosen()

    def on_row_table_selected(self) -> None:
        """Open the run."""
        self.action_open()

    def on_row_table_header_pressed(self, event: RowTable.HeaderPressed) -> None:
        """Sort by the column, or the other way round."""
        if event.key == self._column:
            self.action_turn()
        elif event.key in _SORTS:
            self._sort_by(event.key)

    def _show_chosen(self) -> None:
        # None of them changes its size, so nothing is laid out anew for a key.
        self.query_one("#info", Static).update(self._info(), layout=False)
        self.query_one("#preview", Static).update(self._preview(), layout=False)
        self.show_command()
        # The footer is made anew with the bindings: not for every key.
        if self._could_stop != self._is_going():
            self._could_stop = self._is_going()
            self.refresh_bindings()

    def _info(self) -> Text:
        marks = marked_runs(self.app)
        parts = [f"{self._total:,} runs" if self._total != 1 else "1 run"]
        if self._going:
            parts.insert(0, f"{len(self._going)} going on")
        if self._total:
            parts.append(f"by {self._column}")
        text = Text(" · ".join(parts), no_wrap=True, overflow="ellipsis")
        if marks:
            text.append(f" · {len(marks)} marked", style="bold")
        if self._text:
            text.append(" · filter: ")
            text.append(self._text, style="bold")
            if not self._total:
                text.append("  (nothing fits: esc shows all)")
        return text

    def _preview(self) -> Text:
        row = self.run
        if row is None:
            return Text()
        word = run_words.status_cell(row)[0]
        text = Text(run_words.model_text(row), style="bold")
        text.append(f"\n{word}", style="bold")
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
        if self.has_class("-wide"):
            for name, value in shown:
                text.append(f"\n{name:<11}", style="dim not bold")
                text.append(value, style="not bold")
            return text
        text = Text(f"{run_words.model_text(row)}  {word}\n", style="bold")
        for name, value in shown:
            text.append(f"{name} ", style="dim not bold")
            text.append(f"{value}   ", style="not bold")
        return text

    # What can be done.

    def action_open(self, tab: str = "summary") -> None:
        """Open the page of the run, or watch one that goes on."""
        row = self.run
        if row is None:
            return
        if row["status"] in run_words.GOING:
            from mlbundle_tui.screens.live import LiveRun

            self.app.push_screen(LiveRun(self.context, row["run_id"]))
        else:
            from mlbundle_tui.screens.run_page import RunPage

            self.app.push_screen(RunPage(self.context, row["run_id"], tab=tab))

    def action_mark(self) -> None:
        """Mark the run, or unmark it, and go on to the next."""
        if self.run is not None and not self._is_going():
            marks = marked_runs(self.app)
            run_id = self.run["run_id"]
            if run_id in marks:
                marks.remove(run_id)
            else:
                marks.append(run_id)
        self.table.action_move(1)
        self.table.refresh()
        self._show_chosen()

    def action_unmark(self) -> None:
        """Unmark all runs."""
        marked_runs(self.app).clear()
        self.table.refresh()
        self._show_chosen()

    def action_compare(self) -> None:
        """Go to Compare with the marked runs."""
        count = len(marked_runs(self.app))
        if count < 2:
            self.notify("mark two runs or more with space first")
        elif count > MOST_COMPARED:
            self.notify(f"{count} runs are marked: {MOST_COMPARED} fit side by side")
        else:
            self.app.action_section("compare")  # type: ignore[attr-defined]

    def action_filter(self) -> None:
        """Enter a filter."""
        box = self.query_one("#filter", Input)
        box.add_class("-shown")
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search when nothing was typed for a moment."""
        self._text = event.value.strip()
        if self._typing is not None:
            self._typing.stop()
        self._typing = self.set_timer(_TYPING_S, self._load_anew)

    def on_input_submitted(self) -> None:
        """Go back to the table."""
        self.table.focus()

    def action_clear(self) -> None:
        """Leave the filter, then take it away."""
        box = self.query_one("#filter", Input)
        if box.has_focus and box.value:
            self.table.focus()
            return
        box.value = ""
        box.remove_class("-shown")
        self.table.focus()

    def action_sort(self, step: int) -> None:
        """Sort by the next column that is shown."""
        width = self.table.width_inside
        shown = [c.key for c in _COLUMNS if c.key in _SORTS and c.from_width <= width]
        place = shown.index(self._column) if self._column in shown else 0
        self._sort_by(shown[(place + step) % len(shown)])

    def action_turn(self) -> None:
        """Turn the order round."""
        self._descending = not self._descending
        self._load_anew()

    def _sort_by(self, key: str) -> None:
        self._column, self._descending = key, _SORTS[key][1]
        self._load_anew()

    def action_refresh(self) -> None:
        """Look at the folders anew."""
        self._take_in()

    def action_trace(self) -> None:
        """Open the trace of the run in a browser."""
        if self.run is not None:
            from mlbundle_tui.screens.trace_opening import open_trace_of

            open_trace_of(self, self.context, self.run["run_id"])

    def action_raw(self) -> None:
        """Show the record of the run as it is."""
        if self.run is not None and not self._is_going():
            from mlbundle_tui.screens.raw import show_record

            show_record(self.app, self.context, self.run["run_id"])

    def action_stop(self) -> None:
        """Ask, then stop the run."""
        from mlbundle_tui.stopping import stop_run

        if self.run is not None and self._is_going():
            stop_run(self, self.context, self.run["run_id"], run_words.model_text(self.run), self._take_in)

    @work
    async def action_remove(self) -> None:
        """Ask, then remove the marked runs, or the one under the cursor."""
        chosen = list(marked_runs(self.app)) or ([self.run["run_id"]] if self.run is not None else [])
        if not chosen:
            return
        what = f"run {chosen[0]}" if len(chosen) == 1 else f"{len(chosen)} runs"
        detail = "\n".join(chosen[:12]) + (f"\nand {len(chosen) - 12} more" if len(chosen) > 12 else "")
        if await confirm(self.app, f"Remove {what} for good?", detail=detail, yes="Remove"):
            self._remove(chosen)

    @work(thread=True, group="runs-remove")
    def _remove(self, chosen: list[str]) -> None:
        from mlbundle.runs.catalog import remove_run

        removed = []
        try:
            for run_id in chosen:
                remove_run(self.context.settings, run_id)
                removed.append(run_id)
        except MlbundleError as error:
            show_error(self.app, error)
        self.app.call_from_thread(self._removed, removed)

    def _removed(self, removed: list[str]) -> None:
        marks = marked_runs(self.app)
        marks[:] = [run_id for run_id in marks if run_id not in removed]
        if removed:
            self.notify(f"removed {removed[0] if len(removed) == 1 else f'{len(removed)} runs'}")
        self._load_first("")
