"""Bars and plots, dot by dot; texts in exactly the cells they have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlbundle_tui.run_tabs.latency import histogram
from mlbundle_tui.widgets.plot import bar, columns, dots, folded
from mlbundle_tui.widgets.row_table import fit
from mlbundle_tui.widgets.texts import fold_words
from rich.cells import cell_len
from rich.text import Text

from mlbundle.runs.latencies import Bar


def test_a_line_is_drawn_from_corner_to_corner() -> None:
    flat = dots([(0, 0), (10, 0)], 4, 1, (0, 10, 0, 1))
    assert flat == ["⣀⣀⣀⣀"]
    assert dots([], 2, 1, (0, 1, 0, 1)) == ["  "]


def test_a_peak_of_one_point_is_seen() -> None:
    points = [(float(x), 1000.0 if x == 500 else 1.0) for x in range(1000)]
    lines = dots(points, 20, 4, (0, 999, 0, 1000))
    assert lines[0].strip() != ""
    assert all(line.strip() for line in lines)


def test_values_beyond_the_axes_stay_inside() -> None:
    lines = dots([(-5, -5), (0.5, 100), (9, 0.5)], 3, 2, (0, 1, 0, 1))
    assert [len(line) for line in lines] == [3, 3]


def test_bars_are_as_long_as_their_share() -> None:
    assert (bar(0, 8), bar(0.5, 8), bar(1, 8), bar(2, 8)) == ("", "████", "████████", "████████")
    assert bar(1e-9, 8) == "▏"
    assert columns([4, 0, 2], 2) == ["█  ", "█ █"]
    assert columns([1000, 1], 1) == ["█▁"]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200), st.integers(1, 120))
def test_values_fit_into_any_width_and_none_is_lost(values: list[int], width: int) -> None:
    found = folded(values, width)
    assert len(found) <= width
    assert sum(found) == sum(values)
    assert found[-1] == (values[-1] if width > 1 else found[-1])


@given(st.integers(1, 60), st.integers(4, 12), st.integers(1, 80))
def test_a_histogram_keeps_to_its_room(width: int, height: int, bars: int) -> None:
    found = [Bar(1000 * (number + 1), number) for number in range(bars)]
    lines = histogram(found, width, height).plain.split("\n")
    assert len(lines) == height
    assert max(map(cell_len, lines)) <= width
    assert bars == 1 or lines[-2].strip()


@given(st.text(max_size=60), st.integers(1, 20), st.booleans())
def test_any_text_takes_exactly_its_cells(text: str, width: int, right: bool) -> None:
    found = fit(text, width, right=right)
    assert cell_len(found) == width
    assert found.isprintable()


@pytest.mark.parametrize(
    ("text", "cut"), [("abcdef", "abc…"), ("ab", "ab  "), ("名前名前", "名 …"), ("a\tb\x1b", "a·b·")]
)
def test_long_texts_are_cut(text: str, cut: str) -> None:
    assert fit(text, 4) == cut


def test_long_words_are_broken_where_they_have_parts() -> None:
    def lines(text: str, width: int) -> list[str]:
        found = fold_words(Text(text), width).plain.split("\n")
        assert "".join(found) == text
        return found

    digits = "0123456789abcdef" * 4
    assert lines("/work/models/digits-cnn", 20) == ["/work/models/", "digits-cnn"]
    assert lines(f"sha256:{digits}", 40) == [f"sha256:{digits[:32]}", digits[32:]]
    assert lines(f"sha256:{digits}", 80) == [f"sha256:{digits}"]
    assert lines("a " + "b" * 9, 4) == ["a bbbb", "bbbb", "b"]
    assert lines("模型模型", 5) == ["模型", "模型"]
    assert max(map(cell_len, lines("名" * 3000 + digits + "-/:" * 100, 7))) <= 7
    assert lines("", 5) == [""]
    assert lines("模", 1) == ["模"]
