"""Bars, and a plot of lines of braille dots: two by four to a character, redrawn in milliseconds."""

from __future__ import annotations

import math
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
_ABOVE, _UPRIGHT = "▲", "┊"

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


def axis_line(width: int, left: str, right: str, marks: Sequence[tuple[int, str]] = ()) -> str:
    """Return the line below a plot: its ends, and names at columns between them, as many as there is room for."""
    found = f"{left}{right:>{max(1, width - len(left))}}"[:width].ljust(width)
    for column, name in marks:
        text = f"{_UPRIGHT}{name}"
        before = found[max(0, column - 1) : column + len(text) + 1]
        if column + len(text) <= width and not before.strip():
            found = found[:column] + text + found[column + len(text) :]
    return found


def _column(x: float, x0: float, x1: float, width: int) -> int:
    """Return in which character of a line a place is."""
    return max(0, min(2 * width - 1, round((x - x0) / ((x1 - x0) or 1) * (2 * width - 1)))) // 2


def _filled(line: Text, places: set[int]) -> Text:
    """Return a line with uprights where it is blank."""
    return _with(line, {place for place in places if line.plain[place] == " "}, _UPRIGHT, "dim")


def _with(line: Text, places: set[int], character: str, style: str) -> Text:
    """Return a line with another character at some places."""
    if not places:
        return line
    plain = "".join(character if i in places else old for i, old in enumerate(line.plain))
    found = Text(plain, spans=list(line.spans))
    for place in places:
        found.stylize(style, place, place + 1)
    return found


@dataclass(frozen=True)
class Series:
    """A line of a plot: its name, the style of it, and its points in order of x."""

    name: str
    style: str
    points: Sequence[Point]


class Plot(Widget):
    """Lines over one axis each way, with the least and the most at both; what is above the axis is marked and told."""

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
        self._marks: Sequence[tuple[float, str]] = ()
        self._most: float | None = None
        self._log = False

    def set_series(
        self,
        series: Sequence[Series],
        *,
        most: float | None = None,
        marks: Sequence[tuple[float, str]] = (),
        log: bool = False,
    ) -> None:
        """Show other lines; `most` is where the y axis ends, so that several plots have one scale.

        `marks` are named places of the x axis, what is worth most first. `log`: equal steps of the y axis are equal
        ratios; of values that are not above 0 there is no line then.
        """
        self._series, self._most, self._marks, self._log = series, most, marks, log
        if log:
            self._series = [
                Series(one.name, one.style, [(x, math.log10(y)) for x, y in one.points if y > 0])
                for one in series
            ]
        self.refresh()

    def render(self) -> Text:
        """Return the plot in the room there is."""
        width, height = self.size.width, self.size.height
        points = [point for series in self._series for point in series.points]
        title = self._titled(width, points)
        if not points or height < 4:
            return title
        bounds = self._bounds(points)
        x0, x1, y0, y1 = bounds
        labels = [self._y_label(y) for y in (y1, (y0 + y1) / 2, y0)]
        room = max(map(len, labels))
        if width - room - 2 < _LEAST_PLOT:
            return title
        rows, inner = height - 2, width - room - 2
        lines = self._lines(inner, rows, bounds)
        text = title
        for number, line in enumerate(lines):
            label = {0: labels[0], rows // 2: labels[1] if rows >= 5 else "", rows - 1: labels[2]}.get(
                number, ""
            )
            text.append(f"\n{label:>{room}} ", style="dim")
            text.append("│" if not label else "┤", style="dim")
            text.append_text(line)
        places = [(_column(x, x0, x1, inner), name) for x, name in self._marks if x0 <= x <= x1]
        axis = axis_line(inner, self._x_text(x0), self._x_text(x1), places)
        text.append(f"\n{' ' * (room + 2)}{axis}", style="dim")
        return text

    def _bounds(self, points: Sequence[Point]) -> tuple[float, float, float, float]:
        """Return least and most x, least and most y, of a logarithmic axis as powers of ten."""
        least, most = min(y for _, y in points), max(y for _, y in points)
        if self._log:
            return min(0.0, *(x for x, _ in points)), max(x for x, _ in points), least, max(most, least + 0.1)
        y1 = self._most if self._most is not None else most
        y0 = 0.0 if self._from_zero else least
        return min(0.0, *(x for x, _ in points)), max(x for x, _ in points), y0, y1

    def _y_label(self, y: float) -> str:
        return self._y_text(10**y if self._log else y)

    def _titled(self, width: int, points: Sequence[Point]) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(self._title, style="bold")
        text.append(", in equal ratios" if self._log else "", style="dim")
        most = max((y for _, y in points), default=0.0)
        if points and most > self._bounds(points)[3]:
            text.append(f"  {_ABOVE} up to {self._y_label(most)}", style="bold yellow")
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
        x0, x1, _, y1 = bounds
        marked = {_column(x, x0, x1, width) for x, _ in self._marks if x0 < x <= x1}
        found = [_filled(line, marked) for line in found]
        above = {_column(x, x0, x1, width) for series in self._series for x, y in series.points if y > y1}
        found[0] = _with(found[0], above, _ABOVE, "bold yellow")
        return found
