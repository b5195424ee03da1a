"""The help: what a screen is for, the keys that work on it now, and what signs and words mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.binding import Binding
from textual.containers import Container, VerticalScroll
from textual.widgets import Static

from mlbundle_tui import help_words, run_words
from mlbundle_tui.palette import COMMANDS
from mlbundle_tui.screens.dialogs import Dialog
from mlbundle_tui.widgets.texts import STATES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType
    from textual.screen import Screen
    from textual.widget import Widget

_EVERYWHERE = frozenset({"app", "section"})
_MOVING = frozenset({"table", "log", "field"})
_KEYS = 6
Line = tuple[str, str, str]
"""Keys, what they do, and the command that does the same."""


class Help(Dialog[None]):
    """The help of a screen, over it."""

    DEFAULT_CSS = """
    Help > #dialog { width: 100%; max-width: 160; height: auto; max-height: 100%; }
    Help #text { height: auto; max-height: 100%; scrollbar-size-vertical: 1; }
    Help #columns { height: auto; }
    Help #columns Static { width: 1fr; height: auto; }
    Help.-wide #columns { layout: horizontal; }
    Help.-wide #keys { padding-right: 3; }
    """
    BINDINGS: ClassVar = [
        Binding("escape,q,enter,question_mark,f1", "close", "Close", id="help.close"),
        Binding("up,k", "scroll(-1)", show=False, id="help.up"),
        Binding("down,j", "scroll(1)", show=False, id="help.down"),
        Binding("pageup", "scroll_page(-1)", show=False, id="help.page_up"),
        Binding("pagedown,space", "scroll_page(1)", show=False, id="help.page_down"),
        Binding("home,g", "scroll_to(False)", show=False, id="help.first"),
        Binding("end,G", "scroll_to(True)", show=False, id="help.last"),
    ]

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__("Help")
        self._purpose = help_words.PURPOSES.get(type(screen).__name__, "")
        self._runs_first = type(screen).__name__ != "BundlesSection"
        self._lines = key_lines(screen)

    def inside(self) -> Iterator[Widget]:
        """Yield keys and legend, beside one another where there is room."""
        columns = Container(
            Static(self._keys(), id="keys", markup=False),
            Static(_legend(runs_first=self._runs_first), id="legend", markup=False),
            id="columns",
        )
        yield VerticalScroll(Static(Text(self._purpose, style="bold")), columns, id="text")

    def on_mount(self) -> None:
        """Say in the frame how it is left."""
        self.query_one("#dialog").border_subtitle = Text("↑ ↓ scroll, esc closes")

    def action_scroll(self, lines: int) -> None:
        """Move the text by lines."""
        self.query_one("#text", VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_scroll_page(self, direction: int) -> None:
        """Move the text by what is in sight."""
        text = self.query_one("#text", VerticalScroll)
        text.scroll_relative(y=direction * max(1, text.size.height - 1), animate=False)

    def action_scroll_to(self, end: bool) -> None:
        """Go to the beginning or the end of the text."""
        text = self.query_one("#text", VerticalScroll)
        text.scroll_to(y=text.max_scroll_y if end else 0, animate=False)

    def _keys(self) -> RenderableType:
        titles = {"here": "on this screen", "moving": "in the list or field", "everywhere": "everywhere"}
        parts = [part for group, title in titles.items() for part in _group(title, self._lines[group])]
        return Group(*parts)


def key_lines(screen: Screen[Any]) -> dict[str, list[Line]]:
    """Return the keys that work on a screen now: its own, those of what has the focus, and those of the app."""
    found: dict[str, dict[str, tuple[list[str], str, str]]] = {"here": {}, "moving": {}, "everywhere": {}}
    for active in screen.active_bindings.values():
        binding = active.binding
        if not binding.id or not binding.description:
            continue
        kind = binding.id.partition(".")[0]
        group = "everywhere" if kind in _EVERYWHERE else "moving" if kind in _MOVING else "here"
        command = COMMANDS.get(binding.id, "")
        keys, _, _ = found[group].setdefault(binding.id, ([], binding.description, command))
        keys.append(screen.app.get_key_display(binding))
    palette = screen.app.get_key_display(Binding(screen.app.COMMAND_PALETTE_BINDING, ""))
    lines = {
        group: [(" ".join(keys), what, command) for keys, what, command in of.values()]
        for group, of in found.items()
    }
    lines["everywhere"].append((palette, "All that can be done here, and themes", ""))
    return lines


def _group(title: str, lines: Sequence[Line]) -> list[RenderableType]:
    if not lines:
        return []
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True, min_width=_KEYS)
    table.add_column(overflow="fold")
    for keys, what, command in lines:
        text = Text(what)
        if command:
            text.append(f"  {command}", style="dim")
        table.add_row(Text(keys), text)
    return [Text(f"\n{title}", style="bold underline"), table]


def _legend(*, runs_first: bool) -> RenderableType:
    runs = [(*run_words.SIGNS[state], state, text) for state, text in help_words.RUN_STATES.items()]
    bundles = [(*STATES[state], state, text) for state, text in help_words.BUNDLE_STATES.items()]
    parts: list[RenderableType] = [
        Text('\nbundles: the column "here"', style="bold underline"),
        _signs([*bundles, ("·", "dim", *help_words.NOT_LOOKED_AT)]),
        Text('\nruns: the column "status"', style="bold underline"),
        _signs([(sign, "", state, text) for sign, _, state, text in runs]),
    ]
    return Group(
        *(parts[2:] + parts[:2] if runs_first else parts),
        Text("\nwords", style="bold underline"),
        _words(help_words.WORDS),
        Text("\nother keys", style="bold underline"),
        Text(help_words.KEYS),
    )


def _signs(rows: Sequence[tuple[str, str, str, str]]) -> Table:
    """Return lines of a sign in its colour, the word beside it, and what that means."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for sign, style, word, text in rows:
        line = Text(word)
        line.append(f": {text}", style="dim")
        table.add_row(Text(sign, style=style), line)
    return table


def _words(words: Mapping[str, str]) -> Text:
    text = Text()
    for word, meaning in words.items():
        text.append(word)
        text.append(f": {meaning}\n", style="dim")
    text.rstrip()
    return text
