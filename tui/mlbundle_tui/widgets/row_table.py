"""A table of any number of rows: only the lines on the screen are made, so 100,000 rows cost what 50 do.

Rows come from a function, which may say that it does not have one yet. Cells are texts with a style by name; whatever
a name holds (any script, markup, control characters) takes its column's cells and no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.text import Text
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.style import Style
    from textual import events

Cell = str | tuple[str, str] | Text
"""A text, or a text and the name of its style: one of STYLES; or a text with styles of its own, cut to its column."""

STYLES = ("good", "bad", "warn", "dim", "accent", "strong")
_GAP = 2
_ELLIPSIS = "…"


@dataclass(frozen=True)
class Column:
    """A column: `width` in cells, at least; `flex` is its part of what is left, up to `most` cells.

    Shown from a table's width on.
    """

    key: str
    title: str
    width: int
    flex: int = 0
    right: bool = False
    from_width: int = 0
    most: int | None = None


class RowTable(ScrollView, can_focus=True):
    """Rows with a cursor. `Highlighted`, `Selected` and `HeaderPressed` say what was done."""

    DEFAULT_CSS = """
    RowTable { height: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }
    RowTable > .row-table--header { text-style: bold dim; }
    RowTable > .row-table--cursor { background: $primary 30%; }
    RowTable:focus > .row-table--cursor { background: $primary 60%; text-style: bold; }
    RowTable > .row-table--good { color: $text-success; }
    RowTable > .row-table--bad { color: $text-error; }
    RowTable > .row-table--warn { color: $text-warning; }
    RowTable > .row-table--dim { text-style: dim; }
    RowTable > .row-table--accent { color: $text-primary; }
    RowTable > .row-table--strong { text-style: bold; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "row-table--header", "row-table--cursor", *(f"row-table--{name}" for name in STYLES),
    }  # fmt: skip
    BINDINGS: ClassVar = [
        Binding("up,k", "move(-1)", "Up", show=False, id="table.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="table.down"),
        Binding("pageup", "move_page(-1)", "Page up", show=False, id="table.page_up"),
        Binding("pagedown", "move_page(1)", "Page down", show=False, id="table.page_down"),
        Binding("home,g", "move_to_end(-1)", "First", show=False, id="table.first"),
        Binding("end,G", "move_to_end(1)", "Last", show=False, id="table.last"),
        Binding("enter", "select", "Open", id="table.select"),
    ]

    cursor: reactive[int] = reactive(0, repaint=False)

    class Highlighted(Message):
        """The cursor stands on another row."""

        def __init__(self, table: RowTable, row: int) -> None:
            super().__init__()
            self.table, self.row = table, row

        @property
        def control(self) -> RowTable:
            """The table."""
            return self.table

    class Selected(Highlighted):
        """A row was opened."""

    class HeaderPressed(Message):
        """The title of a column was pressed."""

        def __init__(self, table: RowTable, key: str) -> None:
            super().__init__()
            self.table, self.key = table, key

        @property
        def control(self) -> RowTable:
            """The table."""
            return self.table

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        opens: bool = False,
        id: str | None = None,  # noqa: A002 - as in Textual
    ) -> None:
        super().__init__(id=id)
        self._opens = opens
        self._columns = list(columns)
        self._count = 0
        self._row: Callable[[int], Sequence[Cell] | None] = lambda _: None
        self._styles: dict[str, Style] = {}

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._count

    @property
    def columns(self) -> list[Column]:
        """The columns, also those that are not shown at this width."""
        return list(self._columns)

    @property
    def width_inside(self) -> int:
        """How wide a row is: without the scroll bar."""
        return int(self.scrollable_content_region.width)

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Take other columns; the rows must fit them."""
        self._columns = list(columns)
        self.refresh()

    def set_source(
        self,
        count: int,
        row: Callable[[int], Sequence[Cell] | None],
        *,
        cursor: int | None = None,
        still: bool = False,
    ) -> None:
        """Take rows from a function: the cells of a row by its number, None while it is not there yet.

        `still` moves the rows with the cursor, whose row stays on the line of the screen that it is on.
        """
        self._count, self._row = count, row
        line = self.cursor - self.first_in_sight()
        self._update_size()
        self.cursor = self.validate_cursor(self.cursor if cursor is None else cursor)
        if still and cursor:
            self.scroll_to(y=max(0, self.cursor - line), animate=False, immediate=True)
        self._keep_in_sight()
        self.refresh()

    def set_rows(self, rows: Sequence[Sequence[Cell]], *, cursor: int | None = None) -> None:
        """Take rows that are all there."""
        self.set_source(len(rows), rows.__getitem__, cursor=cursor)

    def first_in_sight(self) -> int:
        """Return the number of the first row on the screen."""
        return int(self.scroll_offset.y)

    def rows_in_sight(self) -> int:
        """Return how many rows there is room for."""
        return max(1, self.size.height - 1)

    def validate_cursor(self, cursor: int) -> int:
        """Keep the cursor on a row."""
        return max(0, min(cursor, self._count - 1))

    def watch_cursor(self, before: int, now: int) -> None:
        """Show the row and say so."""
        if self.is_attached:
            self._keep_in_sight()
            for row in (before, now):
                self.refresh_row(row)
            self.post_message(self.Highlighted(self, now))

    def refresh_row(self, row: int) -> None:
        """Draw a row anew, if it is in sight."""
        line = row - self.first_in_sight() + 1
        if 0 < line <= self.rows_in_sight():
            self.refresh(Region(0, line, self.size.width, 1))

    def action_move(self, rows: int) -> None:
        """Move the cursor by rows."""
        self.cursor += rows

    def action_move_page(self, direction: int) -> None:
        """Move the cursor by what is in sight."""
        self.cursor += direction * max(1, self.rows_in_sight() - 1)

    def action_move_to_end(self, direction: int) -> None:
        """Move the cursor to the first or the last row."""
        self.cursor = 0 if direction < 0 else self._count - 1

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to open rows only where that means something."""
        return self._opens if action == "select" else True

    def action_select(self) -> None:
        """Open the row under the cursor."""
        if self._count:
            self.post_message(self.Selected(self, self.cursor))

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where it was pressed; twice opens the row."""
        event.stop()
        if event.y == 0:
            x = 0
            for column, width in self._shown():
                if x <= event.x < x + width + _GAP:
                    self.post_message(self.HeaderPressed(self, column.key))
                x += width + _GAP
            return
        row = self.first_in_sight() + event.y - 1
        if row < self._count:
            self.cursor = row
            if event.chain == 2 and self._opens:
                self.action_select()

    def on_resize(self) -> None:
        """Lay the columns out anew."""
        self._update_size()
        self._keep_in_sight()
        self.refresh()

    def notify_style_update(self) -> None:
        """Forget the styles of another theme."""
        super().notify_style_update()
        self._styles.clear()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return a line of the screen: the titles, or a row."""
        width = self.width_inside
        shown = self._shown()
        if y == 0:
            titles = {column.key: column.title for column, _ in shown}
            return self._strip([titles[c.key] for c, _ in shown], shown, self._style("header"), width)
        number = self.first_in_sight() + y - 1
        base = self.rich_style
        if number >= self._count:
            return Strip.blank(width, base)
        cells = self._row(number)
        if number == self.cursor:
            base = self._style("cursor")
        if cells is None:
            return self._strip([_ELLIPSIS], shown[:1], base, width)
        keys = [column.key for column in self._columns]
        chosen = [cells[keys.index(column.key)] for column, _ in shown]
        return self._strip(chosen, shown, base, width)

    def _strip(
        self, cells: Sequence[Cell], shown: Sequence[tuple[Column, int]], base: Style, width: int
    ) -> Strip:
        segments: list[Segment] = []
        for cell, (column, room) in zip(cells, shown, strict=True):
            if isinstance(cell, Text):
                segments += Segment.apply_style(cell.render(self.app.console), base)
                segments.append(Segment(" " * (room - cell.cell_len + _GAP), base))
                continue
            text, name = (cell, "") if isinstance(cell, str) else cell
            style = base + self._style(name) if name else base
            segments.append(Segment(fit(text, room, right=column.right), style))
            segments.append(Segment(" " * _GAP, base))
        return Strip(segments).adjust_cell_length(width, base)

    def _style(self, name: str) -> Style:
        if name not in self._styles:
            partial = name not in {"header", "cursor"}
            self._styles[name] = self.get_component_rich_style(f"row-table--{name}", partial=partial)
        return self._styles[name]

    def _shown(self) -> list[tuple[Column, int]]:
        """Return the columns that fit, and how wide each is."""
        width = self.width_inside
        columns = [column for column in self._columns if column.from_width <= width]
        room = width - sum(column.width + _GAP for column in columns) + _GAP
        widths = [column.width for column in columns]
        growing = [n for n, column in enumerate(columns) if column.flex]
        # Those that need the least more get theirs first: what they leave is for the others.
        growing.sort(key=lambda n: float("inf") if (most := columns[n].most) is None else most - widths[n])
        parts = sum(columns[n].flex for n in growing)
        for n in growing:
            column = columns[n]
            more = max(0, room) * column.flex // parts
            if column.most is not None:
                more = max(0, min(more, column.most - column.width))
            widths[n], room, parts = widths[n] + more, room - more, parts - column.flex
        # Where even the least does not fit the widest give way.
        over = sum(widths) + _GAP * (len(widths) - 1) - width
        return [
            (column, max(4, w - over) if over > 0 and column.flex else w)
            for column, w in zip(columns, widths, strict=True)
        ]

    def _update_size(self) -> None:
        self.virtual_size = Size(self.width_inside, self._count + 1)

    def _keep_in_sight(self) -> None:
        first, rows = self.first_in_sight(), self.rows_in_sight()
        if self.cursor < first:
            self.scroll_to(y=self.cursor, animate=False, immediate=True)
        elif self.cursor >= first + rows:
            self.scroll_to(y=self.cursor - rows + 1, animate=False, immediate=True)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Return a text in exactly so many cells: cut with an ellipsis, or filled; what can't be shown is a dot."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "·" for c in text)
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + _ELLIPSIS if width > 1 else set_cell_size(text, width)
    return " " * (width - length) + text if right else text + " " * (width - length)
