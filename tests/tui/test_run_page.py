"""The page of a run: every tab, with the keys of a user."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from mlbundle_tui.screens.run_page import TABS
from mlbundle_tui.widgets.log_view import LogView
from run_homes import GOLDEN, NARROW, NORMAL, WIDE, RunHome, drive, line_with, press, shown
from tui_pilot import until

LAYERS = {"Conv0": 4000, "Relu0": 500, "Conv1": 3000, "Gemm0": 2500}
QUICK_TAB = "right_square_bracket"


@pytest.fixture
def runs(home: Path) -> RunHome:
    return RunHome(home)


def test_the_verdict_comes_first_then_the_numbers_then_what_ran(runs: RunHome) -> None:
    reasons = ["5 queries, at least 64 are needed for a 90th percentile"]
    run_id = runs.add("wrong", validity={"valid": False, "reasons": reasons})

    async def look(pilot) -> None:
        await press(pilot, "enter")
        text = shown(pilot)
        places = [
            text.index(part) for part in ("INVALID", reasons[0], "as claimed", "what was found", "what ran")
        ]
        assert places == sorted(places)
        assert "what to do: --duration" in text
        assert re.search(r"trimmed mean +10\.0 us", text)
        assert GOLDEN["image"]["ref"] in text
        assert GOLDEN["bundle"]["manifest_digest"][: len("sha256:") + 32] in text
        assert f"mlbundle run {GOLDEN['bundle']['name']}" in text  # the command that repeats it
        await press(pilot, "y")
        assert f"record of {run_id}" in shown(pilot)
        assert '"schema": "mlbundle/run/v1"' in shown(pilot)
        await press(pilot, "escape", "escape")
        assert pilot.app.screen.name_of_section == "runs"
        assert pilot.app.screen.run["run_id"] == run_id

    drive(look, size=(120, 70))


def test_every_tab_says_something_on_a_narrow_terminal(runs: RunHome) -> None:
    run_id = runs.add()
    runs.profile(run_id, LAYERS)
    commands = []

    async def look(pilot) -> None:
        await press(pilot, "enter")
        # A tab that nobody went to has nothing of its own yet, and is drawn when it is gone to.
        assert all(pane.children for pane in pilot.app.screen.query("TabPane"))
        for tab in TABS:
            await until(pilot, lambda: pilot.app.screen.tab is not None)
            assert pilot.app.screen.tab.key == tab.key
            commands.append(pilot.app.screen.command_line())
            await press(pilot, QUICK_TAB)
        await press(pilot, "left_square_bracket")
        assert pilot.app.screen.tab.key == "files"
        await press(pilot, "l")
        assert pilot.app.screen.tab.key == "logs"

    drive(look, size=NARROW)
    assert all(commands)
    assert len(set(commands)) >= 6


def test_latencies_are_plotted_and_their_percentiles_told(runs: RunHome) -> None:
    run_id = runs.add()
    times = np.full(1000, 20_000, np.int64)
    times[400:410] = 90_000
    times[700] = 8_000_000
    np.save(runs.folder / run_id / "passes" / "01-measure" / "latencies.npy", times)

    async def look(pilot) -> None:
        await press(pilot, "enter", QUICK_TAB)
        await until(pilot, lambda: "1,000 queries" in shown(pilot))
        text = shown(pilot)
        # One query that took hundreds of times as long flattens no others, and is told of.
        assert "400 us" in line_with(pilot, "┤")
        assert "▲" in line_with(pilot, "┤")
        assert "up to 8.00 ms" in line_with(pilot, "latency over time")
        await press(pilot, "s")
        assert "8.00 ms" in line_with(pilot, "┤")
        assert "▲" not in shown(pilot)
        assert any("\u2800" <= character <= "\u28ff" for character in text)
        assert "█" in text
        assert "20.0 us" in line_with(pilot, "p50")
        assert "p90" not in line_with(pilot, "p50")
        await pilot.resize_terminal(*NARROW)
        await press(pilot)
        assert "p90" in line_with(pilot, "p50")
        (runs.folder / run_id / "passes" / "01-measure" / "latencies.npy").write_bytes(b"no")
        await press(pilot, "f5")
        await until(pilot, lambda: "can't be read" in shown(pilot))

    drive(look, size=WIDE)


def test_layers_are_sorted_grouped_and_told_in_full(runs: RunHome) -> None:
    run_id = runs.add()
    runs.profile(run_id, LAYERS)

    async def look(pilot) -> None:
        def order() -> list[str]:
            return [
                name
                for line in shown(pilot).splitlines()
                for name in LAYERS
                if f" {name} " in line and "%" in line
            ]

        await press(pilot, "enter", QUICK_TAB, QUICK_TAB)
        await until(pilot, lambda: "4 layers, 10.0 us a query" in shown(pilot))
        assert order() == ["Conv0", "Conv1", "Gemm0", "Relu0"]
        assert "40.0 %" in line_with(pilot, " Conv0 ")
        assert "█" * 16 in line_with(pilot, " Conv0 ")
        await press(pilot, "s")
        assert order() == ["Gemm0", "Conv1", "Relu0", "Conv0"]
        await press(pilot, "s", "s", "s")
        assert order() == ["Conv0", "Relu0", "Conv1", "Gemm0"]
        await press(pilot, "b")
        assert "7.00 us" in line_with(pilot, "70.0 %")
        assert "Conv0" not in line_with(pilot, "70.0 %")
        await press(pilot, QUICK_TAB)
        await until(pilot, lambda: "3 names, 4 a query" in shown(pilot))
        assert "7.00 us" in line_with(pilot, "k_Conv")
        await press(pilot, "s", "s", "s", "s")
        assert "by kernel" in shown(pilot)
        assert [row.split()[0] for row in shown(pilot).splitlines() if "k_" in row] == [
            "k_Conv",
            "k_Gemm",
            "k_Relu",
        ]

    drive(look, size=WIDE)


def test_a_run_without_profile_says_how_to_get_one(runs: RunHome) -> None:
    runs.add()

    async def look(pilot) -> None:
        await press(pilot, "enter", QUICK_TAB, QUICK_TAB)
        await until(pilot, lambda: "--trace framework" in shown(pilot))
        await press(pilot, QUICK_TAB)
        await until(pilot, lambda: "--trace system" in shown(pilot))
        await press(pilot, QUICK_TAB)
        await until(pilot, lambda: "has no counters" in shown(pilot))

    drive(look)


def test_counters_and_what_differs_from_this_machine(runs: RunHome) -> None:
    machine = GOLDEN["environment"]["machine"] | {"kernel": "1.2.3-other"}
    run_id = runs.add(environment={"machine": machine})
    np.savez(
        runs.folder / run_id / "samples.npz",
        strings=np.array(["cpu_time_s", "memory_bytes"], np.str_),
        counter=np.array([0, 0, 0, 1, 1], np.int64),
        t_ns=np.array([0, 10**9, 2 * 10**9, 0, 10**9], np.int64),
        value=np.array([0.0, 0.5, 1.5, 1 << 20, 3 << 20], np.float64),
    )
    begun = {
        "kind": "phase",
        "seq": 1,
        "source": "worker",
        "t_ns": 10**9,
        "name": "measure",
        "state": "begun",
    }
    (runs.folder / run_id / "events.jsonl").write_text(json.dumps(begun) + "\n")

    async def look(pilot) -> None:
        await press(pilot, "enter", *[QUICK_TAB] * 4)
        await until(pilot, lambda: "2 counters" in shown(pilot))
        assert "┊measure" in line_with(pilot, "0 s")
        assert "0.75 CPUs" in line_with(pilot, "cpu time")
        assert "2.00 MiB" in line_with(pilot, "memory")
        await press(pilot, QUICK_TAB)
        await until(pilot, lambda: "others here" in shown(pilot))
        here = line_with(pilot, "1.2.3-other")
        assert here.split("1.2.3-other")[1].strip()

    drive(look, size=WIDE)


def test_a_log_is_read_and_searched(runs: RunHome) -> None:
    run_id = runs.add()
    log = runs.folder / run_id / "worker.log"

    async def look(pilot) -> None:
        await press(pilot, "l")
        await until(pilot, lambda: "line 499" in shown(pilot))
        assert "100 %" in shown(pilot)
        for size in (NARROW, WIDE, NARROW, NORMAL):
            await pilot.resize_terminal(*size)
            await press(pilot)
            assert "line 499" in shown(pilot)
        await press(pilot, "home", "slash")
        pilot.app.focused.value = "LINE 25"
        await press(pilot, "enter")
        view = pilot.app.screen.query_one(LogView)
        assert view.found is not None
        await press(pilot, "n")
        await until(pilot, lambda: "line 250 " in shown(pilot))
        await until(pilot, lambda: '"LINE 25" 2 of 11' in shown(pilot))
        await press(pilot, "N")
        assert '"LINE 25" 1 of 11' in shown(pilot)
        await press(pilot, "escape")
        assert "LINE 25" not in shown(pilot)
        assert view.found is None
        await press(pilot, "slash")
        pilot.app.focused.value = "[nothing] like it"
        await press(pilot, "enter")
        await until(pilot, lambda: 'nothing holds "[nothing] like it"' in shown(pilot))
        log.write_text("a " * 60 + "the end of it\n")
        await press(pilot, "f5")
        assert "the end of it" not in shown(pilot)
        await press(pilot, "w")
        assert "the end of it" in shown(pilot)
        await press(pilot, "w", *["right"] * 3)
        assert "the end of it" in shown(pilot)
        await press(pilot, "home")
        log.write_text("\x1b[31mnew\x1b[0m [b]text\n")
        await press(pilot, "f5")
        await until(pilot, lambda: "new [b]text" in shown(pilot))
        log.write_text("")
        await press(pilot, "f5")
        await until(pilot, lambda: "said nothing" in shown(pilot))
        assert pilot.app.focused is None
        assert "Search" not in shown(pilot)
        await press(pilot, "escape")
        assert pilot.app.screen.name_of_section == "runs"

    drive(look)


def test_files_are_listed_and_texts_read(runs: RunHome) -> None:
    run_id = runs.add()

    async def look(pilot) -> None:
        await press(pilot, "enter", "left_square_bracket")
        await until(pilot, lambda: "passes/01-measure/latencies.npy" in shown(pilot))
        assert "what the worker printed" in line_with(pilot, "worker.log")
        assert str(runs.folder / run_id) in shown(pilot)
        while (
            "worker.log"
            not in pilot.app.screen.tab._files[pilot.app.screen.tab.query_one("RowTable").cursor].name
        ):
            await press(pilot, "down")
        await press(pilot, "enter")
        await until(pilot, lambda: "line 3" in shown(pilot))

    drive(look, size=WIDE)


@pytest.mark.parametrize("status", ["failed", "partial", "cancelled"])
def test_a_run_that_broke_off_says_why(runs: RunHome, status: str) -> None:
    error = {"reference": "run-failed", "message": "the worker [died]", "hint": "look at the log"}
    runs.add(
        status=status,
        result=None,
        accuracy=None,
        environment={},
        validity={"valid": False, "reasons": [f"the run is {status}"]},
        error=error if status == "failed" else None,
        seen={"phase": "measure", "passes_done": [], "queries": 12},
    )

    async def look(pilot) -> None:
        await press(pilot, "enter")
        assert status.upper() in shown(pilot)
        assert ("[run-failed] the worker [died]" in shown(pilot)) == (status == "failed")
        assert "12 queries, ended in phase measure" in shown(pilot)

    drive(look, size=WIDE)


def test_a_run_that_is_gone_closes_its_page_with_an_error(runs: RunHome) -> None:
    run_id = runs.add()

    async def look(pilot) -> None:
        from mlbundle.config import load_settings
        from mlbundle.runs.catalog import remove_run

        remove_run(load_settings(), run_id)
        await press(pilot, "enter")
        await until(pilot, lambda: "no run is called" in shown(pilot))
        await press(pilot, "escape")
        assert pilot.app.screen.name_of_section == "runs"

    drive(look)
