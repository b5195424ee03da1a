"""The section Run: what is written is checked at once, what a run would do stands beside it, and `r` starts it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mlbundle_tui.context import Context
from mlbundle_tui.screens.dialogs import TextDialog
from mlbundle_tui.screens.live import LiveRun
from mlbundle_tui.screens.run import RunSection
from mlbundle_tui.widgets.field import Field
from mlbundle_tui.widgets.row_table import RowTable
from support import make_bundle
from textual.pilot import Pilot
from tui_pilot import drive, press, text_of, until

from mlbundle.config import Settings, load_settings
from mlbundle.errors import EngineUnavailable, Interrupted, MlbundleError
from mlbundle.runs.folder import RunFolder
from mlbundle.runs.plan import RunOptions
from mlbundle.runs.queue import MACHINE_BUSY
from mlbundle.wire.events import Log, Phase, Warned

RUN_ID = "20261121T120000Z-00000{}"


@dataclass
class Launcher:
    """Starts nothing: it makes the folder of a run that goes on."""

    settings: Settings
    error: MlbundleError | None = None
    slow: bool = False
    started: list[RunOptions] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    folders: list[RunFolder] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)

    def start(
        self,
        options: RunOptions,
        report: Callable[[str], None] = lambda _line: None,
        stop: threading.Event | None = None,
    ) -> str:
        self.threads.add(threading.current_thread().name)
        report("looking for an image")
        if self.slow and stop is not None:
            report("making the onnxruntime environment: 8 packages, once for each lock")
            report("  (3/8) numpy 2.1.0")
            assert stop.wait(60)
            raise Interrupted("stopped before the run had begun")
        if self.error is not None:
            raise self.error
        self.started.append(options)
        return self.begin("mini:1.0.0")

    def begin(self, model: str, *, waits: bool = False) -> str:
        run_id = RUN_ID.format(len(self.folders))
        folder = RunFolder(self.settings.runs_dir, run_id)
        folder.append(Log(message=model), source="host")
        event = Warned(reference=MACHINE_BUSY, message="waiting") if waits else Phase(name="measure")
        folder.append(event, source="host")
        self.folders.append(folder)
        return run_id

    def stop(self, run_id: str) -> None:
        self.stopped.append(run_id)
        self.close()

    def close(self) -> None:
        while self.folders:
            self.folders.pop().__exit__(None, None, None)


@pytest.fixture
def launcher(home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(RunSection, "DEBOUNCE_S", 0.01)
    found = Launcher(load_settings())
    yield found
    found.close()


def form(
    steps: Callable[[Pilot[None]], Any], launcher: Launcher | None = None, reference: str = "", **named: Any
) -> Any:
    """Open the section Run with a bundle chosen, and do the steps."""
    readonly = named.pop("readonly", False)

    context = Context(load_settings(), launcher=launcher, readonly=readonly)
    size = named.pop("size", (120, 40))
    return drive(steps, context, size=size, first="run", chosen=reference, **named)


def at(pilot: Pilot[None], key: str) -> Field:
    found = pilot.app.screen.query_one("#field-" + key.replace(".", "-"), Field)
    found.focus()
    return found


def test_an_empty_form_says_what_to_press(launcher: Launcher) -> None:
    async def steps(pilot: Pilot[None]) -> str:
        await press(pilot, "r")
        return text_of(pilot.app)

    text = form(steps, launcher)
    assert "no bundle is chosen" in text
    # What is chosen stands between arrows, what is written between brackets; nothing is cut.
    assert re.search(r"scenario +< online >", text)
    assert re.search(r"threads +\[ 1 \]", text)
    assert "shows the bundles that are here" in text
    assert launcher.started == []


def test_what_a_run_would_do_stands_beside_the_form(launcher: Launcher, tmp_path: Path) -> None:
    bundle = str(make_bundle(tmp_path / "mini"))

    async def steps(pilot: Pilot[None]) -> tuple[str, str]:
        at(pilot, "runtime")
        await press(pilot, "right", "right")
        first = text_of(pilot.app)
        at(pilot, "scenario.duration")
        await press(pilot, "enter", *"500ms", "enter")
        return first, text_of(pilot.app)

    first, second = form(steps, launcher, bundle)
    assert "ready: r runs it" in first
    assert "online, duration 3.00 s" in first
    assert "--runtime process" in first
    assert "online, duration 500 ms" in second
    assert "500ms" in second


def test_what_is_wrong_is_said_while_it_is_written(launcher: Launcher) -> None:
    async def steps(pilot: Pilot[None]) -> tuple[str, str, str, str]:
        at(pilot, "cpus")
        await press(pilot, "enter", *"3-1")
        writing = text_of(pilot.app)
        await press(pilot, "enter")
        at(pilot, "reference")
        await press(pilot, "r")
        focused = pilot.app.focused
        assert isinstance(focused, Field)
        await press(pilot, "backspace")
        return writing, text_of(pilot.app), focused.spec.key, focused.value

    writing, after, key, value = form(steps, launcher, "digits-cnn")
    assert "'3-1' counts backwards" in writing
    assert "write for example 0-3" in writing
    assert (key, value) == ("cpus", "")
    assert "ready: r runs it" in after
    assert launcher.started == []


def test_escape_takes_back_what_was_written(launcher: Launcher) -> None:
    async def steps(pilot: Pilot[None]) -> tuple[str, str]:
        threads = at(pilot, "threads")
        await press(pilot, "enter", "4", "enter", "enter", "2", "escape")
        assert isinstance(pilot.app.focused, Field)
        return threads.value, pilot.app.screen.command_line()  # type: ignore[attr-defined]

    assert form(steps, launcher, "digits-cnn") == ("4", "mlbundle run digits-cnn --threads 4")


def test_only_the_options_of_the_scenario_are_there(launcher: Launcher) -> None:
    async def steps(pilot: Pilot[None]) -> list[Any]:
        found: list[Any] = []
        at(pilot, "scenario.repeats")
        await press(pilot, "enter", "3", "enter")
        at(pilot, "scenario")
        await press(pilot, "right", "right")
        found += [text_of(pilot.app), pilot.app.screen.command_line()]  # type: ignore[attr-defined]
        at(pilot, "scenario.rate")
        await press(pilot, "enter", *"200", "enter")
        found += [text_of(pilot.app), pilot.app.screen.command_line()]  # type: ignore[attr-defined]
        return found

    before, command, after, command_after = form(steps, launcher, "digits-cnn")
    assert "target-latency" in before
    assert "poisson needs a rate, or arrivals to replay" in before
    assert "batch-sizes" not in before
    assert command == "mlbundle run digits-cnn --scenario poisson --repeats 3"
    assert "poisson, duration 10.0 s" in after
    assert command_after == "mlbundle run digits-cnn --scenario poisson --repeats 3 --rate 200"


def test_a_scenario_is_chosen_from_a_list_that_says_what_they_are(launcher: Launcher) -> None:
    async def steps(pilot: Pilot[None]) -> tuple[str, str]:
        at(pilot, "scenario")
        await pilot.press("enter")
        await pilot.pause()
        shown = text_of(pilot.app)
        await press(pilot, "down", "down", "down", "down", "enter")
        return shown, pilot.app.screen.command_line()  # type: ignore[attr-defined]

    shown, command = form(steps, launcher, "digits-cnn")
    assert "from the start of a process to its first answer" in shown
    assert command == "mlbundle run digits-cnn --scenario cold-start"


def test_the_forms_of_the_bundle_are_choices(launcher: Launcher) -> None:
    async def steps(pilot: Pilot[None]) -> tuple[str, str]:
        at(pilot, "framework")
        await press(pilot, "right")
        with_torch = pilot.app.screen.command_line()  # type: ignore[attr-defined]
        # Another bundle has other forms.
        at(pilot, "reference")
        await press(pilot, "enter", "end", "backspace", "enter")
        return with_torch, pilot.app.screen.command_line()  # type: ignore[attr-defined]

    with_torch, without = form(steps, launcher, "digits-cnn")
    assert with_torch == "mlbundle run digits-cnn --framework torch"
    assert without.startswith("mlbundle run digits-cn ")


def test_why_a_run_would_not_begin_stands_beside_the_form(launcher: Launcher, tmp_path: Path) -> None:
    bundle = str(make_bundle(tmp_path / "mini", preprocess="return data"))

    async def steps(pilot: Pilot[None]) -> tuple[str, str]:
        at(pilot, "runtime")
        await press(pilot, "left")
        refused = text_of(pilot.app)
        at(pilot, "trust")
        await press(pilot, "space")
        return refused, text_of(pilot.app)

    refused, trusted = form(steps, launcher, bundle)
    assert "it would not run" in refused
    assert "--trust" in refused
    assert "ready: r runs it" in trusted


def test_r_starts_a_run_and_watches_it(launcher: Launcher) -> None:
    async def steps(pilot: Pilot[None]) -> tuple[str, str]:
        at(pilot, "threads")
        await press(pilot, "enter", "2", "enter")
        at(pilot, "trust")
        await press(pilot, "space", "r")
        assert isinstance(pilot.app.screen, LiveRun)
        live = text_of(pilot.app)
        await press(pilot, "escape")
        return live, text_of(pilot.app)

    live, back = form(steps, launcher, "digits-cnn")
    assert "mini:1.0.0" in live
    assert RUN_ID.format(0) in live
    (options,) = launcher.started
    assert (options.reference, options.threads, options.trust) == ("digits-cnn", 2, True)
    assert options.command == ("mlbundle", "run", "digits-cnn", "--threads", "2", "--trust")
    assert launcher.threads != {"MainThread"}
    assert "going on" in back
    assert "measure" in back


def test_what_keeps_a_run_from_beginning_is_shown(launcher: Launcher) -> None:
    launcher.error = EngineUnavailable("no engine [b]answers[/b]", hint="start it")

    async def steps(pilot: Pilot[None]) -> str:
        await press(pilot, "r")
        assert isinstance(pilot.app.screen, TextDialog)
        shown = text_of(pilot.app)
        await press(pilot, "escape")
        assert isinstance(pilot.app.screen, RunSection)
        return shown

    shown = form(steps, launcher, "digits-cnn")
    assert "no engine [b]answers[/b]" in shown
    assert "start it" in shown


def test_the_environment_is_a_stage_that_is_seen_and_stopped(launcher: Launcher) -> None:
    launcher.slow = True

    async def steps(pilot: Pilot[None]) -> tuple[str, str]:
        await pilot.press("r")
        await until(pilot, lambda: "numpy" in text_of(pilot.app))
        shown = text_of(pilot.app)
        await press(pilot, "x")
        return shown, text_of(pilot.app)

    shown, after = form(steps, launcher, "digits-cnn")
    assert re.search(r"environment +█.* 25 % +numpy", shown)
    assert "x Stop" in shown
    assert "a run is being started" in shown
    assert "nothing goes on" in after
    assert launcher.started == []


def test_runs_that_wait_say_their_place_and_can_be_stopped(launcher: Launcher) -> None:
    launcher.begin("first:1")
    for name in ("second:1", "third:1"):
        launcher.begin(name, waits=True)

    async def steps(pilot: Pilot[None]) -> tuple[str, str]:
        shown = text_of(pilot.app)
        pilot.app.screen.query_one("#going", RowTable).focus()
        await press(pilot, "down")
        await pilot.press("x")
        await pilot.pause()
        asked = text_of(pilot.app)
        await press(pilot, "y")
        return shown, asked

    shown, asked = form(steps, launcher, "digits-cnn")
    rows = {line.split()[-5:][0]: line for line in shown.splitlines() if "waits" in line}
    assert any("second" in line and "waits, next" in line for line in rows.values()), shown
    assert any("third" in line and "waits, 1 before it" in line for line in rows.values()), shown
    assert "Stop this run?" in asked
    assert RUN_ID.format(1) in asked
    assert launcher.stopped == [RUN_ID.format(1)]


def test_who_may_only_read_starts_and_stops_nothing(launcher: Launcher) -> None:
    launcher.begin("first:1")

    async def steps(pilot: Pilot[None]) -> str:
        await press(pilot, "r", "x")
        assert isinstance(pilot.app.screen, RunSection)
        return text_of(pilot.app)

    shown = form(steps, launcher, "digits-cnn", readonly=True)
    assert launcher.started == launcher.stopped == []
    assert "Stop" not in shown.splitlines()[-1]


def test_names_in_any_script_stay_in_their_line(launcher: Launcher) -> None:
    name = "[bold]模型\x1b[31m\n" + "ש" * 500

    async def steps(pilot: Pilot[None]) -> str:
        pilot.app.chosen = name  # type: ignore[attr-defined]
        await press(pilot, "1", "2")
        return text_of(pilot.app)

    shown = form(steps, launcher).splitlines()
    (bundle,) = [line for line in shown if line.startswith(" bundle ")]
    assert "[bold]模型\\x1b[31m" in bundle
    assert [line for line in shown if line.startswith(" framework ")]
    assert not any("\x1b" in line for line in shown)


@pytest.mark.parametrize("size", [(60, 20), (20, 5)])
def test_one_pane_where_there_is_room_for_one(launcher: Launcher, size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[None]) -> tuple[str, str, str]:
        before = text_of(pilot.app)
        await press(pilot, "d")
        plan = text_of(pilot.app)
        await press(pilot, "escape")
        return before, plan, text_of(pilot.app)

    before, plan, after = form(steps, launcher, "digits-cnn", size=size)
    assert before == after
    if size == (60, 20):
        assert "ready: r runs it" not in before
        assert "ready: r runs it" in plan
        assert "scenario" in before


def test_options_that_are_seldom_written_are_folded(launcher: Launcher) -> None:
    async def steps(pilot: Pilot[None]) -> tuple[str, str, str, str]:
        at(pilot, "advanced")
        await press(pilot)
        folded = text_of(pilot.app)
        await press(pilot, "o", "down")
        assert isinstance(pilot.app.focused, Field)
        assert pilot.app.focused.spec.key == "architecture"
        at(pilot, "seed")
        await press(pilot, "enter", "7", "enter")
        at(pilot, "timeout")
        await press(pilot, "enter", *"soon", "enter")
        unfolded = text_of(pilot.app)
        # What is wrong in a field that is folded again is shown where it is mended.
        await press(pilot, "o")
        again = text_of(pilot.app)
        at(pilot, "threads")
        await press(pilot, "r")
        assert pilot.app.focused.spec.key == "timeout"
        return folded, unfolded, again, pilot.app.screen.command_line()  # type: ignore[attr-defined]

    folded, unfolded, again, command = form(steps, launcher, "digits-cnn", size=(120, 50))
    assert "< folded >" in folded
    assert "seldom written: arch, seed" in folded
    assert "plain-http" not in "".join(line[:18] for line in folded.splitlines())
    assert "plain-http" in "".join(line[:18] for line in unfolded.splitlines())
    assert "'soon' is no duration" in unfolded
    assert "folded; seed, timeout said" in again
    assert command == "mlbundle run digits-cnn --seed 7 --timeout soon"
    assert launcher.started == []


def test_a_scenario_of_ones_own_has_a_name_and_options_of_its_own(launcher: Launcher, tmp_path: Path) -> None:
    bundle = str(make_bundle(tmp_path / "mini"))

    async def steps(pilot: Pilot[None]) -> tuple[str, str]:
        at(pilot, "runtime")
        await press(pilot, "left")
        at(pilot, "scenario")
        await press(pilot, "left")
        unnamed = text_of(pilot.app)
        at(pilot, "own_name")
        await press(pilot, "enter", *"bursts", "enter", "down", "enter", *"size=10 b=x", "enter")
        named = text_of(pilot.app)
        await press(pilot, "r")
        return unnamed, named

    unnamed, named = form(steps, launcher, bundle)
    assert "the scenario of your own has no name" in unnamed
    assert "target-latency" not in unnamed
    assert "bursts, size 10, b x" in named
    (options,) = launcher.started
    assert (options.scenario, options.scenario_options) == ("bursts", {"size": "10", "b": "x"})
    assert options.command[3:7] == ("--scenario", "plugin:bursts", "--runtime", "process")
    assert options.command[7:] == ("--set", "size=10", "--set", "b=x")
