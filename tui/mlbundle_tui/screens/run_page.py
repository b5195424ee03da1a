"""The page of a run: what came out, and everything that leads there, in tabs."""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import work
from textual.binding import Binding
from textual.widgets import Static, TabbedContent, TabPane
from textual.worker import get_current_worker

from mlbundle.errors import MlbundleError, ToolMissing
from mlbundle.manifest.problems import printable
from mlbundle_tui import record_words
from mlbundle_tui.run_tabs.base import ODD, READING, RunTab, ShownRun
from mlbundle_tui.run_tabs.counters import CountersTab
from mlbundle_tui.run_tabs.environment import EnvironmentTab
from mlbundle_tui.run_tabs.files import FilesTab
from mlbundle_tui.run_tabs.latency import LatencyTab
from mlbundle_tui.run_tabs.layers import KernelsTab, LayersTab
from mlbundle_tui.run_tabs.logs import LogsTab
from mlbundle_tui.run_tabs.summary import SummaryTab
from mlbundle_tui.screens.base import Section
from mlbundle_tui.screens.dialogs import show_error

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from mlbundle_tui.context import Context

TABS: tuple[type[RunTab], ...] = (
    SummaryTab, LatencyTab, LayersTab, KernelsTab, CountersTab, EnvironmentTab, LogsTab, FilesTab,
)  # fmt: skip


class RunPage(Section):
    """A run that is over, opened above the section it was chosen in."""

    name_of_section: ClassVar[str] = "runs"
    DEFAULT_CSS = """
    RunPage #title { height: 1; padding: 0 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
    RunPage TabbedContent { height: 1fr; }
    RunPage TabPane { padding: 0; height: 1fr; }
    RunPage ContentSwitcher { height: 1fr; }
    """
    BINDINGS: ClassVar = [
        Binding("escape", "back", "Back", id="run.back"),
        Binding("left_square_bracket", "tab(-1)", "Tab before", show=False, id="run.tab_before"),
        Binding("right_square_bracket", "tab(1)", "Next tab", id="run.tab_next"),
        Binding("t", "trace", "Trace", id="run.trace"),
        Binding("y", "raw", "Record", id="run.raw"),
        Binding("l", "show_tab('logs')", "Logs", id="run.logs"),
        Binding("e", "edit", "$EDITOR", show=False, id="run.edit"),
    ]

    def __init__(self, context: Context, run_id: str, *, tab: str = "summary") -> None:
        super().__init__(context)
        self.run_id = run_id
        self.run: ShownRun | None = None
        self._first_tab = tab

    def body(self) -> ComposeResult:
        """Yield the title and the tabs, empty until the record was read."""
        yield Static(f"run {self.run_id}", id="title", markup=False)
        with TabbedContent():
            for tab in TABS:
                yield TabPane(tab.title, Static(READING, classes="empty"), id=tab.key)

    def on_mount(self) -> None:
        """Read the record."""
        self._read()

    @work(thread=True, exclusive=True, group="record")
    def _read(self) -> None:
        from mlbundle.runs.catalog import run_record

        try:
            record = run_record(self.context.settings, self.run_id)
        except MlbundleError as error:
            self.app.call_from_thread(self._give_up, error)
            return
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self.call_later, self._show, record)

    def _give_up(self, error: MlbundleError) -> None:
        self.app.pop_screen()
        show_error(self.app, error)

    async def _show(self, record: dict[str, Any]) -> None:
        self.run = ShownRun(self.context, self.run_id, record)
        with suppress(*ODD):  # the tabs say what is wrong
            self.query_one("#title", Static).update(_title(self.run_id, record))
        tabs = self.query_one(TabbedContent)
        if tabs.active == self._first_tab:
            await self._fill(self._first_tab)
        else:
            tabs.active = self._first_tab

    @property
    def tab(self) -> RunTab | None:
        """The tab that is shown."""
        active = self.query_one(TabbedContent).active
        found = self.query(f"#tab-{active}")
        return found.first(RunTab) if found else None

    async def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Make a tab when it is first gone to."""
        if event.pane.id is not None:
            await self._fill(event.pane.id)

    async def _fill(self, key: str) -> None:
        if self.run is None:
            return
        if not self.query(f"#tab-{key}"):
            kind = next(tab for tab in TABS if tab.key == key)
            pane = self.query_one(f"#{key}", TabPane)
            await pane.mount(kind(self.run))
            await pane.query_children(".empty").remove()
        if self.tab is not None and self.is_current and not self.tab.has_class("-nothing"):
            self.tab.focus_inside()
        self.show_command()
        self.refresh_bindings()

    def command_line(self) -> str:
        """Return the command of the tab."""
        return self.tab.command_line() if self.tab is not None else f"mlbundle runs show {self.run_id}"

    def chosen(self) -> dict[str, str]:
        """Return the run."""
        return {"RUN": self.run_id}

    def action_back(self) -> None:
        """Go back to where the run was chosen."""
        self.app.pop_screen()

    def action_tab(self, step: int) -> None:
        """Go to the next tab, or the one before."""
        keys = [tab.key for tab in TABS]
        tabs = self.query_one(TabbedContent)
        self.action_show_tab(keys[(keys.index(tabs.active) + step) % len(keys)])

    def action_show_tab(self, key: str) -> None:
        """Go to a tab."""
        self.query_one(TabbedContent).active = key

    def action_refresh(self) -> None:
        """Read the tab's files anew."""
        if self.tab is not None:
            self.tab.load()

    def action_trace(self) -> None:
        """Open the trace in a browser."""
        from mlbundle_tui.screens.trace_opening import open_trace_of

        open_trace_of(self, self.context, self.run_id)

    def action_raw(self) -> None:
        """Show the record as it is."""
        from mlbundle_tui.screens.raw import show_json

        if self.run is not None:
            show_json(self.app, f"record of {self.run_id}", self.run.record)

    def action_edit(self) -> None:
        """Open the record in $EDITOR."""
        path = self.context.settings.runs_dir / self.run_id / "record.json"
        command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
        try:
            with self.app.suspend():
                subprocess.run([*command, str(path)], check=False)
        except OSError as error:
            show_error(
                self.app,
                ToolMissing(
                    f"{command[0]} can't be started: {error.strerror}", hint="set EDITOR to another one"
                ),
            )


def _title(run_id: str, record: dict[str, Any]) -> Text:
    word, _, _ = record_words.verdict(record)
    bundle, framework = record["bundle"], record["framework"]
    named = f"{bundle['name']}:{bundle['version']}  {framework['name']} {framework['version']}"
    title = Text(
        printable(f"{word}  {named}  {record['scenario']['name']}  "), no_wrap=True, overflow="ellipsis"
    )
    title.append(run_id, style="dim not bold")
    return title
