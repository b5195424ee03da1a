"""NO_COLOR: nothing has a colour, and what stood out by its background still stands out."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlbundle_tui.colourless import Colourless
from rich.segment import Segment
from rich.style import Style
from run_homes import RunHome, drive, press
from textual.color import Color
from tui_pilot import lines_of


def colours(style: Style) -> list[object]:
    """What a style has but the terminal's own."""
    return [one for one in (style.color, style.bgcolor) if one is not None and not one.is_default]


@pytest.mark.parametrize("theme", ["dark", "ansi"])
def test_the_row_under_the_cursor_is_in_reverse_and_nothing_has_a_colour(
    home: Path, monkeypatch: pytest.MonkeyPatch, theme: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    runs = RunHome(home)
    runs.add("first")
    runs.add("second")

    async def look(pilot) -> None:
        for key in ("down", "enter"):
            await press(pilot, key)
            rows = lines_of(pilot.app)
            assert [style for row in rows for _, style in row if colours(style)] == []
            if key == "down":
                reverse = [
                    text
                    for row in rows
                    for text, style in row
                    if style.reverse and "runs" not in text.lower()
                ]
                assert any("first" in text for text in reverse)
                assert not any("second" in text for text in reverse)

    drive(look, theme=theme)


def test_bars_are_not_turned_into_their_opposite() -> None:
    plain = Colourless(lambda: "#101010")
    style = Style.parse("green on #808080")
    bar, row = plain.apply([Segment("██▌  ", style), Segment("a row", style)], Color.parse("black"))
    assert [bool(one.style and one.style.reverse) for one in (bar, row)] == [False, True]
