"""The application: five sections, the palette, themes, keys that can be changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding

from mlbundle_tui.screens.base import Section

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.screen import Screen

    from mlbundle_tui.context import Context

SECTIONS = ("bundles", "run", "runs", "compare", "machine")


class MlbundleApp(App[None]):
    """`mlbundle tui`. `keys` maps the id of a binding to the keys that it shall have."""

    TITLE = "mlbundle"
    CSS_PATH = "app.tcss"
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
        super().__init__(ansi_color=theme == "ansi" or None)
        self.context = context
        # While something is measured nothing on the screen may move by itself.
        self.animation_level = "none"
        self._chosen_theme = "textual-light" if theme == "light" else "textual-dark"
        self._keys = dict(keys or {})

    def on_mount(self) -> None:
        """Show the first section."""
        if not os.environ.get("NO_COLOR"):
            self.theme = self._chosen_theme
        self.set_keymap(self._keys)
        self.action_section("bundles")

    def action_section(self, name: str) -> None:
        """Go to a section; it is made when it is first gone to."""
        if name not in self._modes_made:
            self.add_mode(name, lambda: self._section(name))
            self._modes_made.add(name)
        self.switch_mode(name)

    @property
    def _modes_made(self) -> set[str]:
        made: set[str] = self.__dict__.setdefault("_made", set())
        return made

    def _section(self, name: str) -> Screen[None]:
        return Section.make(name, self.context)
