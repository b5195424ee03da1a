"""The tabs of one bundle: overview, manifest, assets, images, history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.app import ComposeResult

TABS = ("overview", "manifest", "assets", "images", "history")


class BundleTabs(Vertical):
    """A line of tabs and what the chosen one shows; it is told what to show."""

    DEFAULT_CSS = """
    BundleTabs { width: 2fr; border-left: solid $panel; padding: 0 0 0 1; }
    BundleTabs > #tabs { height: 1; margin-bottom: 1; }
    BundleTabs > VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    BundleTabs > VerticalScroll > Static { width: 1fr; height: auto; padding: 0 1 0 0; }
    BundleTabs > VerticalScroll:focus { background-tint: $foreground 4%; }
    """

    def __init__(self) -> None:
        super().__init__(id="detail")
        self.tab = "overview"

    def compose(self) -> ComposeResult:
        """Yield the line of tabs and the text below."""
        yield Static(self._line(), id="tabs")
        with VerticalScroll(id="tab-body"):
            yield Static("", id="tab-text", markup=False)

    def turn(self, by: int) -> str:
        """Go to another tab, and return its name."""
        self.tab = TABS[(TABS.index(self.tab) + by) % len(TABS)]
        self.query_one("#tabs", Static).update(self._line())
        self.query_one("#tab-body", VerticalScroll).scroll_home(animate=False)
        return self.tab

    def show(self, what: RenderableType, *, from_top: bool = False) -> None:
        """Show what the chosen tab has to show."""
        self.query_one("#tab-text", Static).update(what)
        if from_top:
            self.query_one("#tab-body", VerticalScroll).scroll_home(animate=False)

    def on_resize(self) -> None:
        """Show the tabs that there is room for."""
        self.query_one("#tabs", Static).update(self._line(), layout=False)

    def _line(self) -> Text:
        """Return the tabs; where not all fit those around the chosen one, with arrows to where the others are."""
        shown, room = self._fitting(), self.content_size.width
        text = Text("<" if shown[0] != TABS[0] else "", no_wrap=True, overflow="ellipsis")
        for name in shown:
            text.append(f" {name} ", style="reverse" if name == self.tab else "dim")
        text.append(">" if shown[-1] != TABS[-1] else "")
        text.truncate(room or text.cell_len, overflow="ellipsis")
        return text

    def _fitting(self) -> list[str]:
        room = (self.content_size.width or 80) - 2 * len("<")
        if sum(len(name) + 2 for name in TABS) <= room + 2:
            return list(TABS)
        chosen = TABS.index(self.tab)
        shown, room = [self.tab], room - len(self.tab) - 2
        for name in (*TABS[chosen + 1 :], *reversed(TABS[:chosen])):
            room -= len(name) + 2
            if room < 0:
                break
            shown.append(name)
        return sorted(shown, key=TABS.index)
