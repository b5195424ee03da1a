"""Bars, and a plot of lines of braille dots: two by four to a character, redrawn in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text
from textual.widget import Widget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_RISING = " ▁▂▃▄▅▆▇█"
# Bits of the dots of a braille character, by column and row from above (Unicode 2800).
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_LEAST_PLOT = 10

Point = tuple[float, float]


def bar(share: float, width: int) -> str:
    """Return a bar of up to `width` characters for a share of 0 to 1; what is more than nothing shows."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def columns(values: Sequence[float], height: int) -> list[str]:
    """Return a bar chart as lines from above, one character a value; what is more than nothing shows."""
    most = max(values, default=0) or 1
    levels = [max(1, round(value / most * height * 8)) if value > 0 else 0 for value in values]
    return [
        "".join(_RISING[max(0, min(8, level - 8 * row))] for level in levels)
        for row in range(height - 1, -1, -1)
    ]


def folded(values: Sequence[float], most: int) -> list[float]:
    """Return at most `most` values, neighbours added up where there are more; the last stays by itself."""
    if len(values) <= most:
        return list(values)
    if most < 2:
        return [sum(values)]
    before, last = values[:-1], values[-1]
    each = -(-len(before) // (most - 1))
    return [*(sum(before[start : start + each]) for start in range(0, len(before), each)), last]


def dots(
    points: Sequence[Point], width: int, height: int, bounds: tuple[float, float, float, float]
) -> list[str]:
    """Return a line through points as lines of braille; `bounds` are least and most x, least and most y.

    Dots are joined from column to column, so no peak is lost.
    """
    x0, x1, y0, y1 = bounds
    wide, high = 2 * width - 1, 4 * height - 1
    cells = [[0] * width for _ in range(height)]
    spans: dict[int, tuple[int, int]] = {}
    last: tuple[int, int] | None = None
    for x, y in points:
        column = round((x - x0) / ((x1 - x0) or 1) * wide)
        row = high - round((y - y0) / ((y1 - y0) or 1) * high)
        here = (max(0, min(wide, column)), max(0, min(high, row)))
        before = here[1] if last is None else last[1]
        for c, r in _between(last, here):
            low, most = spans.get(c, (r, r))
            spans[c] = (min(low, r, before), max(most, r, before))
            before = r
        last = here
    for c, (low, most) in spans.items():
        for r in range(low, most + 1):
            cells[r // 4][c // 2] |= _DOTS[c % 2][r % 4]
    return ["".join(chr(0x2800 + bits) if bits else " " for bits in line) for line in cells]


def _between(last: tuple[int, int] | None, here: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots from the last point to this one, one in each column."""
    if last is None or here[0] <= last[0]:
        return [here]
    steps = here[0] - last[0]
    return [(last[0] + i, last[1] + round((here[1] - last[1]) * i / steps)) for i in range(1, steps + 1)]


@dataclass(frozen=True)
class Series:
    """A line of a plot: its name, the style of it, and its points in order of x."""

    name: str
    style: str
    points: Sequence[Point]


class Plot(Widget):
    """Lines over one axis each way, with the least and the most at both."""

    DEFAULT_CSS = "Plot { height: 1fr; width: 1fr; min-height: 4; }"

    def __init__(
        self,
        title: str = "",
        *,
        y_text: Callable[[float], str] = "{:g}".format,
        x_text: Callable[[float], str] = "{:g}".format,
        from_zero: bool = True,
    ) -> None:
        super().__init__()
        self._title, self._y_text, self._x_text, self._from_zero = title, y_text, x_text, from_zero
        self._series: Sequence[Series] = ()
        self._most: float | None = None

    def set_series(self, series: Sequence[Series], *, most: float | None = None) -> None:
        """Show other lines; `most` is where the y axis ends, so that several plots have one scale."""
        self._series, self._most = series, most
        self.refresh()

    def render(self) -> Text:
        """Return the plot in the room there is."""
        width, height = self.size.width, self.size.height
        points = [point for series in self._series for point in series.points]
        title = self._titled(width)
        if not points or height < 4:
            return title
        x0, x1 = min(0.0, *(x for x, _ in points)), max(x for x, _ in points)
        y0 = 0.0 if self._from_zero else min(y for _, y in points)
        y1 = self._most if self._most is not None else max(y for _, y in points)
        labels = [self._y_text(y1), self._y_text((y0 + y1) / 2), self._y_text(y0)]
        room = max(map(len, labels))
        if width - room - 2 < _LEAST_PLOT:
            return title
        rows, inner = height - 2, width - room - 2
        lines = self._lines(inner, rows, (x0, x1, y0, y1))
        text = title
        for number, line in enumerate(lines):
            label = {0: labels[0], rows // 2: labels[1] if rows >= 5 else "", rows - 1: labels[2]}.get(
                number, ""
            )
            text.append(f"\n{label:>{room}} ", style="dim")
            text.append("│" if not label else "┤", style="dim")
            text.append_text(line)
        left, right = self._x_text(x0), self._x_text(x1)
        text.append(f"\n{' ' * (room + 2)}{left}{right:>{max(1, inner - len(left))}}", style="dim")
        return text

    def _titled(self, width: int) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(self._title, style="bold")
        for series in self._series:
            if series.name:
                text.append("  ━ ", style=series.style)
                text.append(series.name, style="dim")
        text.truncate(width, overflow="ellipsis")
        return text

    def _lines(self, width: int, height: int, bounds: tuple[float, float, float, float]) -> list[Text]:
        """Return the lines with all series in them; a later one covers an earlier one."""
        found = [Text(" " * width) for _ in range(height)]
        for series in self._series:
            for number, line in enumerate(dots(series.points, width, height, bounds)):
                text = found[number].plain
                merged = "".join(new if new != " " else old for new, old in zip(line, text, strict=True))
                replaced = Text(merged, spans=list(found[number].spans))
                for place, character in enumerate(line):
                    if character != " ":
                        replaced.stylize(series.style, place, place + 1)
                found[number] = replaced
        return found
