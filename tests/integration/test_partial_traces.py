"""A run that is killed or stopped leaves a trace of what was seen, which Perfetto reads without a loss."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from judge import TraceJudge
from support import command_line


def events(folder: Path) -> list[dict]:
    """What is written down; the last line may be half a line."""
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().split("\n")[:-1]]


def until_it_measures(process: subprocess.Popen, home: Path) -> Path:
    """Return the folder of the run once it has told two windows."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for folder in (home / "data" / "runs").glob("2*"):
            told = events(folder) if (folder / "events.jsonl").exists() else []
            if sum(event["kind"] == "window" for event in told) >= 2:
                return folder
        time.sleep(0.05)
    raise AssertionError("it never measured")


@pytest.mark.parametrize(("how", "status"), [(signal.SIGKILL, "partial"), (signal.SIGINT, "cancelled")])
def test_what_was_seen_until_then_is_in_the_trace(cli, home, how: int, status: str) -> None:
    here = ("--runtime", "process", "--python", sys.executable, "--concurrent")
    process = subprocess.Popen(
        command_line("run", "digits-cnn", *here, "--duration", "10m"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        folder = until_it_measures(process, home)
    finally:
        process.send_signal(how)
        process.wait(60)
    record = cli("runs", "show", folder.name, "--json").document()
    assert record["status"] == status
    windows = [event for event in events(folder) if event["kind"] == "window"]
    with TraceJudge(folder / record["files"]["trace"]) as trace:
        assert trace.losses() == {}
        slices = {s.name: s for s in trace.slices()}
        assert slices["measure"].dur == -1, "what was going on stays open"
        assert slices["warm-up"].dur > 0
        assert slices["run"].args["run_id"] == folder.name
        assert "did not come to its end" in slices["run"].args["note"]
        counters = trace.counters()
        assert len(counters["p50"]) == len(windows)
        assert "cpu" in counters
