"""What others do to the UI: damaged records, logs without end, names that are commands, files that vanish."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
import time
import tracemalloc
import unicodedata
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlbundle_tui import app
from mlbundle_tui.screens import runs_list
from run_homes import NARROW, WIDE, RunHome, drive, press, settled, shown
from tui_pilot import until

from mlbundle.config import Settings, load_settings
from mlbundle.runs import data_folder
from mlbundle.runs.log_file import LogFile
from mlbundle.store.database import DATABASE

TABS = 8
COMMAND = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b5n\x00\x7f\r\n\t"
WILD = "".join(
    (
        COMMAND,
        "عربي " * 60,
        "名" * 100,
        "👩‍👩‍👧‍👦" * 20,
        "e\u0301\u0302\u0303" * 30,
        "\u202e\u2066 [red][/] \\[ {x}",
    )
)


@pytest.fixture
def runs(home: Path) -> RunHome:
    return RunHome(home)


def check_harmless(pilot: Any) -> None:
    """Nothing on the screen is obeyed by a terminal, and every row is as wide as the screen."""
    width, _ = pilot.app.size
    for strip in pilot.app.screen._compositor.render_strips():
        text = "".join(segment.text for segment in strip)
        assert not [c for c in text if unicodedata.category(c) == "Cc"], repr(text)
        assert strip.cell_length == width


async def tour(pilot: Any) -> None:
    """Open the run under the cursor, go through its tabs, and come back."""
    await press(pilot, "enter")
    for _ in range(TABS):
        check_harmless(pilot)
        await press(pilot, "right_square_bracket")
    await press(pilot, "escape")
    check_harmless(pilot)


def wild_run(runs: RunHome) -> str:
    run_id = runs.add(WILD, scenario={"name": WILD}, framework={"name": WILD, "version": WILD, "variant": WILD},
                      status="failed", error={"schema": "mlbundle/error/v1", "reference": "worker-failed", "message": WILD, "where": WILD, "context": [WILD], "hint": WILD, "exit_code": 4})  # fmt: skip
    folder = runs.folder / run_id
    (folder / "worker.log").write_bytes((WILD + "\n").encode() * 200 + b"\xff\xfe\x80" * 500)
    event = {"v": 1, "seq": 0, "t_ns": 1, "source": "host", "type": "log", "level": "info", "message": WILD}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    return run_id


@pytest.mark.parametrize("size", [NARROW, WIDE])
def test_names_and_lines_are_shown_and_not_obeyed(runs: RunHome, size: tuple[int, int]) -> None:
    wild_run(runs)

    async def steps(pilot: Any) -> None:
        check_harmless(pilot)
        await tour(pilot)
        await press(pilot, "slash")
        pilot.app.focused.value = WILD
        await settled(pilot)
        check_harmless(pilot)

    drive(steps, size=size)


def odd(**changes: Any) -> dict[str, Any]:
    return changes


ODD: dict[str, dict[str, Any]] = {
    "nan": odd(latency_ns={"p50": float("nan"), "p99": float("inf"), "trimmed_mean": -float("inf")}),
    "huge": odd(latency_ns={"p50": 10**400, "p99": 1e308, "min": -1, "max": 10**30}, throughput_per_s=1e308),
    "texts": odd(latency_ns="fast", throughput_per_s="very", accuracy=[]),
    "nothing": odd(latency_ns=None, throughput_per_s=None),
}


@pytest.mark.parametrize("name", ODD)
def test_a_record_that_somebody_edited(runs: RunHome, name: str) -> None:
    run_id = runs.add("good")
    path = runs.folder / run_id / "record.json"
    record = json.loads(path.read_text())
    record["result"] |= ODD[name]
    path.write_text(json.dumps(record))
    runs.add("other")

    async def steps(pilot: Any) -> None:
        await press(pilot, "end")
        await tour(pilot)
        await press(pilot, "space", "up", "space", "m")
        await settled(pilot)
        check_harmless(pilot)

    drive(steps, size=WIDE)


@pytest.mark.parametrize("kept", [("run_id", "started_at", "status"), ("schema",), ()])
def test_a_record_that_lacks_nearly_everything(runs: RunHome, kept: tuple[str, ...]) -> None:
    run_id = runs.add("whole")
    path = runs.folder / run_id / "record.json"

    async def steps(pilot: Any) -> None:
        # It was taken in while it was whole.
        record = json.loads(path.read_text())
        path.write_text(json.dumps({name: record[name] for name in kept if name in record}))
        await tour(pilot)

    drive(steps, size=WIDE)


def test_a_run_whose_folder_goes_while_it_is_shown(runs: RunHome) -> None:
    run_id = runs.add("gone")

    async def steps(pilot: Any) -> None:
        await press(pilot, "enter")
        shutil.rmtree(runs.folder / run_id)
        for _ in range(TABS):
            await press(pilot, "right_square_bracket")
        check_harmless(pilot)
        await press(pilot, "f5")
        await until(pilot, lambda: bool(pilot.app.screen_stack))

    drive(steps, size=WIDE)


def test_the_index_is_damaged_replaced_and_removed_while_it_is_shown(runs: RunHome) -> None:
    runs.add("kept")
    index = load_settings().data_dir / DATABASE

    def without_wal() -> None:
        for path in index.parent.glob(f"{DATABASE}-*"):
            path.unlink()

    async def steps(pilot: Any) -> None:
        without_wal()
        index.write_bytes(b"this is no database" * 1000)
        await pilot.press("f5")
        await until(pilot, lambda: "move the file away" in shown(pilot))
        index.unlink()
        await press(pilot, "escape", "f5")
        assert "kept" in shown(pilot)

    drive(steps)


def test_the_data_folder_goes_while_all_is_open(runs: RunHome) -> None:
    runs.add("gone")

    async def steps(pilot: Any) -> None:
        shutil.rmtree(load_settings().data_dir)
        await press(pilot, "f5")
        await press(pilot, "enter")
        await press(pilot, "escape", "escape")
        for key in "2431":
            await press(pilot, key)
            await pilot.press("f5")
        assert pilot.app.is_running

    drive(steps)


def test_a_log_of_a_gigabyte_takes_no_memory(runs: RunHome) -> None:
    run_id = runs.add("talks")
    path = runs.folder / run_id / "worker.log"
    with path.open("wb") as stream:
        stream.write(b"the first line\n")
        os.ftruncate(stream.fileno(), 1 << 30)
        stream.seek(0, 2)
        stream.write(b"\nneedle\nthe last line\n")

    async def steps(pilot: Any) -> None:
        tracemalloc.start()
        await press(pilot, "l")
        assert "the last line" in shown(pilot)
        await press(pilot, "home")
        assert "the first line" in shown(pilot)
        await press(pilot, "end", "pageup", "pagedown")
        assert "the last line" in shown(pilot)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 32 << 20

    drive(steps)


@pytest.mark.parametrize("leave", [("escape",), ("escape", "escape"), ("1",)])
def test_a_search_in_a_log_without_end_is_broken_off(
    runs: RunHome, monkeypatch: pytest.MonkeyPatch, leave: tuple[str, ...]
) -> None:
    runs.add("talks")
    begun, ended = threading.Event(), threading.Event()

    def search(_log: LogFile, _wanted: str, _place: int, *, stop: Callable[[], bool], **_named: Any) -> int:
        begun.set()
        while not stop():
            time.sleep(0.001)
        ended.set()
        return 7

    async def steps(pilot: Any) -> None:
        await press(pilot, "l", "slash")
        await pilot.press(*"needle", "enter")
        await until(pilot, begun.is_set)
        await pilot.press("home")
        await until(pilot, lambda: "line 0" in shown(pilot) and '"needle" …' in shown(pilot))
        await pilot.press(*leave)
        if leave != ("1",):
            await until(pilot, ended.is_set)
            await settled(pilot)
            assert "needle" not in shown(pilot)
            check_harmless(pilot)

    monkeypatch.setattr(LogFile, "find", search)
    drive(steps)
    # Who quits does not wait for it either.
    assert ended.is_set()


def hold(index: Path) -> sqlite3.Connection:
    """Keep everybody else from the index until the connection is closed."""
    other = sqlite3.connect(index, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    return other


def test_an_index_that_another_program_holds_is_waited_for_while_keys_work(
    runs: RunHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_list, "_WAITED_S", 0.05)
    runs.add("first")
    runs.add("second")

    async def steps(pilot: Any) -> None:
        with closing(hold(load_settings().data_dir / DATABASE)):
            runs.add("third")
            await pilot.press("f5")
            await until(pilot, lambda: "does not answer" in shown(pilot).splitlines()[1])
            assert pilot.app.screen.run["model"] == "second"
            await pilot.press("down")
            await until(pilot, lambda: pilot.app.screen.run["model"] == "first")
            await pilot.press("f5", "o", "f5")
            for key, name in (("4", "compare"), ("3", "runs")):
                await pilot.press(key)
                await until(pilot, lambda name=name: pilot.app.screen.name_of_section == name)
        await until(pilot, lambda: "third" in shown(pilot))
        assert "does not answer" not in shown(pilot)

    drive(steps)


def test_who_quits_waits_for_no_index(runs: RunHome, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.add("first")
    quitted, asked = threading.Event(), threading.Event()
    waited: list[bool] = []

    def refresh(_settings: Settings) -> None:
        asked.set()
        waited.append(quitted.wait(60))

    async def steps(pilot: Any) -> None:
        monkeypatch.setattr("mlbundle.runs.catalog.refresh_runs", refresh)
        await pilot.press("f5", "f5", "f5")
        await until(pilot, asked.is_set)

    drive(steps)
    assert waited == [], "it is still waited for"
    quitted.set()


def test_what_is_wrong_with_the_store_is_said_above_every_section_until_it_is_mended(
    runs: RunHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.add("kept")
    monkeypatch.setattr(app, "_FOLDER_S", 0.05)
    index = load_settings().data_dir / DATABASE
    full = [False]
    really = os.statvfs

    def statvfs(path: Path) -> Any:
        found = really(path)
        # The fifth is what is left for who is not root.
        return os.statvfs_result((*found[:4], 0, *found[5:])) if full[0] else found

    monkeypatch.setattr(data_folder.os, "statvfs", statvfs)

    async def steps(pilot: Any) -> None:
        full[0] = True
        for key in "12453":
            await pilot.press(key)
            await until(pilot, lambda: "the disk is full" in shown(pilot).splitlines()[1])
        full[0] = False
        await until(pilot, lambda: "the disk is full" not in shown(pilot))
        for path in index.parent.glob(f"{DATABASE}*"):
            path.unlink()
        index.mkdir()
        await pilot.press("f5")
        await until(pilot, lambda: "storage-failed" in shown(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "storage-failed" not in shown(pilot))
        await pilot.press("4")
        await until(pilot, lambda: "unable to open" in shown(pilot).splitlines()[1])
        assert "storage-failed" not in shown(pilot), "the box does not come back by itself"
        await pilot.press("3")
        index.rmdir()
        await until(pilot, lambda: "unable to open" not in shown(pilot) and "kept" in shown(pilot))

    drive(steps)
