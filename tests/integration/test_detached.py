"""Runs that go on by themselves: started, watched and stopped from processes that have nothing else to do with them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from inprocess import InProcess
from support import Cli, command_line, make_bundle

from mlbundle.cli.params import complete_any_run, complete_running
from mlbundle.config import load_settings
from mlbundle.errors import UsageError
from mlbundle.runs.detach import start_by_command
from mlbundle.runs.folder import is_driven
from mlbundle.runs.owner import read_owner
from mlbundle.runs.queue import MachineLock, user_name
from mlbundle.runs.running import running_run, running_runs

HERE = (
    "--runtime",
    "process",
    "--python",
    sys.executable,
    "--trace",
    "none",
    "--no-accuracy",
    "--warmup",
    "10ms",
)
LONG, SHORT = ("--duration", "10m", "--concurrent"), ("--duration", "300ms")


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """Commands that need no process of their own."""
    monkeypatch.chdir(tmp_path)
    return InProcess(capsys)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("bundle") / "mini")


@pytest.fixture(autouse=True)
def _nothing_goes_on_afterwards(home: Path) -> Iterator[None]:
    yield
    for run in running_runs(load_settings()):
        owner = read_owner(home / "data" / "runs" / run.run_id / "owner.lock")
        assert owner is not None
        os.kill(owner.pid, signal.SIGKILL)


@pytest.fixture
def begin(cli: Cli, bundle: Path, home: Path) -> Callable[..., Path]:
    """Start a detached run; returns its folder."""

    def start(*arguments: str) -> Path:
        done = cli("run", bundle, *HERE, *arguments, "--detach")
        assert done.status == 0, done.stderr
        return home / "data" / "runs" / done.stdout.strip()

    return start


def wait_for(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.05)
    return found


def measures(folder: Path) -> bool:
    run = running_run(folder)
    return run is not None and run.phase == "measure" and run.progress is not None


def record_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "record.json").read_text())
    return found


def watch(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command_line("runs", "attach", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def first_line(process: subprocess.Popen[str]) -> str:
    """Wait until a watcher has begun."""
    stream = process.stdout if "jsonl" in process.args else process.stderr
    assert stream is not None
    return stream.readline()


def rest(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a watcher says after its first line, to its end; `communicate` would lose what was read with that line."""
    assert process.stdout is not None
    assert process.stderr is not None
    return process.stdout.read(), process.stderr.read()


def test_a_run_outlives_the_terminal_that_it_was_started_in(
    bundle: Path, home: Path, here: InProcess
) -> None:
    master, slave = pty.openpty()
    left_open, kept_open = os.pipe()
    words = " ".join(
        map(str, command_line("run", bundle, *HERE, "--duration", "1s", "--concurrent", "--detach"))
    )
    shell = subprocess.Popen(
        ["/bin/sh", "-c", f"{words}; echo status $?; sleep 60"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        pass_fds=(kept_open,),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - there are no threads
    )
    os.close(slave)
    os.close(kept_open)
    said = b""
    while b"status" not in said:
        said += os.read(master, 4096)
    assert b"status 0" in said, said
    (folder,) = (home / "data" / "runs").iterdir()
    assert folder.name.encode() in said
    owner = read_owner(folder / "owner.lock")
    assert owner is not None
    assert os.getsid(owner.pid) not in {os.getsid(0), shell.pid}
    # The window is closed and whatever is left of the terminal's processes killed.
    os.close(master)
    os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()
    assert is_driven(folder)
    assert os.read(left_open, 1) == b"", "what the shell left open for the command is still open"
    os.close(left_open)
    for number in (signal.SIGHUP, signal.SIGHUP):
        os.kill(owner.pid, number)
    done = here("runs", "attach", folder.name, "--json")
    # As of `run --concurrent`: it was completed, and its result does not count.
    assert (done.status, done.document()["status"]) == (1, "completed"), done.stderr


def test_a_run_is_listed_watched_from_several_places_and_stopped(
    begin: Callable[..., Path], here: InProcess
) -> None:
    folder = begin(*LONG)
    watchers = [watch("--format", "jsonl"), watch(folder.name[:-2]), watch("latest", "--format", "jsonl")]
    wait_for(lambda: measures(folder))
    (row,) = here("runs", "list", "--json").document()["runs"]
    assert (row["run_id"], row["status"], row["phase"]) == (folder.name, "running", "measure")
    assert (row["model"], row["framework"], row["scenario"]) == ("mini", "onnxruntime", "online")
    assert 0 <= row["progress"] < 1
    assert "running: measure" in here("runs", "list", "--model", "m*").stdout
    assert here("runs", "list", "--model", "other", "--json").document()["runs"] == []
    assert "runs attach" in here("runs", "show", "latest", "--json").error(2, "reference-not-found")["hint"]
    assert [item.value for item in complete_running(None, None, "2")] == [folder.name]  # type: ignore[arg-type]

    firsts = [first_line(process) for process in watchers]
    watchers[2].send_signal(signal.SIGINT)
    _, said = rest(watchers[2])
    assert watchers[2].wait(60) == 130
    assert f"run {folder.name} goes on" in said
    assert is_driven(folder)

    stopped = here("runs", "stop", "latest", "--json")
    assert stopped.document()["runs"] == [{"run_id": folder.name, "status": "cancelled", "was_over": False}]
    assert record_of(folder)["status"] == "cancelled"
    events, table = (rest(process) for process in watchers[:2])
    assert [process.wait(60) for process in watchers[:2]] == [143, 143]
    seen = [json.loads(text) for text in (firsts[0] + events[0]).splitlines()]
    assert [event["seq"] for event in seen] == list(range(len(seen))), "what was, and what came"
    assert (seen[-1]["kind"], seen[-1]["status"]) == ("end", "cancelled")
    assert "measuring" in firsts[1] + table[1]
    assert f"run         {folder.name}" in table[0]

    # Of a run that is over the record is shown, and the same events can be had.
    over = here("runs", "attach", "latest", "--json")
    assert (over.status, over.document()) == (143, record_of(folder))
    again = here("runs", "attach", folder.name, "--format", "jsonl")
    assert [json.loads(text) for text in again.stdout.splitlines()] == seen
    assert here("runs", "attach", "--json").error(2, "reference-not-found")["message"] == "no run goes on"
    stop_again = here("runs", "stop", "latest")
    assert (stop_again.status, stop_again.stdout) == (0, f"{folder.name} was over: cancelled\n")
    assert complete_running(None, None, "") == []  # type: ignore[arg-type]
    assert [item.value for item in complete_any_run(None, None, "")] == ["latest", folder.name]  # type: ignore[arg-type]


def test_a_run_of_another_terminal_is_stopped(bundle: Path, home: Path, here: InProcess) -> None:
    process = subprocess.Popen(
        command_line("run", bundle, *HERE, *LONG), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: running_runs(load_settings()))
    assert here("runs", "stop", "--all").stdout.endswith(" cancelled\n")
    _, said = process.communicate(timeout=60)
    assert (process.returncode, "stopped by a signal" in said) == (143, True)
    assert here("runs", "stop", "--all").status == 0, "nothing is left to be stopped"
    here("runs", "stop", "--json").error(2, "usage")


def test_a_run_that_waits_is_seen_and_stopped(bundle: Path, here: InProcess, home: Path) -> None:
    lock = MachineLock("the-other-run")
    lock.wait()
    try:
        run_id = start_by_command([str(bundle), *HERE, *SHORT])
        wait_for(lambda: [run for run in running_runs(load_settings()) if run.waiting])
        (row,) = here("runs", "list", "--json").document()["runs"]
        assert (row["run_id"], row["status"], row["scenario"]) == (run_id, "waiting", "online")
        events = (home / "data" / "runs" / run_id / "events.jsonl").read_text()
        assert f"to end: run the-other-run of {user_name()}, process {os.getpid()}" in events
        assert here("runs", "stop", run_id).stdout == f"{run_id} cancelled\n"
    finally:
        lock.close()
    assert record_of(home / "data" / "runs" / run_id)["scenario"]["options"]["duration_s"] == 0.3


def test_the_owner_is_killed_while_somebody_watches(begin: Callable[..., Path]) -> None:
    folder = begin(*LONG)
    wait_for(lambda: measures(folder))
    watcher = watch(folder.name, "--json")
    owner = read_owner(folder / "owner.lock")
    assert owner is not None
    first_line(watcher)
    os.kill(owner.pid, signal.SIGKILL)
    printed, _ = rest(watcher)
    assert watcher.wait(60) == 4
    assert json.loads(printed) == record_of(folder)
    assert record_of(folder)["status"] == "partial"


def test_a_process_that_does_not_hold_the_run_is_not_stopped(
    begin: Callable[..., Path], here: InProcess
) -> None:
    folder = begin(*LONG)
    lock = folder / "owner.lock"
    text = lock.read_text()
    with subprocess.Popen(["sleep", "60"]) as stranger:
        # As if the kernel had given the number to another process.
        lock.write_text(json.dumps({**json.loads(text), "pid": stranger.pid}))
        here("runs", "stop", "latest", "--json").error(3, "owner-out-of-reach")
        assert stranger.poll() is None
        stranger.kill()
    assert is_driven(folder)
    lock.write_text(text)
    assert here("runs", "stop", "--all").status == 0


def test_three_runs_wait_for_each_other(begin: Callable[..., Path], here: InProcess) -> None:
    folders = []
    with closing(MachineLock("the-other-run")) as lock:
        lock.wait()
        for _ in range(3):
            folders.append(begin(*SHORT))
            # Each is in the queue before the next one begins.
            wait_for(lambda: (run := running_run(folders[-1])) is not None and run.waiting)
    spans = []
    for folder in folders:
        done = here("runs", "attach", folder.name, "--format", "jsonl")
        assert record_of(folder)["status"] == "completed", done.stderr
        phases = [event for event in map(json.loads, done.stdout.splitlines()) if event["kind"] == "phase"]
        at = {(phase["name"], phase["state"]): phase["t_ns"] for phase in phases}
        spans.append((at["create", "begun"], at["measure", "done"]))
    # In the order in which they came, none before the one before it has ended.
    assert all(end < start for (_, end), (start, _) in zip(spans, spans[1:], strict=False)), spans


def test_what_keeps_a_run_from_beginning_is_told_at_once(bundle: Path, here: InProcess, home: Path) -> None:
    arguments = ("run", bundle, *HERE, "--detach", "--json")
    here(*arguments, "--python", "/no/python").error(2, "usage")
    with pytest.raises(UsageError, match="no Python"):
        start_by_command([str(bundle), "--runtime", "process", "--python", "/no/python"])
    assert "attach" in here(*arguments[:-1], "--format", "jsonl").stderr
    assert not (home / "data" / "runs").exists()


def test_a_folder_that_cannot_be_made_is_told_by_the_command(bundle: Path, cli: Cli, home: Path) -> None:
    (home / "data").mkdir()
    (home / "data" / "runs").write_text("a file where the folder should be")
    cli("run", bundle, *HERE, *SHORT, "--detach", "--json").error(3, "storage-failed")
