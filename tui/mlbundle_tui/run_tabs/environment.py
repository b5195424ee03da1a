"""Environment: on what the run was made, and where this machine is another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widgets import Static

from mlbundle_tui.run_tabs.base import READING, RunTab
from mlbundle_tui.widgets.row_table import Cell, Column, RowTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from mlbundle.runs.told import Fact

_COLUMNS = (
    Column("section", "section", 13, from_width=50),
    Column("name", "what", 20),
    Column("value", "value", 16, flex=3),
    Column("here", "this machine", 14, flex=1, from_width=70),
)


class EnvironmentTab(RunTab):
    """The environment of the record, line by line."""

    key, title = "environment", "Environment"

    def inside(self) -> ComposeResult:
        """Yield how much differs, and the table."""
        yield Static(READING, id="head", markup=False)
        yield RowTable(_COLUMNS)

    def read(self) -> list[Fact]:
        """Look at this machine, and hold it against the record."""
        from mlbundle.runs.environment import machine_document
        from mlbundle.runs.told import environment_facts

        return environment_facts(self.run.record, machine_document(with_gpus=False))

    def show(self, found: list[Fact]) -> None:
        """Show the lines; those that differ here stand out."""
        differing = sum(fact.here is not None for fact in found)
        machine = (self.run.record.get("environment") or {}).get("machine")
        text = (
            f"{differing} facts of the machine are others here: times may not be comparable"
            if differing
            else "made on a machine like this one"
            if machine
            else "the run broke off before anything was told of its environment"
        )
        self.query_one("#head", Static).update(text)
        before = ["", *(fact.section for fact in found)]
        cells = [_cells(fact, new=fact.section != last) for fact, last in zip(found, before, strict=False)]
        table = self.query_one(RowTable)
        # Where nothing differs there is more room for what it was.
        table.set_columns(_COLUMNS if differing else _COLUMNS[:-1])
        table.set_rows(cells)

    def focus_inside(self) -> None:
        """Give the keys to the table."""
        self.query_one(RowTable).focus()

    def command_line(self) -> str:
        """Return the command that shows the same."""
        return f"mlbundle runs show {self.run.run_id} --environment"


def _cells(fact: Fact, *, new: bool) -> Sequence[Cell]:
    style = "warn" if fact.here is not None or fact.section == "warnings" else ""
    return (
        (fact.section if new else "", "strong"),
        (fact.name, "dim"),
        (fact.value, style),
        (fact.here or "", style),
    )
