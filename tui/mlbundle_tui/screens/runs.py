"""The section Runs: what can be done with runs: opened, marked, compared, stopped, removed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, ClassVar, cast

from textual import work
from textual.binding import Binding

from mlbundle.errors import MlbundleError
from mlbundle_tui import run_words, runs_text
from mlbundle_tui.background import in_background
from mlbundle_tui.marks import MOST_COMPARED, marked_runs
from mlbundle_tui.screens.dialogs import confirm, show_error
from mlbundle_tui.screens.runs_list import RunsList

if TYPE_CHECKING:
    from mlbundle_tui.app import MlbundleApp

_MOST_NAMED = 8


class RunsSection(RunsList):
    """What can be done with runs."""

    name_of_section: ClassVar[str] = "runs"
    BINDINGS: ClassVar = [
        Binding("space", "mark", "Mark", id="runs.mark"),
        Binding("m", "compare", "Compare", id="runs.compare"),
        Binding("slash", "filter", "Filter", id="runs.filter"),
        Binding("s", "sort(1)", "Sort", id="runs.sort"),
        Binding("S", "sort(-1)", "Sort by the column before", show=False, id="runs.sort_back"),
        Binding("o", "turn", "Other order", id="runs.turn"),
        Binding("u", "unmark", "Unmark all", id="runs.unmark"),
        Binding("t", "trace", "Trace", id="runs.trace"),
        Binding("l", "open('logs')", "Logs", show=False, id="runs.logs"),
        Binding("y", "raw", "Record", show=False, id="runs.raw"),
        Binding("x", "stop", "Stop", id="runs.stop"),
        Binding("d", "remove", "Remove", id="runs.remove"),
        Binding("escape", "clear", "Back", show=False, id="runs.clear"),
    ]

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
        if action == "unmark":
            return bool(marked_runs(self.app))
        if action == "stop":
            return self.context.may_run and bool(self.run) and self._is_going()
        return True

    def on_row_table_selected(self) -> None:
        """Open the run."""
        self.action_open()

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
            cast("MlbundleApp", self.app).action_section("compare")

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
        from mlbundle.runs.catalog import runs_by_id

        chosen = list(marked_runs(self.app)) or ([self.run["run_id"]] if self.run is not None else [])
        if not chosen:
            return
        rows = await in_background(runs_by_id, self.context.settings, chosen[:_MOST_NAMED])
        marked = "the marked run" if marked_runs(self.app) else "this run"
        what = marked if len(chosen) == 1 else f"the {len(chosen)} marked runs"
        lines = [f"{runs_text.run_line(row)}\n  {row['run_id']}" for row in rows]
        more = len(chosen) - len(rows)
        detail = "\n".join([*lines, *([f"and {more} more"] if more else [])])
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
        self._load_again(self.pages.going)
