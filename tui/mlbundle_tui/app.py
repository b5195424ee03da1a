"""The application: five sections, the palette, themes, keys that can be changed, and what goes wrong."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import App
from textual.binding import Binding
from textual.widgets import Input

from mlbundle.errors import MlbundleError, internal_error
from mlbundle_tui import colourless
from mlbundle_tui.background import in_background
from mlbundle_tui.harmless import Harmless, Together
from mlbundle_tui.run_watch import RunWatch
from mlbundle_tui.screens.base import Section
from mlbundle_tui.themes import DARK, LIGHT, THEMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from textual.app import SystemCommand
    from textual.events import DescendantFocus
    from textual.filter import LineFilter
    from textual.screen import Screen
    from textual.timer import Timer

    from mlbundle.runs.changes import RunsSeen
    from mlbundle.runs.network import Network
    from mlbundle_tui.context import Context

_REPAINT_S = 0.3
_FOLDER_S = 10.0
_HARMLESS = Harmless()
SECTIONS = ("bundles", "run", "runs", "compare", "machine")


class MlbundleApp(App[None]):
    """`mlbundle tui`. `keys` maps the id of a binding to the keys that it shall have, checked by `check_keys`.

    `failure` is what ended it, if anything did; `chosen` is the bundle that the section Run takes next,
    `chosen_network` how its registry is reached, `offered` both for a form that has no bundle; `going` are the ids of
    the runs that go on, newest first, `runs_seen` what was last seen of all runs; `problem` is what is wrong
    everywhere, empty for nothing.
    """

    TITLE = "mlbundle"
    CSS_PATH = "app.tcss"
    DEFAULT_MODE = "bundles"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - Textual declares it so
        (0, "-narrow"),
        (80, "-normal"),
        (120, "-wide"),
    ]
    BINDINGS: ClassVar = [
        Binding("1", "section('bundles')", "Bundles", show=False, id="section.bundles"),
        Binding("2", "section('run')", "Run", show=False, id="section.run"),
        Binding("3", "section('runs')", "Runs", show=False, id="section.runs"),
        Binding("4", "section('compare')", "Compare", show=False, id="section.compare"),
        Binding("5", "section('machine')", "Machine", show=False, id="section.machine"),
        Binding("q", "quit", "Quit", id="app.quit"),
    ]

    def __init__(
        self, context: Context, *, keys: Mapping[str, str] | None = None, theme: str | None = None
    ) -> None:
        super().__init__()
        self._together = Together([])
        self.context = context
        self.failure: MlbundleError | None = None
        self.chosen: str = ""
        self.chosen_network: Network | None = None
        self.offered: tuple[str, Network | None] = "", None
        self.going: tuple[str, ...] = ()
        self.runs_seen: RunsSeen | None = None
        self.problem = ""
        self._problems: dict[str, str] = {}
        # While something is measured nothing on the screen may move by itself.
        self.animation_level = "none"
        for own in (DARK, LIGHT):
            self.register_theme(own)
        self.theme = THEMES[theme or "dark"]
        if colourless.wanted():
            # In the terminal's own colours it could not be told what stands out.
            self.theme = DARK.name
            self._filters = colourless.without_colours(
                self._filters, lambda: self.current_theme.background or "black"
            )
        self._keys = dict(keys or {})
        self._made = {self.DEFAULT_MODE}
        self._repaint: Timer | None = None
        self._at_once = False

    def on_mount(self) -> None:
        """Begin to look for what changes."""
        self.set_keymap(self._keys)
        self._run_watch = RunWatch(self, self.context.settings, self._runs_changed)
        if not self.context.readonly:
            self.call_after_refresh(self._look_at_folder)
            self.set_interval(_FOLDER_S, self._look_at_folder)

    def _look_at_folder(self) -> None:
        self.run_worker(cast("Any", self._check_folder), group="folder", exclusive=True)

    def _runs_changed(self, seen: RunsSeen) -> None:
        self.runs_seen, self.going = seen, seen.going
        if isinstance(self.screen, Section):
            self.screen.runs_changed()

    def say_problem(self, what: str, text: str) -> None:
        """Say above every section what is wrong with something; empty when nothing is any more."""
        self._problems[what] = text
        problem = "; ".join(filter(None, self._problems.values()))
        if problem != self.problem:
            self.problem = problem
            if isinstance(self.screen, Section):
                self.screen.look_above()

    async def _check_folder(self) -> None:
        """Say above every section where nothing can be kept, and look now and then whether that has changed."""
        from mlbundle.runs.data_folder import folder_problem

        problem = await in_background(folder_problem, self.context.settings)
        self.say_problem("folder", problem)
        if self.problem and not problem and isinstance(self.screen, Section):
            self.screen.runs_changed()  # what was wrong may have been mended, too

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return what every line goes through before it is drawn."""
        wanted = [*super().get_line_filters(), _HARMLESS]
        if self._together.filters != wanted:
            self._together = Together(wanted)
        return [self._together]

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Let no cursor blink."""
        if isinstance(event.widget, Input):
            event.widget.cursor_blink = False

    def action_section(self, name: str) -> None:
        """Go to a section; it is made when it is first gone to."""
        known = name in self._made
        if not known:
            self.add_mode(name, lambda: self._section(name))
            self._made.add(name)
        if name == "run" and isinstance(self.screen, Section):
            self.screen.offer()
        self._at_once = known
        self.switch_mode(name)
        self._at_once = False
        if not known:
            self._draw_soon()

    def delay_update(self, delay: float = 0.05) -> None:
        """Draw nothing for a moment, which hides how a screen is made; one that is there is drawn at once."""
        if not self._at_once:
            super().delay_update(delay)

    def push_screen(self, *arguments: Any, **named: Any) -> Any:
        """Put a screen above the one that is shown."""
        answer = super().push_screen(*arguments, **named)
        self._draw_soon()
        return answer

    def _draw_soon(self) -> None:
        # Screens that follow one another faster than they are drawn leave the last one undrawn, though it has the keys.
        if self._repaint is not None:
            self._repaint.stop()
        self._repaint = self.set_timer(_REPAINT_S, self._draw_whole)

    def _draw_whole(self) -> None:
        if self._batch_count:
            self._repaint = self.set_timer(_REPAINT_S, self._draw_whole)
        else:
            self.screen.refresh(layout=True)

    def action_command_palette(self) -> None:
        """Open the palette; a box that waits for an answer is answered first."""
        from textual.screen import ModalScreen

        if not isinstance(self.screen, ModalScreen):
            super().action_command_palette()

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Return what the palette offers on a screen."""
        from mlbundle_tui.palette import palette_commands

        return palette_commands(self, screen)

    async def run_action(self, *arguments: Any, **named: Any) -> bool:
        """Do what a key asks for; an error of ours is shown, and the app goes on."""
        try:
            return await super().run_action(*arguments, **named)
        except (MlbundleError, OSError, sqlite3.Error) as error:
            self._show(error)
            return True

    def _handle_exception(self, error: Exception) -> None:
        """Show what a worker met; whatever else goes wrong ends the app, and is told as every error of ours."""
        cause = getattr(error, "error", error)  # what a worker met is wrapped
        if cause is not error and isinstance(cause, MlbundleError | OSError | sqlite3.Error):
            self._show(cause)
            return
        self.failure = _typed(cause)
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """End without the traceback of Textual: `failure` is told by who started the app."""
        self._close_messages_no_wait()

    def _show(self, error: Exception) -> None:
        from mlbundle_tui.screens.dialogs import show_error

        show_error(self, _typed(error))

    def get_default_screen(self) -> Screen[None]:
        """Return the first section: an empty screen before it would be made, styled and laid out for nothing."""
        # Only what is not a mode yet begins with this screen; to come back to it, it must be one.
        self.add_mode(self.DEFAULT_MODE, self.get_default_screen)
        return self._section(self.DEFAULT_MODE)

    def _section(self, name: str) -> Screen[None]:
        section = Section.make(name, self.context)
        # It is styled as it is made, by the theme that there is: all of the CSS need not be read anew for that.
        section._css_update_count = self._css_update_count
        return section


def _typed(error: Exception) -> MlbundleError:
    if isinstance(error, MlbundleError):
        return error
    if isinstance(error, OSError):
        from mlbundle.errors import StorageFailed

        where = str(error.filename) if error.filename else None
        return StorageFailed(error.strerror or str(error), where=where, hint="see `mlbundle doctor`")
    failure = internal_error(error)
    failure.__cause__ = error
    return failure
