"""Texts of others on the screen: nothing in them is markup, moves the cursor or takes more room than it is given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from mlbundle.manifest.problems import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

STATES = {
    "ready": ("●", "green"),
    "environment missing": ("◐", "yellow"),
    "needs --trust": ("◐", "yellow"),
    "image missing": ("○", "yellow"),
    "not here": ("↓", "cyan"),
    "assets missing": ("✗", "red"),
    "unusable": ("✗", "red"),
}
"""A sign and a colour for each state of a bundle; the word stands beside them."""


def fit(text: str, width: int, *, middle: bool = False) -> str:
    """Return a text of at most `width` cells on one line, cut with an ellipsis; wide characters count twice.

    `middle` cuts in the middle: the ends of digests and paths are worth more.
    """
    text = printable(text.replace("\n", " "))
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    if not middle:
        return set_cell_size(text, width - 1).rstrip() + "…"
    left = (width - 1) // 2
    tail = text
    while cell_len(tail) > width - 1 - left:
        tail = tail[1:]
    return set_cell_size(text, left).rstrip() + "…" + tail


# Behind what a long word is broken: rather behind the first than behind the second.
_BREAKS = ("/:@#?&=,;", "-_.")
_HEX = re.compile("[0-9a-f]{16,}")
_HEX_GROUP = 8


class Folded:
    """A text whose words are broken only where they are longer than a line.

    Paths and addresses are broken behind a separator, digests into groups of eight digits.
    """

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield fold_words(self._text, options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._text)


def fold_words(text: Text, width: int) -> Text:
    """Return a text with line ends in the words that are longer than so many cells."""
    plain, places = text.plain, []
    # Nothing but characters without a width is longer than this and no longer than a line.
    most = 4 * width + 2 * _HEX_GROUP
    for word in re.finditer(r"\S+", plain):
        place = word.start()
        while width > 0 and (on_line := _fitting(plain[place : min(place + most, word.end())], width)):
            place += on_line
            places.append(place)
    return Text("\n").join(text.divide(places)) if places else text


def _fitting(word: str, width: int) -> int:
    """Return how many characters of a word that is longer than a line go on the line; 0 where all do."""
    head = (chop_cells(word, width) or [""])[0] or word[:1]
    if len(head) == len(word):
        return 0
    digits = next((found for found in _HEX.finditer(word) if found.start() < len(head) < found.end()), None)
    if digits is not None:
        groups = (len(head) - digits.start()) // _HEX_GROUP * _HEX_GROUP
        if digits.start() + groups:
            return digits.start() + groups
    for separators in _BREAKS:
        place = max(head.rfind(separator) for separator in separators) + 1
        if 2 * place > len(head):
            return place
    return len(head)


def state_text(state: str, *, width: int = 100) -> Text:
    """Return a state with its sign; nothing while it is not known."""
    if not state:
        return Text("… looking", style="dim")
    sign, colour = STATES.get(state, ("?", ""))
    text = Text(no_wrap=True)
    text.append(sign, style=colour)
    text.append(f" {fit(state, width - 2)}")
    return text


def pairs(rows: list[tuple[str, str | Text]], *, key_width: int = 10) -> Table:
    """Return lines of name and value; values may have several lines."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=key_width, style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in rows:
        shown = value if isinstance(value, Text) else Text("\n".join(map(printable, value.splitlines())))
        table.add_row(Text(fit(key, key_width)), Folded(shown))
    return table
