"""What the section Runs shows: runs that go on, then the pages of the index, filtered and sorted."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from rich.text import Text
from textual import work
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from mlbundle.errors import MlbundleError
from mlbundle.store.run_filter import most_first
from mlbundle_tui import run_words, runs_text
from mlbundle_tui.background import beside
from mlbundle_tui.marks import marked_runs
from mlbundle_tui.run_pages import PAGE, RunPages
from mlbundle_tui.screens.base import Section
from mlbundle_tui.screens.dialogs import error_text, show_error
from mlbundle_tui.widgets.bare import BareContainer, BareVertical
from mlbundle_tui.widgets.row_table import Cell, RowTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult
    from textual.timer import Timer

    from mlbundle.runs.catalog import RunPage
    from mlbundle.runs.changes import RunsSeen
    from mlbundle_tui.app import MlbundleApp
    from mlbundle_tui.context import Context

T = TypeVar("T")
_TYPING_S = 0.15
_REFRESH_S = 1.0
_RESTING_S = 0.08
_MOST_REASONS = 500
_WAITED_S = 2.0
_WAITS = "the index of runs does not answer: another program may hold it; it is waited for"
_HELP = "model: framework: scenario: status: runtime: trace: since:7d, * and ? are wildcards, any other word anywhere"
_NOTHING = "no runs yet\n\npress 1 to choose a bundle and r to run it\nor `mlbundle run digits-cnn`"


class RunsList(Section):
    """All runs, newest first; those that go on stand above them."""

    name_of_section: ClassVar[str] = "runs"
    AUTO_FOCUS = "#table"
    DEFAULT_CSS = """
    RunsList #filter { display: none; height: 1; border: none; padding: 0 1; }
    RunsList #filter.-shown { display: block; }
    RunsList #info { height: 1; padding: 0 1; color: $text-muted; }
    RunsList #list { height: 1fr; padding: 0 1; }
    RunsList #preview { display: none; padding: 0 1; }
    RunsList.-normal #preview { display: block; height: 6; border-top: solid $panel; }
    RunsList.-wide #main { layout: horizontal; }
    RunsList.-wide #list { width: 1fr; }
    RunsList.-wide #preview { display: block; width: 37; height: 1fr; border-left: solid $panel; }
    RunsList #nothing { display: none; }
    RunsList.-empty #nothing { display: block; }
    RunsList.-empty #table { height: 1; }
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.pages = RunPages()
        self._taken_in = False
        self._taking_in = self._take_in_again = False
        # What was last wrong with the index, empty while it answers.
        self._told = ""
        self._seen: RunsSeen | None = None
        self._text = ""
        self._column, self._descending = "started", True
        self._reasons: dict[str, str] = {}
        self._offered = (False, False)
        self._typing: Timer | None = None
        self._resting: Timer | None = None

    def body(self) -> ComposeResult:
        """Yield filter, table and what is known of the run under the cursor."""
        yield Input(placeholder=_HELP, id="filter", compact=True)
        yield Static("", id="info", markup=False)
        with BareContainer(id="main"):
            with BareVertical(id="list"):
                yield RowTable(runs_text.COLUMNS, opens=True, id="table")
                yield Static(_NOTHING, id="nothing", classes="empty", markup=False)
            yield Static("", id="preview")

    def on_resize(self) -> None:
        """Lay out anew what is said of the run: a line for each thing where there is room."""
        if self.pages.is_read:
            self.call_after_refresh(self._show_chosen)

    def on_mount(self) -> None:
        """Show what the index knows, then take in what is new."""
        self.table.focus()
        self._watching = self.set_interval(_REFRESH_S, self._watch_if_shown, pause=True)
        self._load_anew()
        self._take_in()

    def on_screen_resume(self) -> None:
        """Look for runs that began or ended while another section was shown, if any did."""
        if self.is_mounted and self.pages.is_read and (self._told or self._seen != self._app.runs_seen):
            self._take_in()

    @property
    def table(self) -> RowTable:
        """The table."""
        return self.query_one("#table", RowTable)

    @property
    def run(self) -> dict[str, Any] | None:
        """The row of the run under the cursor."""
        return self._row(self.table.cursor)

    @property
    def is_read(self) -> bool:
        """Whether the folders were looked at and the index was read."""
        return self._taken_in and self.pages.is_read

    @property
    def _app(self) -> MlbundleApp:
        return cast("MlbundleApp", self.app)

    def _is_going(self) -> bool:
        return self.run is not None and self.run["status"] in run_words.GOING

    # Rows

    def _row(self, number: int) -> dict[str, Any] | None:
        """Return a row; one that is not here yet is asked for."""
        row = self.pages.row(number)
        page = self.pages.wanted(number) if row is None else None
        if page is not None:
            self._load(page, self.pages.generation)
        return row

    def _cells(self, number: int) -> Sequence[Cell] | None:
        row = self._row(number)
        return None if row is None else runs_text.cells(row, marked=row["run_id"] in marked_runs(self.app))

    def _load_anew(self) -> None:
        """Read what is wanted now, from the first run on."""
        self._load(0, self.pages.begin_anew(), lambda: 0)

    def _load_again(self, going: list[dict[str, Any]]) -> None:
        """Read the same once more, below other runs that go on.

        The cursor stays with its run, if it is left there; on the top row it stays on top, where new ones appear.
        """
        at, run, count = self.table.cursor, self.run, self.table.count

        def cursor() -> int | None:
            if self.table.cursor != at or at == 0 or run is None:
                return None
            place = self.pages.place_of(run["run_id"])
            # Far down nobody knows where it is now; what came stands above it, as long as the newest come first.
            return at + self.pages.count - count if place is None and at >= PAGE else place

        self.pages.going, self._taken_in = going, True
        self._load(0, self.pages.begin_anew(), cursor)

    @work(group="runs-page")
    async def _load(
        self, page: int, generation: int, cursor: Callable[[], int | None] = lambda: None
    ) -> None:
        """Read a page; what was asked for before something else was wanted is not shown."""
        from mlbundle.runs.catalog import search_runs

        ask = partial(
            search_runs,
            self.context.settings,
            self._text,
            sort=runs_text.sort_of(self._column) or "run",
            descending=self._descending,
            offset=page * PAGE,
            limit=PAGE,
        )
        with suppress(MlbundleError):
            self._show_page(page, generation, await self._of_index(ask), cursor)

    async def _of_index(self, ask: Callable[[], T]) -> T:
        """Ask the index beside the loop: nobody who quits waits for who holds it. What is wrong with it is shown."""
        waits = self.set_timer(_WAITED_S, lambda: self._app.say_problem("index", _WAITS))
        try:
            found = await beside(self, ask)
        except MlbundleError as error:
            self._app.say_problem("index", error.message)
            # It is tried again now and then: a box that was closed does not come back by itself.
            if error.message != self._told:
                self._told = error.message
                self._tell(error)
            raise
        finally:
            waits.stop()
        self._told = ""
        self._app.say_problem("index", "")
        return found

    def _show_page(
        self, page: int, generation: int, found: RunPage, cursor: Callable[[], int | None]
    ) -> None:
        if self.pages.take(page, generation, found):
            self._show_table(cursor())

    def _show_table(self, cursor: int | None = None) -> None:
        count = self.pages.count
        # The index may be new: whether there are no runs is known when the folders were looked at.
        empty = self._taken_in and count == 0 and not self._text
        if empty:
            self.query_one("#nothing", Static).update(_NOTHING)
        self.set_class(empty, "-empty")
        self.table.set_columns(
            runs_text.titled(self._column, descending=self._descending, rows=self.pages.rows_here())
        )
        self.table.set_source(count, self._cells, cursor=cursor, still=True)
        self._show_chosen()

    # Runs that go on

    def _take_in(self) -> None:
        self._seen = self._app.runs_seen
        self._take_in_now()

    @work(group="runs-going")
    async def _take_in_now(self) -> None:
        """Take in what the folders have and the index has not, and find the runs that go on."""
        from mlbundle.runs.catalog import refresh_runs
        from mlbundle.runs.running import running_rows

        settings = self.context.settings

        def look() -> list[dict[str, Any]]:
            refresh_runs(settings)
            return running_rows(settings)

        if self._taking_in:
            self._take_in_again = True
            return
        self._taking_in = True
        try:
            with suppress(MlbundleError):
                self._show_going(await self._of_index(look), ended=True)
        finally:
            self._taking_in = False
        if self._take_in_again:
            self._take_in_again = False
            self._take_in()

    def _tell(self, error: MlbundleError) -> None:
        """Say what went wrong: in place of the runs where there are none, else above them."""
        if self.pages.count:
            show_error(self.app, error)
        else:
            self._show_problem(error)

    def _show_problem(self, error: MlbundleError) -> None:
        self.query_one("#nothing", Static).update(error_text(error))
        self.add_class("-empty")
        self.query_one("#info", Static).update("")
        self.show_command()

    def runs_changed(self) -> None:
        """Take in what came, ended or went, whoever did it."""
        super().runs_changed()
        if self.is_read or self._told:
            self._take_in()

    def _watch_if_shown(self) -> None:
        # What lies below another screen would be drawn with it.
        if self.is_current and not self._taking_in:
            self._watch()

    @work(thread=True, exclusive=True, group="runs-watch")
    def _watch(self) -> None:
        """Look at the runs that go on, and at nothing else: once a second, and only while they are shown."""
        from mlbundle.runs.running import running_run

        folders = [self.context.settings.runs_dir / row["run_id"] for row in self.pages.going]
        found = [run.to_row() for run in map(running_run, folders) if run is not None]
        if get_current_worker().is_cancelled:
            return
        if len(found) < len(folders):
            self.app.call_from_thread(self._take_in)
        else:
            self.app.call_from_thread(self._show_going, found, ended=False)

    def _show_going(self, going: list[dict[str, Any]], *, ended: bool) -> None:
        if ended:
            self._load_again(going)
        else:
            self.pages.going = going
            self.table.refresh()
            self._show_chosen()
        if going and self.is_current:
            self._watching.resume()
        else:
            self._watching.pause()

    # What is chosen

    def on_row_table_highlighted(self) -> None:
        """Show what is known of the run."""
        self._show_chosen()

    def on_row_table_header_pressed(self, event: RowTable.HeaderPressed) -> None:
        """Sort by the column, or the other way round."""
        if event.key == self._column:
            self.action_turn()
        elif runs_text.sort_of(event.key):
            self._sort_by(event.key)

    def _show_chosen(self) -> None:
        # None of them changes its size, so nothing is laid out anew for a key.
        self.query_one("#info", Static).update(self._info(), layout=False)
        row = self.run
        self._show_preview(row)
        self.show_command()
        # The footer is made anew with the bindings: not for every key.
        offered = (self._is_going(), bool(marked_runs(self.app)))
        if self._offered != offered:
            self._offered = offered
            self.refresh_bindings()

    def _show_preview(self, row: dict[str, Any] | None) -> None:
        preview = Text()
        if self._resting is not None:
            self._resting.stop()
        if row is not None:
            why = self._reasons.get(row["run_id"])
            preview = runs_text.preview(row, wide=self.has_class("-wide"), why=why or "")
            if why is None and runs_text.needs_reason(row):
                self._resting = self.set_timer(_RESTING_S, lambda: self._find_reason(row["run_id"]))
        self.query_one("#preview", Static).update(preview, layout=False)

    @work(thread=True, exclusive=True, group="runs-why")
    def _find_reason(self, run_id: str) -> None:
        """Read in the record why a run is invalid, or what it failed of; once, when the cursor has come to rest."""
        from mlbundle.runs.catalog import run_record
        from mlbundle_tui.record_words import verdict

        try:
            why = verdict(run_record(self.context.settings, run_id))[2]
        except (MlbundleError, KeyError, TypeError):  # gone meanwhile, or written by another program
            why = []
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._take_reason, run_id, "\n".join(why[:1]))

    def _take_reason(self, run_id: str, why: str) -> None:
        if len(self._reasons) >= _MOST_REASONS:
            self._reasons.clear()
        self._reasons[run_id] = why
        if why and self.run is not None and self.run["run_id"] == run_id:
            self._show_preview(self.run)

    def _info(self) -> Text:
        marks = marked_runs(self.app)
        parts = [runs_text.count_text(self.pages.total, len(self.pages.going))]
        if self.pages.total:
            parts.append(f"by {self._column}")
        text = Text(" · ".join(parts), no_wrap=True, overflow="ellipsis")
        if marks:
            text.append(f" · {len(marks)} marked", style="bold")
        if self._text:
            text.append(" · filter: ")
            text.append(self._text, style="bold")
            if not self.pages.total:
                text.append("  (nothing fits: esc shows all)")
        return text

    # What is wanted

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
        shown = [c.key for c in runs_text.COLUMNS if runs_text.sort_of(c.key) and c.from_width <= width]
        place = shown.index(self._column) if self._column in shown else 0
        self._sort_by(shown[(place + step) % len(shown)])

    def action_turn(self) -> None:
        """Turn the order round."""
        self._descending = not self._descending
        self._load_anew()

    def _sort_by(self, key: str) -> None:
        self._column, self._descending = key, most_first(runs_text.sort_of(key) or key)
        self._load_anew()

    def action_refresh(self) -> None:
        """Look at the folders anew."""
        self._told = ""
        self._take_in()
