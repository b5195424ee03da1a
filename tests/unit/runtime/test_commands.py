"""Long commands: what they say is heard as they say it, and nothing of them runs on when we are gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlbundle.runtime.commands import call

# Itself, a child, and a child in the background that holds no pipe.
FAMILY = "sleep 600 & echo $!; sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1' & echo $$; wait"

CALLER = f"""
from mlbundle.runtime.commands import call
call(["sh", "-c", {FAMILY!r}], lambda line: print(line, flush=True))
"""


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for_end(processes: list[int]) -> None:
    deadline = time.monotonic() + 60
    while [process for process in processes if alive(process)]:
        assert time.monotonic() < deadline, "they run on"
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_runs_on_when_the_caller_ends(number) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CALLER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as caller:
        assert caller.stdout is not None
        processes = [int(caller.stdout.readline()) for _ in range(3)]
        assert all(map(alive, processes))
        caller.send_signal(number)
        caller.wait(60)
    wait_for_end(processes)


def test_an_exception_ends_the_command_and_what_it_started() -> None:
    processes: list[int] = []

    def hear(line: str) -> None:
        processes.append(int(line))
        if len(processes) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(["sh", "-c", FAMILY], hear)
    wait_for_end(processes)


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 7", 7), ("kill -9 $$", -9), ("kill -PIPE $$", -13), ("exec >&- 2>&-; exit 3", 3)],
)
def test_the_status_is_the_commands(script, status) -> None:
    heard: list[str] = []
    assert call(["sh", "-c", f"echo ' one '; echo two >&2; {script}"], heard.append) == (
        status,
        [" one", "two"],
    )
    assert heard == ["one", "two"]


def test_a_command_that_closes_its_output_is_waited_for(tmp_path) -> None:
    assert call(["sh", "-c", f"exec >&- 2>&-; sleep 0.2; echo done > {tmp_path}/done"], print) == (0, [])
    assert (tmp_path / "done").exists()


def test_bytes_that_are_no_text_are_heard_all_the_same() -> None:
    _, tail = call(["printf", r"a\377b\n"], lambda _line: None)
    assert tail == ["a\N{REPLACEMENT CHARACTER}b"]


@pytest.mark.parametrize("program", ["/no/such/program", "."])
def test_a_program_that_cannot_be_started_is_an_os_error(program) -> None:
    with pytest.raises(OSError) as caught:
        call([program], print)
    assert caught.value.filename == program
    assert caught.value.strerror


def test_a_command_has_only_its_own_variables_and_no_input() -> None:
    status, tail = call(
        [
            sys.executable,
            "-c",
            "import os, sys; print(sys.stdin.read(), os.environ.get('HOME'), os.environ['A'])",
        ],
        lambda _line: None,
        env={"A": "b", "PYTHONIOENCODING": "utf-8"},
    )
    assert (status, tail) == (0, [" None b"])
