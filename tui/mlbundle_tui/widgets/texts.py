"""Texts of others on the screen: nothing in them is markup, moves the cursor or takes more room than it is given."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from mlbundle.manifest.problems import printable

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
        table.add_row(Text(fit(key, key_width)), shown)
    return table
