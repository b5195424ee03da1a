"""The runs that go on or wait, looked for every few seconds while the screen is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual import work
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static

from mlbundle_tui import plan_text
from mlbundle_tui.background import beside
from mlbundle_tui.widgets.row_table import Column, RowTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from mlbundle.config import Settings
    from mlbundle.runs.running import RunningRun

_LOOK_S = 3.0
_MOST_SHOWN = 6
_COLUMNS = (
    Column("run", "run", 8, flex=1),
    Column("model", "model", 10, flex=1),
    Column("scenario", "scenario", 11),
    Column("state", "", 14, flex=1),
)


class GoingRuns(Vertical):
    """A title and a table, which takes no room where nothing goes on. `Changed` comes with other runs."""

    DEFAULT_CSS: ClassVar[str] = """
    GoingRuns { height: auto; }
    GoingRuns #going-title { height: 1; padding: 0 1; color: $text-muted; }
    GoingRuns #going { margin: 0 1; display: none; }
    """

    class Changed(Message):
        """Other runs go on, or they stand elsewhere."""

    def __init__(self, settings: Settings, **named: Any) -> None:
        super().__init__(**named)
        self.runs: Sequence[RunningRun] = ()
        self._settings = settings
        self._looking = False
        self._looked = False
        self._said = ""

    def say(self, text: str) -> None:
        """Say something in the title in place of what it says else; empty takes it back."""
        self._said = text
        self._title()

    def _title(self) -> None:
        title = self._said or ("going on" if self.runs else "nothing goes on")
        self.query_one("#going-title", Static).update(title)

    def compose(self) -> ComposeResult:
        """Put the title above the table."""
        yield Static("", id="going-title", markup=False)
        yield RowTable(_COLUMNS, id="going")

    def on_mount(self) -> None:
        """Look now and then."""
        self.set_interval(_LOOK_S, self.look)

    @property
    def table(self) -> RowTable:
        """The table."""
        return self.query_one("#going", RowTable)

    @property
    def chosen(self) -> RunningRun | None:
        """The run under the cursor."""
        cursor = self.table.cursor
        return self.runs[cursor] if 0 <= cursor < len(self.runs) else None

    def look(self) -> None:
        """Look for runs that go on, if anybody sees it."""
        if self.screen.is_current and not self._looking:
            self._look()

    @work(group="going")
    async def _look(self) -> None:
        from mlbundle.runs.running import running_runs

        self._looking = True
        try:
            self._show(await beside(self.screen, running_runs, self._settings))
        finally:
            self._looking = False

    def _show(self, runs: Sequence[RunningRun]) -> None:
        if self._looked and runs == self.runs:
            return
        self._looked = True
        chosen, self.runs = self.chosen, runs
        ids = [run.run_id for run in runs]
        cursor = ids.index(chosen.run_id) if chosen is not None and chosen.run_id in ids else 0
        table = self.table
        table.set_rows(plan_text.going_rows(runs), cursor=cursor)
        table.can_focus = table.display = bool(runs)
        table.styles.height = min(len(runs), _MOST_SHOWN) + 1
        self._title()
        self.post_message(self.Changed())
