"""Files: what lies in the folder of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual.widgets import Static

from mlbundle.wording import units
from mlbundle_tui.run_tabs.base import READING, RunTab
from mlbundle_tui.screens.dialogs import show_text
from mlbundle_tui.widgets.row_table import Column, RowTable

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from mlbundle.runs.run_files import RunFile

_COLUMNS = (
    Column("name", "file", 20, flex=1),
    Column("size", "size", 9, right=True),
    Column("kind", "what it is", 20, flex=2, from_width=60),
)
_TEXTS = (".json", ".jsonl", ".log", ".txt", ".config")
_SHOWN_LINES = 1000


class FilesTab(RunTab):
    """The files of the run; enter reads one that is text."""

    key, title = "files", "Files"

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._files: list[RunFile] = []

    def inside(self) -> ComposeResult:
        """Yield where they are, and the table."""
        yield Static(READING, id="head", markup=False)
        yield RowTable(_COLUMNS, opens=True)

    def read(self) -> list[RunFile]:
        """Look into the folder."""
        from mlbundle.runs.run_files import run_files

        return run_files(self.run.folder)

    def show(self, found: list[RunFile]) -> None:
        """Show them."""
        self._files = found
        size = units.size(sum(file.size_bytes for file in found))
        text = f"{len(found)} files, {size}  {self.run.folder}"
        self.query_one("#head", Static).update(Text(text, no_wrap=True, overflow="ellipsis"))
        rows = [(file.name, units.size(file.size_bytes), (file.kind, "dim")) for file in found]
        self.query_one(RowTable).set_rows(rows)

    def focus_inside(self) -> None:
        """Give the keys to the table."""
        self.query_one(RowTable).focus()

    def command_line(self) -> str:
        """Return the command that shows the same."""
        return f"ls -l {self.run.folder}"

    def on_row_table_selected(self, event: RowTable.Selected) -> None:
        """Show the begin of a file of text."""
        from mlbundle.runs.log_file import LogFile

        event.stop()
        name = self._files[event.row].name
        if name.endswith(_TEXTS):
            lines = [line.text for line in LogFile(self.run.folder / name).after(0, _SHOWN_LINES)]
            more = ["…"] if len(lines) == _SHOWN_LINES else []
            show_text(self.app, name, Text("\n".join([*lines, *more])), large=True)
        else:
            self.notify(f"{name} is no text", markup=False)
