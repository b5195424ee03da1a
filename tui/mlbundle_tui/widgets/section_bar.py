"""The bar above every screen: the sections with their keys, how many runs go on, and what is wrong with everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.widget import Widget

if TYPE_CHECKING:
    from collections.abc import Mapping


class SectionBar(Widget):
    """One line; a second one while there is a problem that concerns all sections."""

    DEFAULT_CSS: ClassVar[str] = """
    SectionBar { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    SectionBar.-problem { height: 2; }
    """

    def __init__(self, titles: Mapping[str, str], current: str, *, demo: bool) -> None:
        super().__init__(id="bar")
        self._titles, self._current, self._demo = titles, current, demo
        self._going = 0
        self._problem = ""

    def on_mount(self) -> None:
        """Show what the app knows."""
        self.look()

    def look(self) -> None:
        """Show how many runs go on, and what is wrong, as the app knows it now."""
        app: Any = self.app
        if (len(app.going), app.problem) != (self._going, self._problem):
            self._going, self._problem = len(app.going), app.problem
            self.set_class(bool(self._problem), "-problem")
            self.refresh()

    def render(self) -> Text:
        """Return the line; on a narrow terminal the other sections are there by their keys alone."""
        for short in (False, True):
            line = self._line(short=short)
            if line.cell_len <= self.size.width:
                break
        line.truncate(self.size.width)
        if self._problem:
            line.append("\n")
            line.append_text(Text(f" ✗ {self._problem}", style="bold"))
        line.no_wrap, line.overflow = True, "ellipsis"
        return line

    def _line(self, *, short: bool) -> Text:
        line = Text()
        if self._demo:
            # In front: it is seen however narrow the terminal is.
            line.append(" DEMO ", style="bold reverse")
            line.append(" ")
        for key, (name, title) in enumerate(self._titles.items(), 1):
            chosen = name == self._current
            line.append(f" {key} " if short and not chosen else f" {key} {title} ", style="reverse" * chosen)
        if self._going:
            runs = "run goes on" if self._going == 1 else "runs go on"
            line.append(f" ▶{self._going}" if short else f"  ▶ {self._going} {runs}", style="bold")
        if self._demo and not short:
            line.append("  recorded data")
        return line
