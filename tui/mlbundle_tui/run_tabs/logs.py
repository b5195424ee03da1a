"""Logs: what the worker said, of any size, searched with `/`."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import work
from textual.binding import Binding
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from mlbundle.errors import MlbundleError, ReferenceNotFound
from mlbundle.runs.folder import WORKER_LOG
from mlbundle.runs.log_file import LogFile
from mlbundle.runs.words import counted
from mlbundle.wording import units
from mlbundle_tui.run_tabs.base import READING, RunTab
from mlbundle_tui.screens.dialogs import show_error
from mlbundle_tui.widgets.log_view import LogView

if TYPE_CHECKING:
    from textual.app import ComposeResult

_MOST_COUNTED = 10_000


class LogsTab(RunTab):
    """The worker's log."""

    key, title = "logs", "Logs"
    DEFAULT_CSS = """
    LogsTab Input { display: none; height: 1; border: none; }
    LogsTab Input.-shown { display: block; }
    """
    BINDINGS: ClassVar = [
        Binding("slash", "search", "Search", id="logs.search"),
        Binding("n", "next", "Next", id="logs.next"),
        Binding("N", "previous", "Previous", show=False, id="logs.previous"),
        Binding("escape", "clear", "Clear search", id="logs.clear"),
    ]

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._log = LogFile(run.folder / WORKER_LOG)
        self._wanted = ""
        # Where all lines begin that hold it; None until that is known.
        self._places: list[int] | None = None
        self._counting = False
        # What was looked for last, where nothing holds it.
        self._missing = ""

    def inside(self) -> ComposeResult:
        """Yield where one is, the search, and the log."""
        yield Static(READING, id="head", classes="-line", markup=False)
        yield Input(placeholder="search, enter finds the next one", compact=True)
        yield LogView(self._log)

    def read(self) -> int:
        """Look how big the log is."""
        size = self._log.size_bytes()
        if not size:
            raise ReferenceNotFound(
                f"the worker of run {self.run.run_id} said nothing", hint="its log is empty"
            )
        return size

    def show(self, found: int) -> None:
        """Show the end."""
        self.query_one(LogView).action_last()

    def focus_inside(self) -> None:
        """Give the keys to the log."""
        self.query_one(LogView).focus()

    def command_line(self) -> str:
        """Return the command that shows the same."""
        return f"less {self._log.path}"

    def on_log_view_moved(self) -> None:
        """Say where one is."""
        view = self.query_one(LogView)
        size = self._log.size_bytes()
        share = 100 * view.lines[-1].end / size if view.lines and size else 100
        text = f"{units.size(size)}  {share:.0f} %{self._looked(view.found)}  {self._log.path}"
        self.query_one("#head", Static).update(Text(text, no_wrap=True, overflow="ellipsis"), layout=False)

    def _looked(self, place: int | None) -> str:
        """Return what is looked for, and which of how many lines with it was found last."""
        if not self._wanted:
            return f'  nothing holds "{self._missing}"' if self._missing else ""
        if self._places is None or place is None:
            return f'  "{self._wanted}" …'
        count, number = len(self._places), bisect_right(self._places, place)
        most = count == _MOST_COUNTED
        if number and self._places[number - 1] == place:
            which = f"{number:,} of {count:,}{' or more' if most else ''}"
        else:
            # What came since they were counted, or another part of a line of many MiB.
            which = "beyond them" if most else f"in {counted(count, 'line', 'lines')}"
        return f'  "{self._wanted}" {which}'

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Escape ends the search first, and the page when there is none; where nothing is, nothing is searched."""
        if self.has_class("-nothing"):
            return False
        if action == "clear":
            return bool(self._wanted) or self.query_one(Input).has_class("-shown")
        return True if action not in {"next", "previous"} else bool(self._wanted)

    def action_clear(self) -> None:
        """Look for nothing any more."""
        self._wanted, self._missing, self._places = "", "", None
        for group in ("search", "count"):
            self.workers.cancel_group(self, group)
        self.query_one(LogView).found = None
        self.query_one(Input).remove_class("-shown")
        self.focus_inside()
        self.query_one(LogView).refresh()
        self.on_log_view_moved()
        self.refresh_bindings()

    def action_search(self) -> None:
        """Enter what to look for."""
        box = self.query_one(Input)
        box.add_class("-shown")
        box.focus()
        self.refresh_bindings()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Look for it from what is shown on."""
        event.stop()
        if not event.value:
            self.action_clear()
            return
        self._wanted, self._missing, self._places = event.value, "", None
        event.input.remove_class("-shown")
        self.focus_inside()
        self.refresh_bindings()
        self._counting = False
        self.action_next()

    def action_next(self) -> None:
        """Go to the next line that holds it, from the begin again after the last."""
        view = self.query_one(LogView)
        if self._wanted and view.lines:
            found = view.found is not None and any(line.begin == view.found for line in view.lines)
            after = next((line.end for line in view.lines if line.begin == view.found), 0) if found else 0
            self._find(self._wanted, after or view.lines[0].begin, backwards=False)

    def action_previous(self) -> None:
        """Go to the line before that holds it."""
        view = self.query_one(LogView)
        if self._wanted and view.lines:
            place = view.found if view.found is not None else view.lines[-1].end
            self._find(self._wanted, place, backwards=True)

    @work(thread=True, exclusive=True, group="search")
    def _find(self, wanted: str, place: int, *, backwards: bool) -> None:
        worker = get_current_worker()
        try:
            for begin, until in ((place, None), (self._log.size_bytes() if backwards else 0, place)):
                found = self._log.find(
                    wanted, begin, backwards=backwards, until=until, stop=lambda: worker.is_cancelled
                )
                if found is not None:
                    break
        except MlbundleError as error:
            show_error(self.app, error)
            return
        if not worker.is_cancelled:
            self.app.call_from_thread(self._show_found, wanted, found)

    @work(thread=True, exclusive=True, group="count")
    def _count(self, wanted: str) -> None:
        """Find all lines that hold it; in a big log that takes a while, so they are told when they are known."""
        worker = get_current_worker()
        try:
            places = self._log.places(wanted, _MOST_COUNTED, stop=lambda: worker.is_cancelled)
        except MlbundleError:  # told by who looked for the next one
            return
        if not worker.is_cancelled:
            self.app.call_from_thread(self._show_count, wanted, places)

    def _show_count(self, wanted: str, places: list[int]) -> None:
        if wanted != self._wanted:
            return
        self._places = places
        self.on_log_view_moved()

    def _show_found(self, wanted: str, found: int | None) -> None:
        if wanted != self._wanted:
            return
        view = self.query_one(LogView)
        view.found = found
        if found is None:
            self.action_clear()
            self._missing = wanted
            self.on_log_view_moved()
            return
        # One search at a time: two take turns, and with them the keys.
        if not self._counting:
            self._counting = True
            self._count(wanted)
        if any(line.begin == found for line in view.lines):
            view.refresh()
            self.on_log_view_moved()
        else:
            before = self._log.before(found, max(1, view.size.height // 3))
            view.show_from(before[0].begin if before else found)
