"""The terminal UI as a user has it: in a real terminal, with a real run in a container, and what becomes of it."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Cli, make_bundle
from tui_terminal import Terminal, ui_command

END_WAIT_S = 120
GARBAGE = "[/red]\\x00 ${HOME} [b] ☃ 漢字 مرحبا a\u0301 \x1b[31m q\n1\r"


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
    """The UI starts a run, is killed, and finds it again: a run in a container, from the first key to its page."""
    bundle = make_bundle(tmp_path / "mini")
    before = runs_of(in_image_home)
    with Terminal(tmp_path, *ui_command(), size=(120, 40)) as terminal:
        terminal.wait_for("digits-cnn", "mlbundle run")
        terminal.press("2")
        terminal.wait_for("[ digits-cnn ]")  # which was under the cursor
        terminal.press_and_see("Enter")
        terminal.type(str(bundle))
        terminal.press("Enter")
        terminal.wait_for("mini:1.0.0", "ready: r runs it")
        terminal.press("r")
        terminal.wait_for("throughput", "Leave")
        (run,) = runs_of(in_image_home) - before
        terminal.kill(signal.SIGKILL)
        assert terminal.wait_for_end() == 128 + signal.SIGKILL
    with Terminal(tmp_path, *ui_command(), size=(120, 40)) as terminal:
        terminal.wait_for("digits-cnn")
        terminal.press("3")
        terminal.wait_for("mini", "mlbundle runs")
        record = record_of(run)
        # A line that does not know yet that its run has ended opens the live view, and that the page.
        terminal.until_pressed("Enter", "VALID")
        shown = terminal.wait_for("VALID", "docker", run.name)
        assert "as claimed" in shown
        terminal.press_and_see("Escape")
        terminal.press("q")
        assert terminal.wait_for_end() == 0
    assert (record["run_id"], record["status"], record["runtime"]) == (run.name, "completed", "docker")
    assert record["command"].startswith("mlbundle run ")


def watch_the_run(terminal: Terminal, run_id: str) -> None:
    """Go from the start to the live view of the run that goes on."""
    terminal.wait_for("digits-cnn")
    terminal.press("3")
    terminal.wait_for("mini", "▶")
    terminal.press("Enter")
    terminal.wait_for(run_id, "throughput")


def test_a_run_goes_on_when_the_ui_is_killed_and_is_found_again(home: Path, tmp_path: Path, cli: Cli) -> None:
    bundle = make_bundle(tmp_path / "mini")
    run_options = ("--runtime", "process", "--python", sys.executable, "--duration", "120s", "--no-accuracy")
    started = cli("run", bundle, *run_options, "--detach", "--json")
    assert started.status == 0, started.stderr
    (folder,) = runs_of(home)
    with Terminal(tmp_path, *ui_command(), size=(120, 40)) as terminal:
        watch_the_run(terminal, folder.name)
        terminal.kill(signal.SIGKILL)
        assert terminal.wait_for_end() == 128 + signal.SIGKILL
    assert not (folder / "record.json").exists()
    with Terminal(tmp_path, *ui_command(), size=(120, 40)) as terminal:
        watch_the_run(terminal, folder.name)
        terminal.press("x")
        terminal.wait_for("Stop this run?")
        terminal.press("y")
        terminal.wait_for("enter opens the results")
        terminal.press("Enter")
        terminal.wait_for("CANCELLED", "Summary", folder.name)
        terminal.kill(signal.SIGTERM)
        assert terminal.wait_for_end() == 143
        terminal.until(lambda shown: "Summary" not in shown, "the terminal as it was")
    assert record_of(folder)["status"] == "cancelled"


def test_tiny_terminals_storms_of_sizes_garbage_and_a_hang_up(tmp_path: Path) -> None:
    """And no colour, as NO_COLOR says; the home of the demo is gone at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    variables = {"NO_COLOR": "1", "TMPDIR": str(folder)}
    with Terminal(tmp_path, *ui_command("--demo"), size=(20, 5), env=variables) as terminal:
        terminal.wait_for("Bundles")
        for key in "123451":
            terminal.press(key)
        for number in range(40):
            terminal.resize(20 + number * 37 % 160, 5 + number * 11 % 45)
        terminal.resize(1, 1)
        terminal.resize(120, 40)
        terminal.wait_for("DEMO", "resnet50", "by name")
        assert coloured(terminal.text(escapes=True)) == set()
        terminal.press("/")
        terminal.wait_for("f1 Help")  # in the line, where ? is a letter; rows may still come
        terminal.type(f"\x1b[200~{GARBAGE}\x1b[201~")
        terminal.wait_for("nothing fits", "漢字")
        terminal.press("Escape")
        terminal.wait_for("resnet50")
        terminal.press("3")
        terminal.wait_for("cancelled", "10 runs")
        terminal.press("/")
        terminal.wait_for("f1 Help")
        terminal.type("'; DROP TABLE runs; --")
        terminal.wait_for("nothing fits")
        terminal.press("Escape")  # leaves the line
        terminal.wait_for("q Quit")
        terminal.press("Escape")  # clears it
        terminal.wait_for("10 runs")
        assert list(folder.glob("mlbundle-demo-*"))
        terminal.kill(signal.SIGHUP)
        assert terminal.wait_for_end() == 129
    assert list(folder.glob("mlbundle-demo-*")) == []


def coloured(text: str) -> set[tuple[int, ...]]:
    """The colours of a text with escape sequences that are no grey."""
    found = re.findall(r"[34]8;2;(\d+);(\d+);(\d+)", text)
    return {rgb for rgb in (tuple(map(int, one)) for one in found) if max(rgb) - min(rgb) > 1}


def test_without_a_terminal_it_says_so(cli: Cli, tmp_path: Path) -> None:
    assert "--port is for --web" in cli("tui", "--port", "8000").stderr
    outcome = cli("tui", "--demo")
    assert outcome.status == 2
    assert "needs a terminal" in outcome.stderr
    # What it draws on must be the terminal too.
    with Terminal(tmp_path, "sh", "-c", f"{' '.join(ui_command())} 2> log") as terminal:
        assert terminal.wait_for_end() == 2
    assert "needs a terminal" in (tmp_path / "log").read_text()
