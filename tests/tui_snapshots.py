"""Pictures of the UI as text: what each cell shows, and in which style, kept in files that people can read.

A file holds one screen at one size: its text, the styles that occur (a letter each, as they are in the dark theme and in
the light one), and line by line how many cells have which; `*3` stands before a line that comes three times.
`MLBUNDLE_TEST_WRITE_SNAPSHOTS=1` writes them anew.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from string import ascii_letters
from typing import Any

from rich.cells import cell_len
from rich.style import Style
from tui_pilot import lines_of, text_of

FOLDER = Path(__file__).parent / "tui" / "snapshots"
WRITE = bool(os.environ.get("MLBUNDLE_TEST_WRITE_SNAPSHOTS"))
THEMES = ("dark", "light")


class Snapshots:
    """Compares what was seen with the files, all of it before it complains.

    `svg_folder` takes in pictures of what was seen, to be looked at where something differs.
    """

    def __init__(self, svg_folder: Path) -> None:
        self._svg_folder = svg_folder
        self._texts: dict[str, dict[str, str]] = {}
        self._styles: dict[str, dict[str, list[list[str]]]] = {}

    def see(self, app: Any, name: str, theme: str) -> None:
        """Take in a screen."""
        text = text_of(app)
        self._texts.setdefault(name, {})[theme] = text
        self._styles.setdefault(name, {})[theme] = cell_styles(app)
        kept = _kept(name)
        if WRITE or not kept.startswith(text + "\n==="):
            (self._svg_folder / f"{name}-{theme}.svg").write_text(app.export_screenshot())

    def compare(self) -> None:
        """Compare, or write. Raises AssertionError with the differences."""
        wrong = []
        for name, texts in self._texts.items():
            dark, light = (texts[theme] for theme in THEMES)
            assert dark == light, f"{name}: another text in another theme\n{_difference(dark, light)}"
            styles = style_lines(*(self._styles[name][theme] for theme in THEMES))
            seen = "\n".join([dark, "===", *styles]) + "\n"
            if WRITE:
                FOLDER.mkdir(exist_ok=True)
                (FOLDER / f"{name}.txt").write_text(seen)
            elif seen != _kept(name):
                wrong.append(f"{name}, see {self._svg_folder}\n{_difference(_kept(name), seen)}")
        assert not wrong, "\n\n".join(wrong)


def cell_styles(app: Any) -> list[list[str]]:
    """Return for each line the style of each cell, in words."""
    words: dict[Style, str] = {}
    lines = []
    for row in lines_of(app):
        line: list[str] = []
        for text, style in row:
            if style not in words:
                words[style] = _words(style)
            line += [words[style]] * cell_len(text)
        lines.append(line)
    return lines


def style_lines(dark: list[list[str]], light: list[list[str]]) -> Iterable[str]:
    """Return a line for each pair of styles, then those that say which cells have it."""
    letters: dict[tuple[str, str], str] = {}
    lines = []
    for pairs in (zip(one, other, strict=True) for one, other in zip(dark, light, strict=True)):
        groups = [(letters.setdefault(p, _letter(len(letters))), len(list(g))) for p, g in groupby(pairs)]
        lines.append(" ".join(f"{letter}{cells}" for letter, cells in groups))
    yield from (f"{letter} {one} / {other}" for (one, other), letter in letters.items())
    for line, same in groupby(lines):
        count = len(list(same))
        yield line if count == 1 else f"*{count} {line}"


def _words(style: Style) -> str:
    return str(style.without_color + Style(color=style.color, bgcolor=style.bgcolor)).partition(" link ")[0]


def _letter(number: int) -> str:
    base = len(ascii_letters)
    return (
        ascii_letters[number] if number < base else _letter(number // base - 1) + ascii_letters[number % base]
    )


def _kept(name: str) -> str:
    path = FOLDER / f"{name}.txt"
    return path.read_text() if path.is_file() else ""


def _difference(before: str, after: str) -> str:
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), "kept", "seen", lineterm="", n=0)
    return "\n".join(list(diff)[:30])
