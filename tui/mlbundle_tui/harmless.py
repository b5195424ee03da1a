"""What every line goes through last: whatever a name or a log holds, nothing that is drawn is a command to it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.filter import LineFilter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.color import Color

# Control characters of both kinds, and those that turn the direction of what follows. None of them takes a cell.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Harmless(LineFilter):
    """Leaves out what a terminal would obey instead of showing it."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return segments as wide as these, without it."""
        if not any(_OBEYED.search(segment.text) for segment in segments):
            return segments
        return [Segment(_OBEYED.sub("", text), style, control) for text, style, control in segments]


class Together(LineFilter):
    """Several filters as one: of each line one result is kept, not one for each."""

    def __init__(self, filters: Sequence[LineFilter]) -> None:
        super().__init__()
        self.filters = filters

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return what is left when the segments went through all of them."""
        for one in self.filters:
            segments = one.apply(segments, background)
        return segments
