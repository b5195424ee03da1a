"""What all sections share: the bar with their names, the footer, and the command line that does the same."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Static

from mlbundle.manifest.problems import printable
from mlbundle_tui.widgets.bare import Bare, BareContainer
from mlbundle_tui.widgets.key_footer import KeyFooter
from mlbundle_tui.widgets.section_bar import SectionBar

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import ScreenResume
    from textual.widget import Widget

    from mlbundle_tui.context import Context

# Section -> key, title, `module:class`. A module is imported when its section is gone to.
_SECTIONS = {
    "bundles": ("1", "Bundles", "mlbundle_tui.screens.bundles:BundlesSection"),
    "run": ("2", "Run", "mlbundle_tui.screens.run:RunSection"),
    "runs": ("3", "Runs", "mlbundle_tui.screens.runs:RunsSection"),
    "compare": ("4", "Compare", "mlbundle_tui.screens.compare:CompareSection"),
    "machine": ("5", "Machine", "mlbundle_tui.screens.machine:MachineSection"),
}


class Section(Bare, Screen[None]):
    """One of the five sections. Subclasses give `body` and `command_line`."""

    name_of_section: ClassVar[str] = ""
    BINDINGS: ClassVar = [
        Binding("c", "copy_command", "Copy command", id="section.copy"),
        Binding("f5", "refresh", "Refresh", show=False, id="section.refresh"),
        Binding("question_mark,f1", "help", "Help", id="section.help"),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context

    @staticmethod
    def make(name: str, context: Context) -> Section:
        """Return the screen of a section."""
        module, _, attribute = _SECTIONS[name][2].partition(":")
        section: Section = getattr(importlib.import_module(module), attribute)(context)
        return section

    def compose(self) -> ComposeResult:
        """Put the bar above and the footer below the body."""
        titles = {name: title for name, (_, title, _) in _SECTIONS.items()}
        yield SectionBar(titles, self.name_of_section, demo=self.context.demo)
        with BareContainer(id="body"):
            yield from self.body()
        yield Static("", id="command", markup=False)
        yield KeyFooter()

    def _on_screen_resume(self, event: ScreenResume) -> None:
        """Show above what happened while another screen was shown."""
        # Textual sees to another theme or another size before; without them nothing has another style.
        event.refresh_styles = False
        self.look_above()

    def runs_changed(self) -> None:
        """Runs began, ended or were removed; called for the screen that is shown."""
        self.look_above()

    def look_above(self) -> None:
        """Show in the bar what the app knows now."""
        for bar in self.query(SectionBar):  # none before the screen is made
            bar.look()

    def body(self) -> ComposeResult:
        """Yield the widgets of the section."""
        raise NotImplementedError

    def command_line(self) -> str:
        """Return the command that does what would be done here now, empty for none."""
        return ""

    def chosen(self) -> dict[str, str]:
        """Return what `RUN`, `RUN RUN` and `BUNDLE` stand for in commands, as far as something is chosen here."""
        return {}

    def offer(self) -> None:
        """Leave to the app what the section Run may take where its form has no bundle; called when that is gone to."""

    def show_command(self) -> None:
        """Show the command line anew; call it when what is chosen has changed."""
        # It keeps its one line, so nothing is laid out anew.
        self.query_one("#command", Static).update(printable(self.command_line()), layout=False)

    def action_copy_command(self) -> None:
        """Copy the command line to the clipboard (OSC 52, over ssh as well)."""
        line = self.command_line()
        if line:
            self.app.copy_to_clipboard(line)
            self.notify(f"copied: {line}")

    def action_refresh(self) -> None:
        """Read everything anew."""

    def action_help(self) -> None:
        """Show what the screen is for, and the keys that work now."""
        from mlbundle_tui.screens.help import Help

        self.app.push_screen(Help(self))


def empty(text: str) -> Widget:
    """Return what stands where there is nothing yet: it says what to press."""
    return Static(text, classes="empty")
