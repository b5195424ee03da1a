"""The table of bundles: a page of 500 rows at a time out of SQL, the next when the cursor comes to the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding

from mlbundle.wording import units
from mlbundle_tui.widgets.row_table import Cell, Column, RowTable
from mlbundle_tui.widgets.texts import STATES, fit, state_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlbundle.runs.bundle_filter import BundleFilter
    from mlbundle.runs.readiness import Readiness
    from mlbundle.runs.shelf import BundleRow, Shelf

PAGE = 500
# Column -> (title, least width, share of the room that is left); those that come first stay longest.
_COLUMNS = {
    "name": ("name", 12, 3),
    "state": ("here", 21, 0),
    "framework": ("frameworks", 14, 2),
    "where": ("where", 8, 0),
    "version": ("version", 7, 0),
    "task": ("task", 14, 1),
    "size": ("size", 8, 0),
}
_MOST_NAME = 60


class BundleTable(RowTable, inherit_bindings=False):
    """Bundles of a shelf; `rows_shown` are those that are loaded, in order."""

    DEFAULT_CSS = """
    BundleTable { padding: 0 1; scrollbar-gutter: stable; }
    """
    BINDINGS: ClassVar = [
        *RowTable.BINDINGS[:-1],
        Binding("enter", "select", "Choose", show=False, id="table.select"),
    ]

    def __init__(self) -> None:
        super().__init__((), opens=True, id="bundles")
        self.rows_shown: list[BundleRow] = []
        self.total = 0
        self._shelf: Shelf | None = None
        self._filter: BundleFilter | None = None
        self._sort = "name"
        self._widths: dict[str, int] = {}
        self._known: dict[str, Readiness] = {}

    @property
    def chosen(self) -> BundleRow | None:
        """The bundle under the cursor."""
        return self.rows_shown[self.cursor] if self.cursor < len(self.rows_shown) else None

    def show(self, shelf: Shelf, wanted: BundleFilter, sort: str) -> None:
        """Show what fits, from its beginning; the cursor stays on the bundle that it is on, where that fits."""
        before = self.chosen
        self._shelf, self._filter, self._sort = shelf, wanted, sort
        self.total = shelf.count(wanted)
        self.rows_shown = shelf.page(wanted, sort=sort, limit=PAGE)
        keys = [row.key for row in self.rows_shown]
        self._lay_out()
        cursor = keys.index(before.key) if before is not None and before.key in keys else 0
        self.set_source(len(keys), self._cells_of, cursor=cursor)

    def more(self) -> bool:
        """Load the next page; whether there was one."""
        if self._shelf is None or len(self.rows_shown) >= self.total:
            return False
        page = self._shelf.page(self._filter, sort=self._sort, offset=len(self.rows_shown), limit=PAGE)
        known = {row.key for row in self.rows_shown}
        page = [row for row in page if row.key not in known]
        self.rows_shown += page
        self.set_source(len(self.rows_shown), self._cells_of)
        return bool(page)

    def near(self, reach: int = 40) -> list[BundleRow]:
        """Return the bundles that can be seen or are about to be."""
        first = max(0, self.first_in_sight() - 2)
        return self.rows_shown[first : first + max(reach, self.size.height + 4)]

    def judged(self, key: str) -> Readiness | None:
        """Return what is known of what can run here of a bundle."""
        return self._known.get(key)

    def note(self, row: BundleRow, ready: Readiness) -> None:
        """Take what was found of a bundle, and show it anew."""
        self._known[row.key] = ready
        for index, shown in enumerate(self.rows_shown):
            if shown.key == row.key:
                self.rows_shown[index] = row
                self.refresh_row(index)
                return

    def forget(self) -> None:
        """Forget what can run here: something was built, pulled or removed."""
        self._known.clear()

    def on_resize(self) -> None:
        """Give the columns what room there is."""
        if self._fitting() != self._widths:
            self._lay_out()

    def _lay_out(self) -> None:
        self._widths = self._fitting()
        columns = []
        for name, width in self._widths.items():
            # As in all tables: the largest first is ↓.
            arrow = "" if name != self._sort else " ↓" if name == "size" else " ↑"
            columns.append(Column(name, _COLUMNS[name][0] + arrow, width, right=name == "size"))
        self.set_columns(columns)

    def _cells_of(self, number: int) -> list[Cell]:
        return self._cells(self.rows_shown[number])

    def _fitting(self) -> dict[str, int]:
        """Return the widths of the columns that there is room for."""
        room = max(self.width_inside + 2, 20)
        chosen: dict[str, int] = {}
        used = 0
        for name, (_, least, _) in _COLUMNS.items():
            if used + least + 2 <= room or not chosen:
                chosen[name] = min(least, room - 2)
                used += chosen[name] + 2
        spare = room - used
        shares = sum(_COLUMNS[name][2] for name in chosen)
        for name in chosen:
            share = _COLUMNS[name][2]
            chosen[name] += spare * share // shares if shares else 0
        if "name" in chosen:
            chosen["name"] = min(chosen["name"], _MOST_NAME)
        return chosen

    def _cells(self, row: BundleRow) -> list[Cell]:
        cells: dict[str, Callable[[int], Cell]] = {
            "name": lambda width: fit(row.name, width),
            "state": lambda width: state_text(self._state(row), width=width),
            "framework": lambda width: self._frameworks(row, width),
            "version": lambda width: fit(row.version, width),
            "task": lambda width: fit(row.task, width),
            "where": lambda width: (fit(row.where, width), "dim"),
            "size": lambda width: "" if row.size is None else fit(units.size(row.size), width),
        }
        return [cells[name](width) for name, width in self._widths.items()]

    def _state(self, row: BundleRow) -> str:
        known = self._known.get(row.key)
        return known.state if known is not None else row.state

    def _frameworks(self, row: BundleRow, width: int) -> Text:
        """Return the frameworks, each with the sign of the best that it can do here."""
        from mlbundle.runs.readiness import RANKS

        ready = self._known.get(row.key)
        names = row.framework.split()
        if ready is None or ready.problem or not names:
            return Text(fit(" ".join(names), width))
        text = Text()
        # Every framework is shown, if need be by its first letters alone.
        room = max(2, (width + 1) // len(names) - 2)
        whole = sum(len(name) + 2 for name in names) - 1 <= width
        for name in names:
            states = [w.state for w in ready.ways if w.framework.lower().startswith(f"{name} ")]
            sign, colour = STATES[min(states, key=RANKS.index)] if states else ("✗", "red")
            text.append(sign, style=colour)
            text.append(f"{name if whole else name[:room]} ")
        text.rstrip()
        text.truncate(width, overflow="ellipsis")
        return text
