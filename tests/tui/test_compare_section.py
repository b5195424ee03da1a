"""The section Compare: what differed first, then numbers; the runs that were marked, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlbundle_tui.marks import marked_runs
from run_homes import NARROW, WIDE, RunHome, drive, line_with, press, shown
from tui_pilot import until

from mlbundle.config import load_settings
from mlbundle.runs.catalog import remove_run


@pytest.fixture
def runs(home: Path) -> RunHome:
    return RunHome(home)


def test_without_marks_it_says_what_to_press(runs: RunHome) -> None:
    runs.add()

    async def look(pilot) -> None:
        await press(pilot, "4")
        assert "press 3 for the runs" in shown(pilot)
        await press(pilot, "a", "b", "u", "f5", "escape")
        assert pilot.app.screen.name_of_section == "runs"
        await press(pilot, "space", "4")
        assert "press 3 for the runs" in shown(pilot)

    drive(look)


def test_what_differed_comes_before_the_numbers(runs: RunHome) -> None:
    slow = runs.add(mean_ns=30_000.0, framework={"name": "torch", "version": "2.0", "variant": "torch"})
    fast = runs.add(mean_ns=10_000.0)

    async def look(pilot) -> None:
        await press(pilot, "space", "space", "m")
        await until(pilot, lambda: "numbers" in shown(pilot))
        text = shown(pilot)
        assert text.index("what differed") < text.index("2.0") < text.index("numbers") < text.index("x3.00")
        assert "x1.00" in line_with(pilot, "x3.00")
        assert f"mlbundle compare {fast} {slow}" in text
        assert "reference" in line_with(pilot, fast)
        assert "A digits-cnn onnxruntime" in text
        assert any("\u2800" <= character <= "\u28ff" for character in text)
        await press(pilot, "b")
        await until(pilot, lambda: "x0.33" in shown(pilot))
        assert marked_runs(pilot.app) == [slow, fast]
        await pilot.resize_terminal(*NARROW)
        await press(pilot)
        assert "A digits-cnn torch" in shown(pilot)
        await press(pilot, "u")
        assert "press 3 for the runs" in shown(pilot)

    drive(look, size=WIDE)


def test_numbers_are_on_the_first_screen_and_what_does_not_compare_is_told_above(runs: RunHome) -> None:
    distributions = {f"package-{number}": "1.0" for number in range(40)}
    framework = {"name": "torch", "version": "2.0", "variant": "torch"}
    runs.add("another", mean_ns=30_000.0, framework=framework, environment={"distributions": distributions})
    runs.add()

    async def look(pilot) -> None:
        await press(pilot, "space", "space", "m")
        await until(pilot, lambda: "numbers" in shown(pilot))
        text = shown(pilot)
        told = text.index("B is of another model: another")
        assert told < text.index("what differed") < text.index("torch", text.index("what differed"))
        assert "30.0 us" in line_with(pilot, "trimmed mean")
        assert "x3.0" in line_with(pilot, "x1.00"), "models can be held against one another"
        assert "throughput" in text
        assert "more: a shows all" in text
        assert "package-1" not in text
        await press(pilot, "a")
        assert "a shows less" in shown(pilot)
        await press(pilot, "pagedown")
        assert "package-1" in shown(pilot)

    drive(look, size=(80, 24))


def test_runs_that_are_the_same_differ_in_nothing(runs: RunHome) -> None:
    for _ in range(3):
        runs.add()

    async def look(pilot) -> None:
        await press(pilot, "space", "space", "space", "m")
        await until(pilot, lambda: "nothing differed" in shown(pilot))
        assert line_with(pilot, "x1.00").count("x1.00") == 3

    drive(look, size=WIDE)


def test_other_scenarios_have_no_ratio_and_a_removed_run_is_told(runs: RunHome) -> None:
    first = runs.add(scenario={"name": "poisson", "options": {}})
    runs.add()

    async def look(pilot) -> None:
        await press(pilot, "space", "space", "m")
        await until(pilot, lambda: "no ratio for B: its scenario is poisson" in shown(pilot))
        remove_run(load_settings(), first)
        await press(pilot, "f5")
        await until(pilot, lambda: "no run is called" in shown(pilot))
        await press(pilot, "escape")
        assert marked_runs(pilot.app) == []

    drive(look, size=WIDE)
