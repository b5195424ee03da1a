"""The section Runs: listed, filtered, sorted, marked, opened, removed, with the keys of a user."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tui_pilot
from mlbundle_tui.marks import marked_runs
from mlbundle_tui.run_pages import PAGE
from run_homes import GOLDEN, NARROW, WIDE, RunHome, drive, enter_text, line_with, press, shown
from tui_pilot import until

from mlbundle.runs.catalog import remove_run


@pytest.fixture
def runs(home: Path) -> RunHome:
    return RunHome(home)


def rows(pilot) -> list[str]:
    """The rows of the table on the screen, as texts."""
    table = pilot.app.screen.table
    lines = shown(pilot).splitlines()
    top = table.region.y + 1
    return [line for line in lines[top : top + table.count] if line.strip()]


def test_an_empty_home_says_what_to_press(home: Path) -> None:
    async def look(pilot) -> None:
        assert "no runs yet" in shown(pilot)
        assert "press 1" in shown(pilot)
        assert "mlbundle runs list" in shown(pilot)
        await press(pilot, "enter", "space", "m", "t", "y", "d", "s")
        assert "no runs yet" in shown(pilot)

    drive(look)


def test_runs_are_listed_newest_first_with_a_word_for_their_status(runs: RunHome) -> None:
    runs.add("old")
    runs.add("wrong", validity={"valid": False, "reasons": ["x"]})
    runs.add("broken", status="failed", result=None, error={"reference": "run-failed", "message": "no"})
    runs.add("short", scenario={"name": "online", "options": {"quick": True}})

    async def look(pilot) -> None:
        found = rows(pilot)
        for row, name, word in zip(
            found,
            ("short", "broken", "wrong", "old"),
            ("quick", "failed", "invalid", "completed"),
            strict=False,
        ):
            assert name in row
            assert word in row
        assert "4 runs" in shown(pilot)
        assert "10.0 us" in line_with(pilot, "old")

    drive(look)


def test_columns_are_as_wide_as_what_they_hold(runs: RunHome) -> None:
    runs.add()
    runs.add("a-longer-name")

    async def look(pilot) -> None:
        full = next(row for row in rows(pilot) if "a-longer-name:1.0.0" in row.partition("│")[0])
        # What is left stands at the end, where nothing is cut.
        assert "…" not in full
        assert "    │" in full
        await pilot.resize_terminal(80, 24)
        await press(pilot)
        assert f"digits-cnn:{GOLDEN['bundle']['version']}" in "".join(rows(pilot))

    drive(look, size=(200, 50))


def test_any_size_shows_runs_or_nothing_but_does_not_break(runs: RunHome) -> None:
    run_id = runs.add("[red]名前" + "あ" * 300 + "\u202e\u0007[/]" + "ש" * 190)

    async def look(pilot) -> None:
        assert run_id in shown(pilot)
        assert "throughput" in shown(pilot)
        for size in (NARROW, (20, 5), (1, 1), WIDE):
            await pilot.resize_terminal(*size)
            await press(pilot)
            if size[0] >= NARROW[0]:
                await until(pilot, lambda: "completed" in shown(pilot))
                assert "[red]" in line_with(pilot, "completed")
            await press(pilot, "enter", "right_square_bracket", "escape")
        assert pilot.app.screen.run["run_id"] == run_id

    drive(look, size=WIDE)


def test_a_filter_is_searched_while_it_is_typed(runs: RunHome) -> None:
    runs.add("resnet50")
    runs.add("bert", framework={"name": "torch", "version": "2.0"})

    async def look(pilot) -> None:
        await press(pilot, "slash")
        await enter_text(pilot, "model:res*")
        assert [("resnet50" in row, "bert" in row) for row in rows(pilot)] == [(True, False)]
        assert "1 run ·" in shown(pilot)
        await enter_text(pilot, "nothing like it [b]")
        assert "0 runs" in shown(pilot)
        assert "esc shows all" in shown(pilot)
        await press(pilot, "enter", "escape")
        await until(pilot, lambda: len(rows(pilot)) == 2)
        assert "filter" not in line_with(pilot, "2 runs")

    drive(look)


def test_sorting_goes_through_the_columns_and_turns_round(runs: RunHome) -> None:
    runs.add("slow", mean_ns=30_000.0)
    runs.add("fast", mean_ns=10_000.0)
    runs.add("middle", mean_ns=20_000.0)

    async def look(pilot) -> None:
        def order() -> list[str]:
            return [next(name for name in ("slow", "fast", "middle") if name in row) for row in rows(pilot)]

        assert order() == ["middle", "fast", "slow"]
        while "headline ↑" not in shown(pilot):
            await press(pilot, "s")
        assert order() == ["fast", "middle", "slow"]
        await press(pilot, "o")
        assert order() == ["slow", "middle", "fast"]
        table = pilot.app.screen.table
        await pilot.click(table, offset=(shown(pilot).splitlines()[table.region.y].index("model"), 0))
        await press(pilot)
        assert order() == ["fast", "middle", "slow"]

    drive(look)


def test_marked_runs_are_counted_and_compared(runs: RunHome) -> None:
    made = [runs.add(f"m{number}") for number in range(8)]

    async def look(pilot) -> None:
        await press(pilot, "m")
        assert marked_runs(pilot.app) == []
        await press(pilot, "space", "space")
        assert marked_runs(pilot.app) == [made[7], made[6]]
        assert "2 marked" in shown(pilot)
        assert "●" in line_with(pilot, "m7:")
        assert f"mlbundle compare {made[7]} {made[6]}" in shown(pilot)
        await press(pilot, "home", "space")
        assert marked_runs(pilot.app) == [made[6]]
        await press(pilot, "space", *["space"] * 6)
        assert pilot.app.screen.name_of_section == "runs"
        await press(pilot, "u")
        assert marked_runs(pilot.app) == []
        await press(pilot, "home", "space", "space", "m")
        assert pilot.app.screen.name_of_section == "compare"

    drive(look)


def test_removing_asks_first_and_takes_what_is_marked(runs: RunHome) -> None:
    keep, first, second = runs.add("keep"), runs.add("first"), runs.add("second")

    async def look(pilot) -> None:
        await press(pilot, "d")
        await until(pilot, lambda: "Remove this run for good?" in shown(pilot))
        assert "second:1.0.0, 11-21 08:57, 10.0 us trimmed mean, completed" in shown(pilot)
        assert second in shown(pilot)
        await press(pilot, "n")
        assert (runs.folder / second).is_dir()
        await press(pilot, "space", "space", "d")
        await until(pilot, lambda: "Remove the 2 marked runs for good?" in shown(pilot))
        await press(pilot, "y")
        await until(pilot, lambda: "1 run " in shown(pilot))
        assert sorted(path.name for path in runs.folder.iterdir()) == [keep]
        assert marked_runs(pilot.app) == []
        assert ["keep" in row for row in rows(pilot)] == [True]

    drive(look)
    assert not (runs.folder / first).exists()


def test_readonly_removes_and_stops_nothing(runs: RunHome) -> None:
    run_id = runs.add()

    async def look(pilot) -> None:
        await press(pilot, "d", "x")
        assert "Remove" not in shown(pilot)
        assert "Stop" not in shown(pilot)
        assert (runs.folder / run_id).is_dir()

    drive(look, readonly=True)


def test_runs_that_go_on_stand_first_and_end_by_themselves(runs: RunHome) -> None:
    runs.add("over")
    going = runs.folder / "20261121T085800Z-aaaaaa"
    going.mkdir()
    events = [
        {"kind": "log", "seq": 0, "t_ns": 1, "source": "host", "message": "busy:1.0.0"},
        {"kind": "phase", "seq": 1, "t_ns": 2, "source": "host", "name": "measure", "state": "begun"},
        {"kind": "progress", "seq": 2, "t_ns": 3, "source": "worker", "phase": "measure", "done": 4, "total": 8,
         "unit": "queries"},
    ]  # fmt: skip
    (going / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))

    async def look(pilot) -> None:
        first = rows(pilot)[0]
        assert "busy" in first
        assert "measure 50 %" in first
        assert "1 going on" in shown(pilot)
        assert f"mlbundle runs attach {going.name}" in shown(pilot)
        record = GOLDEN | {"run_id": going.name, "bundle": GOLDEN["bundle"] | {"name": "busy"}}
        (going / "record.json").write_text(json.dumps(record))
        pilot.app.screen._watch()
        await until(pilot, lambda: "going on" not in shown(pilot))
        await until(pilot, lambda: "completed" in line_with(pilot, "busy"))

    with (going / "owner.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        drive(look)


def test_runs_that_others_start_end_and_remove_are_seen_by_themselves(
    runs: RunHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlbundle_tui.run_watch.EACH_S", 0.02)
    made = [runs.add(f"m{number}") for number in range(3)]

    async def look(pilot) -> None:
        def on() -> str:
            return str(pilot.app.screen.run["model"])

        assert on() == "m2"
        runs.add("newer")
        await until(pilot, lambda: "newer" in rows(pilot)[0])
        assert on() == "newer"  # who stands on top sees the newest
        await press(pilot, "down", "down")
        assert on() == "m1"
        going = runs.folder / "20261121T085900Z-aaaaaa"
        going.mkdir()
        with (going / "owner.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            await until(pilot, lambda: "5 runs, 1 going on" in shown(pilot))
            assert on() == "m1"
            await press(pilot, "4")
            assert "▶ 1 run goes on" in shown(pilot).splitlines()[0]
            (going / "record.json").write_text(json.dumps(GOLDEN | {"run_id": going.name}))
            await until(pilot, lambda: "goes on" not in shown(pilot))
        await press(pilot, "3")
        await until(pilot, lambda: "5 runs ·" in shown(pilot))
        remove_run(pilot.app.context.settings, made[2])
        await until(pilot, lambda: "4 runs ·" in shown(pilot))
        assert on() == "m1"

    drive(look)


def test_why_a_run_does_not_count_stands_beside_it(runs: RunHome) -> None:
    runs.add("fine")
    runs.add("wrong", validity={"valid": False, "reasons": ["too few queries"], "rules": []})
    failed = {"reference": "run-failed", "message": "it broke", "hint": "mend it"}
    runs.add("broken", status="failed", result=None, error=failed)

    async def look(pilot) -> None:
        await until(pilot, lambda: "[run-failed] it broke" in shown(pilot))
        await press(pilot, "j")
        await until(pilot, lambda: "too few queries" in shown(pilot))
        await press(pilot, "G")
        assert pilot.app.screen.run["model"] == "fine"
        assert "too few" not in shown(pilot)
        await press(pilot, "g")
        assert "it broke" in shown(pilot)

    drive(look, size=WIDE)


def test_a_data_folder_that_can_not_be_written_is_told_and_keys_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLBUNDLE_HOME", "/proc/none")

    async def look(pilot) -> None:
        for section in ("bundles", "runs", "machine"):
            assert pilot.app.screen.name_of_section == section
            await until(pilot, lambda: "the data folder can't be written" in shown(pilot).splitlines()[1])
            if section == "runs":
                await until(pilot, lambda: "what to do" in "".join(shown(pilot).splitlines()[2:]))
            await press(pilot, "3" if section == "bundles" else "5")

    tui_pilot.drive(look)


def test_thousands_of_runs_are_read_as_they_come_into_sight(runs: RunHome, home: Path) -> None:
    from mlbundle.store.database import _COLUMNS, DATABASE, RunDatabase, _row

    database = RunDatabase(home / "data" / DATABASE)
    cells = [_row(GOLDEN | {"run_id": f"r{number:05}"}) for number in range(3 * PAGE)]
    with database._open() as connection, connection:
        connection.executemany(
            f"INSERT INTO runs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})",
            [[row[name] for name in _COLUMNS] for row in cells],
        )

    async def look(pilot) -> None:
        assert "1,500 runs" in shown(pilot)
        assert "r01499" in shown(pilot)
        await press(pilot, "end")
        await until(pilot, lambda: pilot.app.screen.run is not None)
        assert pilot.app.screen.run["run_id"] == "r00000"
        await press(pilot, "home", *["pagedown"] * 3)
        assert pilot.app.screen.run["run_id"] < "r01499"
        pilot.app.screen.table.cursor = PAGE
        await until(pilot, lambda: pilot.app.screen.run is not None)
        assert pilot.app.screen.run["run_id"] == f"r{3 * PAGE - PAGE - 1:05}"

        # A run that begins above it moves nothing on the screen.
        await press(pilot, "up", "up")
        table, run_id = pilot.app.screen.table, pilot.app.screen.run["run_id"]
        line = table.cursor - table.first_in_sight()
        going = runs.folder / "20261121T085900Z-aaaaaa"
        going.mkdir(parents=True)
        with (going / "owner.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            await press(pilot, "f5")
            await until(pilot, lambda: "1,501 runs, 1 going on" in shown(pilot))
        await until(pilot, lambda: pilot.app.screen.run is not None)
        assert pilot.app.screen.run["run_id"] == run_id
        assert table.cursor - table.first_in_sight() == line

    drive(look, size=WIDE)


def test_a_database_that_breaks_is_a_dialog_and_not_the_end(runs: RunHome, home: Path) -> None:
    run_id = runs.add()

    async def look(pilot) -> None:
        for path in (home / "data").glob("runs.sqlite*"):
            path.unlink()
        (home / "data" / "runs.sqlite").write_bytes(b"not a database" * 1000)
        await press(pilot, "f5")
        assert "database" in shown(pilot)
        assert "what to do" in shown(pilot)
        (home / "data" / "runs.sqlite").unlink()
        await press(pilot, "escape", "f5")
        assert pilot.app.screen.run["run_id"] == run_id

    drive(look)


def test_the_trace_is_offered_with_a_link(runs: RunHome, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 5 192.0.2.2 22")
    monkeypatch.delenv("BROWSER", raising=False)
    runs.add("none")
    run_id = runs.add("traced")
    (runs.folder / run_id / "trace.pftrace.gz").write_bytes(gzip.compress(b"\x0a\x00"))

    async def look(pilot) -> None:
        await press(pilot, "t")
        await until(pilot, lambda: "http://127.0.0.1:" in shown(pilot))
        assert "ssh -N -L" in shown(pilot)
        await press(pilot, "escape", "down", "t")
        await until(pilot, lambda: "has no trace" in shown(pilot))

    drive(look)


def test_the_way_to_the_first_paint_imports_nothing_heavy() -> None:
    screens = "runs", "run_page", "compare"
    script = (
        f"import sys; [__import__(f'mlbundle_tui.screens.{{name}}') for name in {screens}]; "
        "print(sorted({'docker', 'jsonschema', 'numpy', 'requests', 'urllib3'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
