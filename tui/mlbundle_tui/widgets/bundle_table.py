"""The table of bundles: a page of 500 rows at a time out of SQL, the next when the cursor comes to the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.widgets import DataTable

from mlbundle.wording import units
from mlbundle_tui.widgets.texts import STATES, fit, state_text

if TYPE_CHECKING:
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


class BundleTable(DataTable[Text], inherit_bindings=False):
    """Bundles of a shelf; `rows_shown` are those that are loaded, in order. Its keys are those of `RowTable`."""

    BINDINGS: ClassVar = [
        Binding("up,k", "cursor_up", "Up", show=False, id="table.up"),
        Binding("down,j", "cursor_down", "Down", show=False, id="table.down"),
        Binding("pageup", "page_up", "Page up", show=False, id="table.page_up"),
        Binding("pagedown", "page_down", "Page down", show=False, id="table.page_down"),
        Binding("home,g", "scroll_top", "First", show=False, id="table.first"),
        Binding("end,G", "scroll_bottom", "Last", show=False, id="table.last"),
        Binding("enter", "select_cursor", "Choose", show=False, id="table.select"),
    ]

    def __init__(self) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, id="bundles")
        self.rows_shown: list[BundleRow] = []
        self.total = 0
        self._shelf: Shelf | None = None
        self._filter: BundleFilter | None = None
        self._sort = "name"
        self._widths: dict[str, int] = {}
        self._judged: dict[str, Readiness] = {}

    @property
    def chosen(self) -> BundleRow | None:
        """The bundle under the cursor."""
        row = self.cursor_row
        return self.rows_shown[row] if 0 <= row < len(self.rows_shown) else None

    def show(self, shelf: Shelf, wanted: BundleFilter, sort: str) -> None:
        """Show what fits, from its beginning; the cursor stays on the bundle that it is on, where that fits."""
        before = self.chosen
        self._shelf, self._filter, self._sort = shelf, wanted, sort
        self.total = shelf.count(wanted)
        self.rows_shown = shelf.page(wanted, sort=sort, limit=PAGE)
        self._fill()
        keys = [row.key for row in self.rows_shown]
        if before is not None and before.key in keys:
            self.move_cursor(row=keys.index(before.key), animate=False)

    def more(self) -> bool:
        """Load the next page; whether there was one."""
        if self._shelf is None or len(self.rows_shown) >= self.total:
            return False
        page = self._shelf.page(self._filter, sort=self._sort, offset=len(self.rows_shown), limit=PAGE)
        known = {row.key for row in self.rows_shown}
        page = [row for row in page if row.key not in known]
        self.rows_shown += page
        for row in page:
            self.add_row(*self._cells(row), key=row.key)
        return bool(page)

    def near(self, reach: int = 40) -> list[BundleRow]:
        """Return the bundles that can be seen or are about to be."""
        first = max(0, int(self.scroll_offset.y) - 2)
        return self.rows_shown[first : first + max(reach, self.size.height + 4)]

    def judged(self, key: str) -> Readiness | None:
        """Return what is known of what can run here of a bundle."""
        return self._judged.get(key)

    def note(self, row: BundleRow, ready: Readiness) -> None:
        """Take what was found of a bundle, and show it anew."""
        self._judged[row.key] = ready
        for index, shown in enumerate(self.rows_shown):
            if shown.key == row.key:
                self.rows_shown[index] = row
                for column, cell in zip(self._widths, self._cells(row), strict=True):
                    self.update_cell(row.key, column, cell)
                return

    def forget(self) -> None:
        """Forget what can run here: something was built, pulled or removed."""
        self._judged.clear()

    def on_resize(self) -> None:
        """Give the columns what room there is."""
        if self._fitting() != self._widths:
            self._fill()

    def _fill(self) -> None:
        cursor = self.cursor_row
        self.clear(columns=True)
        self._widths = self._fitting()
        for name, width in self._widths.items():
            title, *_ = _COLUMNS[name]
            # As in all tables: the largest first is ↓.
            arrow = "" if name != self._sort else " ↓" if name == "size" else " ↑"
            self.add_column(Text(title + arrow, no_wrap=True), width=width, key=name)
        for row in self.rows_shown:
            self.add_row(*self._cells(row), key=row.key)
        if 0 < cursor < len(self.rows_shown):
            self.move_cursor(row=cursor, animate=False)

    def _fitting(self) -> dict[str, int]:
        """Return the widths of the columns that there is room for."""
        room = max(self.size.width - 2, 20)
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

    def _cells(self, row: BundleRow) -> list[Text]:
        cells = {
            "name": lambda width: Text(fit(row.name, width)),
            "state": lambda width: state_text(self._state(row), width=width),
            "framework": lambda width: self._frameworks(row, width),
            "version": lambda width: Text(fit(row.version, width)),
            "task": lambda width: Text(fit(row.task, width)),
            "where": lambda width: Text(fit(row.where, width), style="dim"),
            "size": lambda width: Text(
                "" if row.size is None else fit(units.size(row.size), width), justify="right"
            ),
        }
        made = [cells[name](width) for name, width in self._widths.items()]
        for cell in made:
            cell.no_wrap = True
        return made

    def _state(self, row: BundleRow) -> str:
        known = self._judged.get(row.key)
        return known.state if known is not None else row.state

    def _frameworks(self, row: BundleRow, width: int) -> Text:
        """Return the frameworks, each with the sign of the best that it can do here."""
        from mlbundle.runs.readiness import RANKS

        ready = self._judged.get(row.key)
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
