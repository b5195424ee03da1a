"""A log of any size: only the lines on the screen are read. Long lines are cut, or go on below."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.cells import chop_cells
from rich.segment import Segment
from textual.binding import Binding
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from mlbundle_tui.widgets.row_table import fit

if TYPE_CHECKING:
    from textual import events

    from mlbundle.runs.log_file import Line, LogFile


class LogView(Widget, can_focus=True):
    """Lines of a log; `Moved` says that others are shown."""

    DEFAULT_CSS = """
    LogView { height: 1fr; width: 1fr; }
    LogView > .log-view--found { background: $warning 40%; text-style: bold; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"log-view--found"}
    BINDINGS: ClassVar = [
        Binding("up,k", "move(-1)", "Up", show=False, id="log.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="log.down"),
        Binding("pageup", "move_page(-1)", "Page up", show=False, id="log.page_up"),
        Binding("pagedown,space", "move_page(1)", "Page down", show=False, id="log.page_down"),
        Binding("home,g", "first", "Begin", show=False, id="log.first"),
        Binding("end,G", "last", "End", show=False, id="log.last"),
        Binding("left", "shift(-20)", "Left", show=False, id="log.left"),
        Binding("right", "shift(20)", "Sideways", key_display="←→", id="log.right"),
        Binding("w", "wrap", "Wrap", id="log.wrap"),
    ]

    class Moved(Message):
        """Other lines are shown."""

    def __init__(self, log: LogFile) -> None:
        super().__init__()
        self.source = log
        self.found: int | None = None
        self._lines: list[Line] = []
        # What stands on the screen, row by row; `_hidden` rows of the first line are above it.
        self._rows: list[tuple[Line, str]] = []
        self._hidden = 0
        self._shift = 0
        self._wrapped = False
        self._at_end = True

    @property
    def lines(self) -> list[Line]:
        """The lines that are shown."""
        return self._lines

    def show_from(self, place: int, hidden: int = 0) -> None:
        """Show the lines from a place of the file on, without so many rows of the first; at the end the last ones."""
        room = max(1, self.size.height)
        lines = self.source.after(place, room + hidden)
        self._hidden = hidden
        if sum(len(self._folded(line)) for line in lines) - hidden < room:
            lines = self.source.last(room)
            self._hidden = max(0, sum(len(self._folded(line)) for line in lines) - room)
        while lines and self._hidden >= len(self._folded(lines[0])):
            self._hidden -= len(self._folded(lines[0]))
            lines = lines[1:]
        rows = [(line, text) for line in lines for text in self._folded(line)]
        self._rows = rows[self._hidden : self._hidden + room]
        self._lines = list({line.begin: line for line, _ in self._rows}.values())
        below = rows[self._hidden + room :]
        self._at_end = not below and (not lines or lines[-1].end >= self.source.size_bytes())
        self.refresh()
        self.post_message(self.Moved())

    def action_move(self, rows: int) -> None:
        """Move by rows."""
        if not self._lines:
            return
        if rows > 0:
            self.show_from(self._lines[0].begin, self._hidden + rows)
            return
        before = self.source.before(self._lines[0].begin, -rows)
        above = sum(len(self._folded(line)) for line in before) + self._hidden
        self.show_from(before[0].begin if before else 0, max(0, above + rows))

    def action_move_page(self, direction: int) -> None:
        """Move by what is in sight."""
        self.action_move(direction * max(1, self.size.height - 1))

    def action_first(self) -> None:
        """Show the begin, also of lines that are cut."""
        self._shift = 0
        self.show_from(0)

    def action_last(self) -> None:
        """Show the end, also of a file that grew."""
        self.show_from(self.source.size_bytes())

    def action_shift(self, cells: int) -> None:
        """Move to the side."""
        self._shift = max(0, self._shift + cells)
        self.refresh()

    def action_wrap(self) -> None:
        """Let long lines go on below, or cut them again."""
        self._wrapped, self._shift = not self._wrapped, 0
        self.refresh_bindings()
        if self._lines:
            self.show_from(self._lines[0].begin)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """There is nothing aside of lines that go on below."""
        return not (action == "shift" and self._wrapped)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move down."""
        event.stop()
        self.action_move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move up."""
        event.stop()
        self.action_move(-3)

    def on_resize(self) -> None:
        """Read as many lines as there is room for; a log that stood at its end stands there again."""
        if self._lines and not self._at_end:
            self.show_from(self._lines[0].begin)
        else:
            self.action_last()

    def render_line(self, y: int) -> Strip:
        """Return a line."""
        base = self.rich_style
        if y >= len(self._rows):
            return Strip.blank(self.size.width, base)
        line, text = self._rows[y]
        if line.begin == self.found:
            base = self.get_component_rich_style("log-view--found")
        return Strip([Segment(fit(text[self._shift :], self.size.width), base)])

    def _folded(self, line: Line) -> list[str]:
        """Return the rows that a line takes."""
        return (chop_cells(line.text, max(1, self.size.width)) or [""]) if self._wrapped else [line.text]
