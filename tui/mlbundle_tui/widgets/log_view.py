"""A log of any size: only the lines on the screen are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

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
        Binding("right", "shift(20)", "Right", show=False, id="log.right"),
    ]

    class Moved(Message):
        """Other lines are shown."""

    def __init__(self, log: LogFile) -> None:
        super().__init__()
        self.source = log
        self.found: int | None = None
        self._lines: list[Line] = []
        self._shift = 0

    @property
    def lines(self) -> list[Line]:
        """The lines that are shown."""
        return self._lines

    def show_from(self, place: int) -> None:
        """Show the lines from a place of the file on; at the end the last ones."""
        rows = max(1, self.size.height)
        self._lines = self.source.after(place, rows)
        if len(self._lines) < rows:
            self._lines = self.source.last(rows)
        self.refresh()
        self.post_message(self.Moved())

    def action_move(self, rows: int) -> None:
        """Move by lines."""
        if not self._lines:
            return
        if rows > 0:
            places = [*(line.begin for line in self._lines), self._lines[-1].end]
            self.show_from(places[min(rows, len(places) - 1)])
        else:
            before = self.source.before(self._lines[0].begin, -rows)
            self.show_from(before[0].begin if before else 0)

    def action_move_page(self, direction: int) -> None:
        """Move by what is in sight."""
        self.action_move(direction * max(1, self.size.height - 1))

    def action_first(self) -> None:
        """Show the begin."""
        self.show_from(0)

    def action_last(self) -> None:
        """Show the end, also of a file that grew."""
        self.show_from(self.source.size_bytes())

    def action_shift(self, cells: int) -> None:
        """Move to the side."""
        self._shift = max(0, self._shift + cells)
        self.refresh()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move down."""
        event.stop()
        self.action_move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move up."""
        event.stop()
        self.action_move(-3)

    def on_resize(self) -> None:
        """Read as many lines as there is room for."""
        if self._lines:
            self.show_from(self._lines[0].begin)
        else:
            self.action_last()

    def render_line(self, y: int) -> Strip:
        """Return a line."""
        base = self.rich_style
        if y >= len(self._lines):
            return Strip.blank(self.size.width, base)
        line = self._lines[y]
        if line.begin == self.found:
            base = self.get_component_rich_style("log-view--found")
        return Strip([Segment(fit(line.text[self._shift :], self.size.width), base)])
