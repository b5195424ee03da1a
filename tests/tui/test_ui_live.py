"""A run that is watched: what it shows while it goes on, when it waits, and when it has ended, however it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mlbundle_tui import affinity
from mlbundle_tui.affinity import QuietCpus
from mlbundle_tui.background import beside
from mlbundle_tui.context import Context
from mlbundle_tui.demo import demo_context
from mlbundle_tui.launcher import DetachedLauncher
from mlbundle_tui.live_source import LiveSource, Seen
from mlbundle_tui.screens.dialogs import TextDialog
from mlbundle_tui.screens.live import LiveRun
from mlbundle_tui.screens.run_page import RunPage
from support import make_bundle
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Digits
from tui_pilot import drive, press, settled, text_of, until

from mlbundle.config import load_settings
from mlbundle.runs.catalog import list_runs
from mlbundle.runs.folder import RunFolder, read_record
from mlbundle.runs.plan import RunOptions
from mlbundle.runs.queue import MACHINE_BUSY, Holder
from mlbundle.runs.running import running_run
from mlbundle.wire.events import Counter, End, Event, Failed, Log, Phase, Progress, Warned, Window

RUN_ID = "20261121T120000Z-00000a"
S, MS = 1_000_000_000, 1_000_000
MODEL = "[b]模型\x1b[31m " + "x" * 500
BEGUN = [
    Log(message="digits-cnn:1.0.0", t_ns=S),
    Phase(name="load", t_ns=S),
    Phase(name="load", state="done", t_ns=2 * S),
    Phase(name="measure", t_ns=2 * S),
    Window(queries=50, throughput=100.0, p50_ns=9 * MS, p99_ns=20 * MS, t_ns=3 * S),
    Counter(name="memory", value=2 << 20, unit="bytes", t_ns=3 * S),
    Warned(message="other work keeps 1.0 of 2 CPUs busy", t_ns=3 * S),
    Progress(phase="measure", done=1.0, total=4.0, unit="s", eta_s=3.0, t_ns=3 * S),
]
MORE = [
    Window(queries=50, throughput=70.0, p50_ns=7 * MS, p99_ns=30 * MS, t_ns=4 * S),
    Log(message="a new line", t_ns=4 * S),
]


class Run:
    """A run that this test drives."""

    def __init__(self) -> None:
        self.settings = load_settings()
        self.folder = RunFolder(self.settings.runs_dir, RUN_ID)
        self.path = self.folder.path
        self.stopped: list[str] = []
        self._open = True

    def say(self, *events: Event) -> None:
        for event in events:
            self.folder.append(event, source="worker")

    def die(self) -> None:
        if self._open:
            self._open = False
            self.folder.__exit__(None, None, None)

    def start(
        self,
        options: RunOptions,
        report: Callable[[str], None] = lambda _line: None,
        _stop: threading.Event | None = None,
    ) -> str:
        raise AssertionError(options, report)

    def stop(self, run_id: str) -> None:
        self.stopped.append(run_id)
        self.say(End(status="cancelled"))
        self.die()


@pytest.fixture
def run() -> Iterator[Run]:
    found = Run()
    yield found
    found.die()


def watch(run: Run, steps: Callable[[Pilot[None]], Any], *, readonly: bool = False, **named: Any) -> Any:
    context = Context(run.settings, launcher=run, readonly=readonly, clock=lambda: 0.0)
    return drive(lambda pilot: _watched(pilot, RUN_ID, steps), context, size=named.pop("size", (120, 40)))


async def _watched(pilot: Pilot[None], run_id: str, steps: Callable[[Pilot[None]], Any]) -> Any:
    await pilot.app.push_screen(LiveRun(pilot.app.context, run_id))  # type: ignore[attr-defined]
    await settled(pilot)
    return await steps(pilot)


def large(pilot: Pilot[None]) -> list[str]:
    return [digits.value for digits in pilot.app.screen.query(Digits)]


def test_phases_numbers_resources_and_what_was_said(run: Run) -> None:
    run.say(*BEGUN)

    async def steps(pilot: Pilot[None]) -> tuple[str, list[str], str, list[str]]:
        first, numbers = text_of(pilot.app), large(pilot)
        run.say(*MORE)
        await press(pilot, "f5")
        return first, numbers, text_of(pilot.app), large(pilot)

    first, numbers, second, numbers_after = watch(run, steps)
    lines = first.splitlines()
    assert "digits-cnn:1.0.0" in lines[1]
    assert "measure" in lines[1]
    assert any("✓ load" in line and "1.00 s" in line for line in lines)
    assert any("▶ measure" in line and "25%" in line and "0:03" in line for line in lines)
    assert any("· accuracy" in line for line in lines)
    assert any("memory" in line and "2.00 MiB" in line for line in lines)
    assert any("! other work keeps 1.0 of 2 CPUs" in line for line in lines)
    assert any("warning: other work" in line for line in lines)
    assert f"mlbundle runs attach {RUN_ID}" in first
    assert numbers == ["100", "9.00", "20.0"]
    assert numbers_after == ["70.0", "7.00", "30.0"]
    assert "a new line" in second
    assert any(chr(0x2800) < character <= chr(0x28FF) for character in second)


def test_the_display_freezes_and_events_are_still_read(run: Run) -> None:
    run.say(*BEGUN)

    async def steps(pilot: Pilot[None]) -> tuple[str, list[str], int, str, list[str]]:
        await press(pilot, "space")
        run.say(*MORE)
        await press(pilot, "f5")
        screen = pilot.app.screen
        assert isinstance(screen, LiveRun)
        assert screen.seen is not None
        frozen, numbers, queries = text_of(pilot.app), large(pilot), screen.seen.view.queries
        await press(pilot, "space")
        return frozen, numbers, queries, text_of(pilot.app), large(pilot)

    frozen, numbers, queries, after, numbers_after = watch(run, steps)
    assert "FROZEN" in frozen
    assert "a new line" not in frozen
    assert numbers == ["100", "9.00", "20.0"]
    assert queries == 100
    assert "FROZEN" not in after
    assert "a new line" in after
    assert numbers_after == ["70.0", "7.00", "30.0"]


@pytest.mark.parametrize(
    ("holder", "said"),
    [
        (None, "waits for another measurement on this machine: next"),
        (
            Holder("20261121T115959Z-ffffff", "ada", 12),
            "waits for run 20261121T115959Z-ffffff of ada, process 12: next",
        ),
    ],
)
def test_a_run_that_waits_says_for_whom_and_its_place(
    run: Run, monkeypatch: pytest.MonkeyPatch, holder: Holder | None, said: str
) -> None:
    run.say(BEGUN[0], Warned(reference=MACHINE_BUSY, message="waiting"))
    monkeypatch.setattr("mlbundle.runs.queue.machine_holder", lambda: holder)

    async def steps(pilot: Pilot[None]) -> str:
        return text_of(pilot.app)

    assert said in watch(run, steps)


def test_a_question_goes_when_there_is_nothing_left_to_decide(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlbundle_tui.screens.dialogs._LOOK_S", 0.01)
    run.say(*BEGUN)

    async def steps(pilot: Pilot[None]) -> tuple[str, list[str]]:
        await pilot.press("x")
        await pilot.pause()
        asked = text_of(pilot.app)
        run.say(End(status="completed"))
        run.die()
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveRun))
        await settled(pilot)
        return asked, [n.message for n in pilot.app._notifications]

    asked, said = watch(run, steps)
    assert "Stop this run?" in asked
    assert said == [f"it has ended by itself: {RUN_ID}"]
    assert run.stopped == []


def test_leaving_does_not_stop_it_and_x_asks(run: Run) -> None:
    run.say(*BEGUN)

    async def steps(pilot: Pilot[None]) -> tuple[str, str]:
        await pilot.press("x")
        await pilot.pause()
        asked = text_of(pilot.app)
        await press(pilot, "n")
        assert isinstance(pilot.app.screen, LiveRun)
        assert run.stopped == []
        await press(pilot, "escape")
        assert not isinstance(pilot.app.screen, LiveRun)
        assert running_run(run.path) is not None
        await _watched(pilot, RUN_ID, lambda _: settled(pilot))
        await pilot.press("x")
        await pilot.pause()
        await press(pilot, "y")
        return asked, text_of(pilot.app)

    asked, after = watch(run, steps)
    assert "Stop this run?" in asked
    assert run.stopped == [RUN_ID]
    assert "enter opens the results" in after.splitlines()[1]


def test_leaving_while_it_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.say(*BEGUN)
    reading, go_on = threading.Event(), threading.Event()
    read = LiveSource.read

    def slowly(source: LiveSource) -> Seen:
        reading.set()
        go_on.wait(30)
        return read(source)

    monkeypatch.setattr(LiveSource, "read", slowly)

    async def steps(pilot: Pilot[None]) -> str:
        await pilot.app.push_screen(LiveRun(pilot.app.context, RUN_ID))  # type: ignore[attr-defined]
        assert await asyncio.to_thread(reading.wait, 30)
        await pilot.press("escape")
        go_on.set()
        await settled(pilot)
        return text_of(pilot.app)

    context = Context(run.settings, launcher=run)
    assert RUN_ID not in drive(steps, context)


def test_an_answer_for_a_screen_that_is_gone_ends_its_worker() -> None:
    async def ask(there: bool) -> str:
        return await beside(cast("Screen[None]", SimpleNamespace(display=there)), str.upper, "answer")

    assert asyncio.run(ask(there=True)) == "ANSWER"
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ask(there=False))


def test_who_may_only_read_stops_nothing_and_writes_nothing(run: Run) -> None:
    run.say(*BEGUN)

    async def steps(pilot: Pilot[None]) -> str:
        await press(pilot, "x")
        assert isinstance(pilot.app.screen, LiveRun)
        run.die()
        await press(pilot, "f5")
        return text_of(pilot.app)

    assert "its process has died" in watch(run, steps, readonly=True)
    assert run.stopped == []
    assert read_record(run.path) is None


def test_a_run_whose_process_dies_is_closed_and_said(run: Run) -> None:
    run.say(*BEGUN)

    async def steps(pilot: Pilot[None]) -> str:
        run.die()
        await press(pilot, "f5")
        return text_of(pilot.app)

    after = watch(run, steps)
    record = read_record(run.path)
    assert record is not None
    assert record["status"] == "partial"
    assert "partial" in after.splitlines()[1]
    assert record["validity"]["reasons"][0] in after.splitlines()[1]
    assert any("✗ measure" in line for line in after.splitlines())


def test_an_error_of_the_run_opens_a_dialog_with_its_hint(run: Run) -> None:
    run.say(*BEGUN)
    error = {
        "schema": "mlbundle/error/v1",
        "reference": "run-failed",
        "message": "the graph [b]is[/b] none",
        "hint": "worker.log has the traceback",
        "where": None,
        "context": [],
        "exit_code": 4,
    }
    record = {
        "run_id": RUN_ID,
        "status": "failed",
        "error": error,
        "passes": [],
        "validity": {"valid": False},
    }

    async def steps(pilot: Pilot[None]) -> str:
        (run.path / "record.json").write_text(json.dumps(record))
        run.say(Failed(reference="run-failed", message=error["message"]), End(status="failed"))
        await press(pilot, "f5")
        assert isinstance(pilot.app.screen, TextDialog)
        return text_of(pilot.app)

    dialog = watch(run, steps)
    assert "the graph [b]is[/b] none" in dialog
    assert "worker.log has the traceback; l shows it" in " ".join(dialog.replace("│", " ").split())


@pytest.mark.parametrize("size", [(200, 50), (80, 24), (40, 12), (20, 5)])
def test_names_in_any_script_and_any_size(run: Run, size: tuple[int, int]) -> None:
    run.say(Log(message=MODEL, t_ns=S), *BEGUN[1:], Log(message="\x1b[2J[bold]\nsecond\x07", t_ns=3 * S))

    async def steps(pilot: Pilot[None]) -> str:
        await pilot.resize_terminal(90, 30)
        await pilot.resize_terminal(*size)
        await settled(pilot)
        return text_of(pilot.app)

    shown = watch(run, steps, size=size)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert max(map(len, shown.splitlines())) <= size[0]
    if size[0] >= 80:
        assert "[b]模型\\x1b[31m xxx" in shown.splitlines()[1]
        assert "▶ measure" in shown
    if size == (200, 50):
        assert "\\x1b[2J[bold]" in shown


def test_a_log_of_a_gigabyte(run: Run) -> None:
    run.say(*BEGUN)
    with (run.path / "worker.log").open("wb") as stream:
        stream.truncate(1 << 30)
        stream.seek(0, 2)
        stream.write(b"\nthe last but one\n\x1b[31mthe last\x1b[0m\n")

    async def steps(pilot: Pilot[None]) -> tuple[str, str, str]:
        before = text_of(pilot.app)
        await press(pilot, "l")
        await until(pilot, lambda: "the last but one" in text_of(pilot.app))  # it is read with the next look
        after = text_of(pilot.app)
        await press(pilot, "l")
        return before, after, text_of(pilot.app)

    before, after, whole = watch(run, steps)
    assert "the last" not in before
    lines = [line.strip() for line in after.splitlines()]
    assert lines[lines.index("worker.log: what the worker wrote") + 1 :][:2] == [
        "the last but one",
        "the last",
    ]
    assert "phases" not in whole
    assert "▶ measure" not in whole
    assert "the last" in whole


def test_what_came_of_a_whole_run_and_its_page() -> None:
    with demo_context(load_settings()) as context:
        rows = list_runs(context.settings)
        row = next(r for r in rows if r["status"] == "completed" and r["scenario"] == "online")

        async def steps(pilot: Pilot[None]) -> tuple[str, list[str], bool]:
            shown, numbers = text_of(pilot.app), large(pilot)
            await press(pilot, "enter")
            return shown, numbers, isinstance(pilot.app.screen, RunPage)

        shown, numbers, on_page = drive(
            lambda pilot: _watched(pilot, row["run_id"], steps), context, size=(120, 40)
        )
    assert "enter opens the results" in shown
    assert "histogram" in shown
    assert f"mlbundle runs show {row['run_id']}" in shown
    assert all(numbers)
    assert on_page


def test_a_real_run_is_started_watched_and_ends(home: Path, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "mini")
    settings = load_settings()
    launcher = DetachedLauncher(settings)
    words = ("--runtime", "process", "--python", sys.executable, "--duration", "300ms", "--warmup", "10ms")
    command = ("mlbundle", "run", str(bundle), *words, "--concurrent", "--no-accuracy")
    run_id = launcher.start(RunOptions(str(bundle), command=command))

    async def steps(pilot: Pilot[None]) -> str:
        deadline = time.monotonic() + 120
        while "enter opens the results" not in text_of(pilot.app) and time.monotonic() < deadline:
            await pilot.press("f5")
            await pilot.pause(0.05)
        await settled(pilot)
        return text_of(pilot.app)

    context = Context(settings, launcher=launcher)
    shown = drive(lambda pilot: _watched(pilot, run_id, steps), context, size=(120, 40))
    assert "not good" in shown.splitlines()[1]
    assert "the result is not valid" in shown.splitlines()[1]
    assert "histogram" in shown
    record = read_record(settings.runs_dir / run_id)
    assert record is not None
    assert record["status"] == "completed"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="CPUs can't be chosen here")
def test_the_screen_keeps_off_the_cpus_of_a_pinned_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.sched_getaffinity(0)
    if len(whole) < 2:
        pytest.skip("there is one CPU only")
    quiet = QuietCpus()
    monkeypatch.setattr(affinity, "keep_off", quiet.keep_off)
    monkeypatch.setattr(affinity, "look", quiet.look)
    pinned = max(whole)
    (run.path / "job.json").write_text(json.dumps({"limits": {"cpus": [pinned]}}))
    run.say(*BEGUN)

    async def steps(pilot: Pilot[None]) -> tuple[set[int], set[int], set[int]]:
        watching = os.sched_getaffinity(0)
        with quiet.on_all_cpus():
            starting = os.sched_getaffinity(0)
        await press(pilot, "escape")
        left = os.sched_getaffinity(0)
        run.die()
        assert not quiet.look()
        return watching, starting, left

    try:
        watching, starting, left = watch(run, steps)
        assert watching == left == whole - {pinned}
        assert starting == whole
        assert os.sched_getaffinity(0) == whole
    finally:
        os.sched_setaffinity(0, whole)


def test_where_no_cpu_would_be_left_none_is_given_up(tmp_path: Path) -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("CPUs can't be chosen here")
    whole = os.sched_getaffinity(0)
    quiet = QuietCpus(driven=lambda _folder: True)
    quiet.keep_off(tmp_path, whole)
    assert os.sched_getaffinity(0) == whole


def test_what_others_do_to_the_events_of_a_run_is_lived_through(run: Run) -> None:
    run.say(*BEGUN)
    events = run.path / "events.jsonl"

    def line(seq: int, message: str) -> bytes:
        return json.dumps(Log(message=message, seq=seq, t_ns=5 * S).to_document()).encode() + b"\n"

    def half() -> None:
        with events.open("ab") as stream:
            stream.write(b'{"protocol":1,"seq":8,"sou')

    def cut() -> None:
        events.write_bytes(b"")

    def long() -> None:
        with events.open("ab") as stream:
            stream.write(b"x" * (3 << 20) + b"\n" + line(60, "after the long line"))

    def another() -> None:
        (run.path / "new").write_bytes(line(59, "told before") + line(61, "another file"))
        (run.path / "new").rename(events)

    def odd() -> None:
        log = Log(message="y" * (1 << 20), seq=62, t_ns=5 * S)
        events.write_bytes(b"\xff\0\n[]\n{}\n" + json.dumps(log.to_document()).encode() + b"\n")

    def back() -> None:
        events.write_bytes(line(63, "lines come again"))

    async def steps(pilot: Pilot[None]) -> list[str]:
        found = []
        for fault in (half, cut, long, another, events.unlink, odd, events.unlink, back):
            fault()
            await press(pilot, "f5")
            found.append(text_of(pilot.app))
            assert large(pilot) == ["100", "9.00", "20.0"], "what was known is still shown"
        return found

    found = watch(run, steps)
    assert "after the long line" in found[2]
    assert "another file" in found[3]
    assert "lines come again" in found[-1]


def test_the_events_are_at_their_end_again_when_another_log_was_shown(run: Run) -> None:
    run.say(*BEGUN, *(Log(message=f"line {number}", t_ns=3 * S) for number in range(60)))

    async def steps(pilot: Pilot[None]) -> str:
        await press(pilot, "l", "l")
        run.say(*(Log(message=f"more {number}", t_ns=4 * S) for number in range(60)))
        await press(pilot, "f5", "l", "l")
        return text_of(pilot.app)

    assert "more 59" in watch(run, steps)


@pytest.mark.parametrize("shift_s", [-86_400, 86_400])
def test_a_clock_that_is_set_moves_no_time_of_a_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, shift_s: int
) -> None:
    run.say(*BEGUN)
    now_s, time_s, time_ns = [50.0], time.time, time.time_ns
    context = Context(run.settings, launcher=run, clock=lambda: now_s[0])

    async def steps(pilot: Pilot[None]) -> list[str]:
        found = [text_of(pilot.app)]
        monkeypatch.setattr(time, "time", lambda: time_s() + shift_s)
        monkeypatch.setattr(time, "time_ns", lambda: time_ns() + shift_s * S)
        now_s[0] += 7
        # The next run is called by the day that the clock has now; it goes on beside this one.
        name = "20261120T120000Z-00000b" if shift_s < 0 else "20261122T120000Z-00000b"
        with RunFolder(run.settings.runs_dir, name) as other:
            other.append(Log(message="the-next:1.0.0", t_ns=S), source="host")
            await until(pilot, lambda: "2 runs go on" in text_of(pilot.app))
            await press(pilot, "f5")
            found.append(text_of(pilot.app))
            run.say(*MORE)
            await press(pilot, "f5")
            found.append(text_of(pilot.app))
            await press(pilot, "3")
            await until(pilot, lambda: "the-next" in text_of(pilot.app))
            found.append(text_of(pilot.app))
        return found

    first, silent, heard, listed = drive(
        lambda pilot: _watched(pilot, RUN_ID, steps), context, size=(120, 40)
    )
    assert "measure  0:02  " in first.splitlines()[1]
    assert "measure  0:09  nothing heard for 7 s" in silent.splitlines()[1]
    assert "measure  0:03  " in heard.splitlines()[1]
    assert re.search(r"▶ measure.* 25% 0:03", heard)
    assert any(chr(0x2800) < character <= chr(0x28FF) for character in heard), "there is a chart"
    # What goes on stands above, by when it was begun as the clock says.
    names = re.findall(r"^ +11-2\d 12:00 .*?(digits-cnn|the-next)", listed, re.MULTILINE)
    assert names == (["digits-cnn", "the-next"] if shift_s < 0 else ["the-next", "digits-cnn"])
