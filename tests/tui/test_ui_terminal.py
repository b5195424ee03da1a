"""The terminal UI as a user has it: in a real terminal, with a real run in a container, and what becomes of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Cli, make_bundle
from tui_terminal import Terminal, ui_command

END_WAIT_S = 60


def until(holds: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + END_WAIT_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not so after {END_WAIT_S} s: {what}"
        time.sleep(0.05)
    return found


def runs_of(home: Path) -> set[Path]:
    return set((home / "data" / "runs").glob("2*"))


def record_of(run: Path) -> dict[str, Any]:
    """Wait for the record of a run, and return it."""
    until((run / "record.json").exists, "the run has ended")
    return json.loads((run / "record.json").read_text())


@pytest.mark.engine
def test_from_the_start_to_the_page_of_a_run_in_docker(in_image_home: Path, tmp_path: Path) -> None:
    before = runs_of(in_image_home)
    with Terminal(tmp_path, *ui_command(), size=(120, 40)) as terminal:
        terminal.wait_for("digits-cnn", "ready")
        terminal.press("r")
        terminal.wait_for("ready: r runs it", "mlbundle run digits-cnn", "sha256:")
        terminal.press("r")
        terminal.wait_for("throughput", "measure", "Leave")
        terminal.wait_for("enter opens the results")
        terminal.press("Enter")
        shown = terminal.wait_for("VALID", "as claimed", "docker")
        (run,) = runs_of(in_image_home) - before
        assert run.name in shown
        terminal.press_and_see("Escape")
        terminal.press("q")
        assert terminal.wait_for_end() == 0
    record = record_of(run)
    assert (record["status"], record["runtime"]) == ("completed", "docker")
    assert record["command"].startswith("mlbundle run digits-cnn")


def test_a_run_goes_on_when_the_ui_is_killed_and_is_found_again(home: Path, tmp_path: Path, cli: Cli) -> None:
    bundle = make_bundle(tmp_path / "mini")
    run_options = ("--runtime", "process", "--python", sys.executable, "--duration", "8s")
    with Terminal(tmp_path, *ui_command(), size=(120, 40)) as terminal:
        terminal.wait_for("digits-cnn")
        started = cli("run", bundle, *run_options, "--detach", "--json")
        assert started.status == 0, started.stderr
        (folder,) = runs_of(home)
        run = folder.name
        terminal.press("3")
        terminal.wait_for("mini", "▶")
        terminal.press("Enter")
        terminal.wait_for(run, "throughput")
        terminal.kill(signal.SIGKILL)
        assert terminal.wait_for_end() == 128 + signal.SIGKILL
    assert not (folder / "record.json").exists()
    with Terminal(tmp_path, *ui_command(), size=(120, 40)) as terminal:
        terminal.wait_for("digits-cnn")
        terminal.press("3")
        terminal.wait_for("mini", "▶")
        terminal.press("Enter")
        terminal.wait_for(run, "enter opens the results")
        terminal.press("Enter")
        terminal.wait_for("as claimed", run)
    assert record_of(folder)["status"] == "completed"


@pytest.mark.engine
def test_a_run_that_the_ui_started_goes_on_when_the_terminal_is_gone(
    in_image_home: Path, tmp_path: Path
) -> None:
    make_bundle(tmp_path / "mini")
    before = runs_of(in_image_home)
    with Terminal(tmp_path, *ui_command(), size=(120, 40)) as terminal:
        terminal.wait_for("digits-cnn")
        terminal.press("2")
        terminal.wait_for("no bundle is chosen")
        terminal.press_and_see("Enter")
        terminal.type(f"{tmp_path}/mini")
        terminal.press("Enter")
        terminal.wait_for("r runs it")
        terminal.press("r")
        terminal.wait_for("throughput", "Leave")
        (run,) = runs_of(in_image_home) - before
        pid = terminal.pid
        terminal.hang_up()
        until(lambda: not Path(f"/proc/{pid}").exists(), "the UI is gone with its terminal")
    record = record_of(run)
    assert (record["run_id"], record["status"], record["bundle"]["name"]) == (run.name, "completed", "mini")


def test_sigterm_ends_it_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    with Terminal(tmp_path, *ui_command("--demo"), size=(100, 30)) as terminal:
        terminal.wait_for("DEMO", "digits-cnn")
        terminal.kill(signal.SIGTERM)
        assert terminal.wait_for_end() == 143
        terminal.until(lambda shown: "DEMO" not in shown, "the terminal as it was")


def test_a_hang_up_takes_the_home_of_the_demo_away(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    with Terminal(tmp_path, *ui_command("--demo"), env={"TMPDIR": str(folder)}) as terminal:
        terminal.wait_for("DEMO", "digits-cnn")
        assert list(folder.glob("mlbundle-demo-*"))
        terminal.kill(signal.SIGHUP)
        assert terminal.wait_for_end() == 129
    assert list(folder.glob("mlbundle-demo-*")) == []


def test_a_tiny_terminal_and_a_storm_of_sizes(tmp_path: Path) -> None:
    with Terminal(tmp_path, *ui_command("--demo"), size=(20, 5)) as terminal:
        terminal.wait_for("Bundles")
        for key in "123453":
            terminal.press(key)
        for number in range(40):
            terminal.resize(20 + number * 37 % 160, 5 + number * 11 % 45)
        terminal.resize(1, 1)
        terminal.resize(120, 40)
        terminal.wait_for("DEMO", "digits-cnn", "cancelled")
        terminal.press("q")
        assert terminal.wait_for_end() == 0


def test_garbage_that_is_pasted_is_a_text(tmp_path: Path) -> None:
    with Terminal(tmp_path, *ui_command("--demo"), size=(120, 40)) as terminal:
        terminal.wait_for("environment missing", "by name")
        terminal.press("/")
        terminal.press_and_see("x")  # the line takes what is typed
        terminal.type("\x1b[200~[/red]\\x00 ${HOME} [b] ☃ 漢字 مرحبا a\u0301 \x1b[31m q\n1\r\x1b[201~")
        terminal.wait_for("nothing fits", "漢字")
        terminal.press_and_see("Escape")
        terminal.wait_for("digits-cnn")
        terminal.press_and_see("3")
        terminal.wait_for("cancelled")
        terminal.press_and_see("/")
        terminal.type("'; DROP TABLE runs; --")
        terminal.wait_for("nothing fits")
        terminal.press_and_see("Escape")  # leaves the line
        terminal.press_and_see("Escape")  # clears it
        terminal.wait_for("10 runs")
        terminal.press("q")
        assert terminal.wait_for_end() == 0


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["tui"], "needs a terminal"),
        (["tui", "--demo"], "needs a terminal"),
        (["tui", "--port", "8000"], "--port is for --web"),
    ],
)
def test_without_a_terminal_it_says_so(cli: Cli, command: list[str], says: str) -> None:
    outcome = cli(*command)
    assert outcome.status == 2
    assert says in outcome.stderr


def test_what_it_draws_on_must_be_the_terminal_too(tmp_path: Path) -> None:
    line = f"{' '.join(ui_command())} 2> log"
    with Terminal(tmp_path, "sh", "-c", line) as terminal:
        assert terminal.wait_for_end() == 2
    assert "needs a terminal" in (tmp_path / "log").read_text()


def test_no_color_has_none(tmp_path: Path) -> None:
    with Terminal(tmp_path, *ui_command("--demo"), env={"NO_COLOR": "1"}, size=(100, 30)) as terminal:
        terminal.wait_for("digits-cnn")
        escapes = subprocess.run(
            [*terminal._tmux, "capture-pane", "-p", "-e", "-t", "test"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    import re

    colours = {
        tuple(map(int, numbers.split(";"))) for numbers in re.findall(r"\x1b\[[34]8;2;([\d;]+)m", escapes)
    }
    assert all(max(colour) - min(colour) <= 1 for colour in colours), colours
