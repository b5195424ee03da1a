"""How rows are laid out as text: aligned columns, and what gives way on a terminal that is too narrow for them.

Nothing is broken inside a word: digests are shortened, long texts go on below at a space, columns that say the same in
every row are told in a line, and what still does not fit becomes a block for each row.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_GAP = "  "
_DIGEST = re.compile(r"(?<![0-9a-zA-Z])([0-9a-f]{12})[0-9a-f]{52}(?![0-9a-zA-Z])")
# A column of texts longer than this may go on below; what is shorter is read at a glance and stays in one line.
_PROSE = 24
_LEAST_PROSE = 14
# A table of several rows that would become blocks may have shorter texts in two lines, and narrower columns.
_SHORT_PROSE, _LEAST_SHORT_PROSE = 8, 6

Cells = list[list[str]]


@dataclass(frozen=True)
class Layout:
    """Lines of text; the first `headers` of them are names of columns. Blocks have none."""

    lines: list[str]
    headers: int = 1


def lay_out(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    spare: Sequence[str] = (),
) -> Layout:
    """Return a table as text; `width` in cells of a terminal, None where nobody has to make do with less.

    `spare` are columns that a narrow table can do without, the first to go first; blocks have them again.
    """
    header, cells = list(columns), [list(row) for row in rows]
    if width is None or _total(_widths(header, cells)) <= width:
        return Layout(_aligned(header, cells, _widths(header, cells)))
    cells = [[shorten_digests(cell) for cell in row] for row in cells]
    fitting = _fitted(header, cells, width)
    if fitting is not None:
        return Layout(fitting)
    if len(header) == 2:
        return Layout(_open_ended(header, cells, width))
    header, cells, same = _without_same(header, cells)
    told = ["", *wrapped("the same in every row: " + ", ".join(same), width)] if same else []
    fitting = _fitted(header, cells, width) if len(header) > 1 else None
    if fitting is None:
        fitting = _without_spare(header, cells, width, [name for name in spare if name in header])
    if fitting is None and _total(_widths(header, cells)[:-1]) <= width // 2:
        fitting = _open_ended(header, cells, width)
    if fitting is None and len(cells) > 1:
        spared = [name for name in spare if name in header]
        fitting = _fitted(header, cells, width, short=True) or _without_spare(
            header, cells, width, spared, short=True
        )
    if fitting is not None:
        return Layout([*fitting, *told])
    return Layout([*_blocks(header, cells, width), *told], headers=0)


def shorten_digests(text: str) -> str:
    """Return 12 digits of a sha256 that stands alone; one amid words may be part of a command, and stays."""
    return text if " " in text else _DIGEST.sub(r"\1…", text)


def cell_width(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _fitted(header: list[str], cells: Cells, width: int, *, short: bool = False) -> list[str] | None:
    """Return a table no wider than `width`, with long texts going on below; None where there is no such table.

    With `short`, texts of two words may do so too.
    """
    widths = _widths(header, cells)
    spare = width - _total(widths)
    if spare >= 0:
        return _aligned(header, cells, widths)
    prose, narrowest = (_SHORT_PROSE, _LEAST_SHORT_PROSE) if short else (_PROSE, _LEAST_PROSE)
    least = [
        _least(header, cells, i, narrowest) if _is_prose(cells, i, prose) else widths[i]
        for i in range(len(header))
    ]
    if _total(least) > width:
        return None
    room = width - _total(least)
    wanted = [natural - narrow for natural, narrow in zip(widths, least, strict=True)]
    for i, want in enumerate(wanted):
        # Each takes its share of what is left by how much it lacks.
        share = room * want // max(1, sum(wanted[i:]))
        least[i] += share
        room -= share
    return _aligned(header, cells, least)


def _is_prose(cells: Cells, column: int, prose: int) -> bool:
    return any(" " in row[column] and cell_width(row[column]) > prose for row in cells)


def _least(header: list[str], cells: Cells, column: int, narrowest: int) -> int:
    words = [word for row in cells for word in row[column].split(" ")]
    return max(narrowest, cell_width(header[column]), *(cell_width(word) for word in words))


def _open_ended(header: list[str], cells: Cells, width: int) -> list[str]:
    """Lay out a table whose last column takes what is left; a long word in it runs over the edge, whole."""
    widths = _widths(header, cells)
    return _aligned(header, cells, [*widths[:-1], max(_LEAST_PROSE, width - _total([*widths[:-1], 0]))])


def _without_same(header: list[str], cells: Cells) -> tuple[list[str], Cells, list[str]]:
    """Return the table without the columns that hold one value, and these as texts; the first column stays."""
    if len(cells) < 2:
        return header, cells, []
    same = [i for i in range(1, len(header)) if len({row[i] for row in cells}) == 1]
    kept = [i for i in range(len(header)) if i not in same]
    told = [f"{header[i]} {cells[0][i]}" for i in same if cells[0][i]]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in cells], told


def _without_spare(
    header: list[str], cells: Cells, width: int, spare: list[str], *, short: bool = False
) -> list[str] | None:
    """Return a table without as few of the spare columns as will do, and a line that names them, or None."""
    for count in range(1, len(spare) + 1):
        kept = [i for i, name in enumerate(header) if name not in spare[:count]]
        left = [[row[i] for i in kept] for row in cells]
        fitting = _fitted([header[i] for i in kept], left, width, short=short)
        if fitting is not None:
            told = f"left out for want of room: {', '.join(spare[:count])}"
            return [*fitting, "", *wrapped(told, width)]
    return None


def _blocks(header: list[str], cells: Cells, width: int) -> list[str]:
    """Return a block for each row: the names of its columns, and what it holds in them."""
    named = max(cell_width(name) for name in header)
    lines: list[str] = []
    for row in cells:
        pairs = [[name, cell] for name, cell in zip(header, row, strict=True) if cell]
        block = _aligned([], pairs, [named, max(_LEAST_PROSE, width - named - len(_GAP))])
        lines += ["", *block] if lines else block
    return lines


def _aligned(header: list[str], cells: Cells, widths: list[int]) -> list[str]:
    lines: list[str] = []
    for row in [header, *cells] if header else cells:
        parts = [wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        for number in range(max(len(part) for part in parts)):
            texts = [part[number] if number < len(part) else "" for part in parts]
            padded = [
                text + " " * (width - cell_width(text)) for text, width in zip(texts, widths, strict=True)
            ]
            lines.append(_GAP.join(padded).rstrip())
    return lines


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines no wider than `width`, broken at spaces alone."""
    if cell_width(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and cell_width(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _widths(header: list[str], cells: Cells) -> list[int]:
    return [max(cell_width(row[i]) for row in [header, *cells]) for i in range(len(header))]


def _total(widths: list[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)
