"""NO_COLOR (https://no-color.org): nothing has a colour, not even a shade of grey.

What stood out by its background alone (the row under the cursor, what was found, a button, the thumb of a scroll bar)
is shown in reverse; bold, dim and underlined stay as they are.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter, Monochrome, NoColor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# By how much brightness (of 0 to 1) a background differs that is there to be seen: those of panes differ by less.
_STANDS_OUT = 0.12
# Characters that fill a part of their cell: in reverse they would say the opposite.
_FILLING = frozenset("▁▂▃▄▅▆▇█▉▊▋▌▍▎▏▐▔▕")


def wanted() -> bool:
    """Return whether the user wants no colours: NO_COLOR is set, and not empty."""
    return bool(os.environ.get("NO_COLOR"))


def without_colours(filters: Sequence[LineFilter], background: Callable[[], str]) -> list[LineFilter]:
    """Return filters that leave no colour, in the place of Textual's, which leaves greys."""
    kept = [one for one in filters if not isinstance(one, Monochrome | NoColor)]
    return [*kept, Colourless(background)]


class Colourless(LineFilter):
    """Takes all colours away; `background` says what the screen's own background is."""

    def __init__(self, background: Callable[[], str]) -> None:
        super().__init__()
        self._background = background

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments in no colours."""
        base = Color.parse(self._background()).brightness
        return [
            Segment(
                text, None if style is None else _plain(style, base, not _FILLING.isdisjoint(text)), control
            )
            for text, style, control in segments
        ]


@lru_cache(1024)
def _plain(style: Style, base: float, fills: bool) -> Style:
    found = style + NoColor.DEFAULT_COLORS
    if fills or style.bgcolor is None or style.bgcolor.is_default:
        return found
    differs = abs(Color.from_rich_color(style.bgcolor).brightness - base)
    return found + Style(reverse=not style.reverse) if differs >= _STANDS_OUT else found
