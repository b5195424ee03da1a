"""`mlbundle sweep` end to end: planned, driven, killed, gone on with."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support import Cli, command_line, make_bundle

# --concurrent: nobody is waited for, and no result is valid, whatever the machine does meanwhile.
HERE = (
    "--runtime",
    "process",
    "--python",
    sys.executable,
    "--warmup",
    "10ms",
    "--concurrent",
    "--trace",
    "none",
)
SHORT = "60ms"
LONG = "3s"


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "mini")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command_line(*arguments),
            cwd=tmp_path,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def log(home: Path) -> list[dict[str, Any]]:
    (path,) = (home / "data" / "sweeps").glob("*/cells.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def begun(home: Path) -> list[int]:
    return [line["cell"] for line in log(home) if line["event"] == "begun"]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(ValueError, OSError):
            if condition():
                return
        time.sleep(0.02)
    pytest.fail("it did not come to that within a minute")


def measuring(home: Path, cell: int) -> Callable[[], bool]:
    def told() -> bool:
        (path,) = (home / "data" / "sweeps").glob(f"*/attempts/{cell:04d}-1/stderr.log")
        return "\nmeasuring" in path.read_text()

    return told


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def runs(home: Path) -> int:
    return len(list((home / "data" / "runs").glob("*/record.json")))


def test_a_dry_run_shows_lines_that_run_and_makes_nothing(cli: Cli, mini: Path, home: Path) -> None:
    asked = ("sweep", "run", mini, *HERE, "--scenario", "online,batched", "--batch-sizes", "1,4", "--dry-run")
    plan = cli(*asked, "--json").document()
    assert not (home / "data").exists()
    assert plan["schema"] == "mlbundle/sweep-plan/v1"
    assert [c["values"].get("batch-sizes") for c in plan["cells"]] == [None, "1", "4"]
    assert all(plan["bundle"]["manifest_digest"] in c["command"] for c in plan["cells"])
    table = cli(*asked).stdout
    assert all(c["command"] in table for c in plan["cells"])
    assert "3 cells of mini:1.0.0, at least" in table, "nothing was run here before"
    assert not (home / "data").exists()


def test_a_sweep_needs_a_yes_where_nobody_can_be_asked(cli: Cli, mini: Path, home: Path) -> None:
    error = cli("sweep", "run", mini, *HERE, "--json").error(2, "usage")
    assert "--yes" in error["hint"]
    assert not (home / "data" / "sweeps").exists()


def test_who_says_no_has_run_nothing(mini: Path, home: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"n\n")
    done = subprocess.run(
        command_line("sweep", "run", mini, *HERE, "--seed", "1,2"),
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=60,
    )
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0, done.stderr
    assert "Run 2 cells?" in done.stderr
    assert "nothing was run" in done.stderr
    assert "mlbundle run sha256:" not in done.stderr, "commands are for --plan and --dry-run"
    assert not (home / "data" / "sweeps").exists()


def test_rounds_are_summed_up(cli: Cli, mini: Path) -> None:
    asked = ("sweep", "run", mini, *HERE, "--seed", "1,2", "--rounds", "2", "--duration", SHORT, "--yes")
    assert cli(*asked).status == 1
    found = cli("sweep", "show", "latest", "--json").document()
    assert [(group["values"]["seed"], group["cells"]) for group in found["groups"]] == [
        (1, [1, 3]),
        (2, [2, 4]),
    ]
    for group in found["groups"]:
        means = [cell["trimmed_mean_ns"] for cell in found["cells"] if cell["cell"] in group["cells"]]
        assert (group["rounds"], group["good"], group["headline"]) == (2, 0, "trimmed mean")
        assert group["mean"] == pytest.approx(sum(means) / 2)
        assert (group["lowest"], group["highest"]) == (min(means), max(means))
        assert group["interval"][0] <= group["lowest"] <= group["highest"] <= group["interval"][1]
    table = cli("sweep", "show", "latest").stdout
    assert re.search(r"^online +onnxruntime +1 +2 +0 +\S+ us  +\S+ us  +\S+ us$", table, re.MULTILINE)


def test_a_matrix_is_run_shown_and_taken_away(cli: Cli, mini: Path, home: Path, tmp_path: Path) -> None:
    (tmp_path / "sweep.yml").write_text(
        f"""\
schema: mlbundle/sweep/v1
reference: mini
axes:
  scenario: [online, batched]
  runtime: process
  batch-sizes: [1, 4]
  duration: {SHORT}
  warmup: 10ms
exclude: [{{batch-sizes: 1}}]
options: {{python: {sys.executable}, concurrent: true, trace: none}}
"""
    )
    outcome = cli("sweep", "run", "sweep.yml", "--yes")
    assert outcome.status == 1, outcome.stderr
    assert "cell 2 of 2" in outcome.stderr
    assert "INVALID" in outcome.stdout

    found = cli("sweep", "show", "latest", "--json").document()
    assert [c["scenario"] for c in found["cells"]] == ["online", "batched"]
    for cell in found["cells"]:
        record = json.loads((home / "data" / "runs" / cell["run_id"] / "record.json").read_text())
        assert record["scenario"]["name"] == cell["scenario"]
        assert record["bundle"]["manifest_digest"] == found["bundle"]["manifest_digest"]
        assert record["sweep"] == {"id": found["sweep_id"], "cell": cell["cell"], "attempt": 1}
        assert cell["throughput_per_s"] == record["result"]["throughput_per_s"]
        assert (cell["accuracy"], cell["good"]) == (1.0, False)
    rows = list(csv.DictReader(io.StringIO(cli("sweep", "show", "latest", "--format", "csv").stdout)))
    assert [row["run_id"] for row in rows] == [cell["run_id"] for cell in found["cells"]]

    (row,) = cli("sweep", "list", "--json").document()["sweeps"]
    assert (row["state"], row["cells"], row["not_good"]) == ("complete", 2, 2)
    assert cli("sweep", "rm", "latest").status == 0
    assert cli("sweep", "list", "--json").document()["sweeps"] == []
    assert runs(home) == 2


def test_after_a_kill_it_goes_on_and_nothing_is_done_twice(
    cli: Cli, mini: Path, home: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    driver = started("sweep", "run", mini, *HERE, "--duration", f"{SHORT},{LONG},70ms", "--yes")
    until(measuring(home, 2))
    (run,) = children(driver)
    # It does not come to its end while we look.
    os.kill(run, signal.SIGSTOP)
    assert "another process" in cli("sweep", "resume", "latest", "--json").error(2, "usage")["message"]
    told = cli("sweep", "show", "latest", "--json").document()["cells"]
    assert [cell["state"] for cell in told] == ["INVALID", "under way", "to do"]
    driver.kill()
    driver.wait()
    with suppress(ProcessLookupError):
        os.kill(run, signal.SIGCONT)
    told = cli("sweep", "show", "latest", "--json").document()["cells"]
    assert told[1]["state"] == "stopped, to do again"
    found = cli("sweep", "resume", "latest", "--json")
    assert is_gone(run)
    assert found.status == 1, found.stderr
    cells = found.document()["cells"]
    assert [c["outcome"] for c in cells] == ["completed"] * 3
    # The run that went on when its driver died may have come to its end in that moment: then it counts.
    attempts = cells[1]["attempts"]
    assert [c["attempts"] for c in cells] == [1, attempts, 1]
    assert attempts in {1, 2}
    assert begun(home) == [1, *([2] * attempts), 3]

    # The driver died after the last run had answered, before it could write that down.
    (path,) = (home / "data" / "sweeps").glob("*/cells.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:20])
    before = runs(home)
    again = cli("sweep", "resume", "latest", "--json").document()
    assert "nothing was left to run" in cli("sweep", "resume", "latest").stderr
    assert runs(home) == before
    assert begun(home) == [1, *([2] * attempts), 3]
    assert [c["run_id"] for c in again["cells"]] == [c["run_id"] for c in found.document()["cells"]]


def test_ctrl_c_stops_the_run_under_way_and_says_how_to_go_on(
    cli: Cli, mini: Path, home: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    driver = started("sweep", "run", mini, *HERE, "--duration", "10m,11m", "--yes")
    until(measuring(home, 1))
    (run,) = children(driver)
    os.kill(driver.pid, signal.SIGINT)
    _, said = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert is_gone(run)
    assert "mlbundle sweep resume" in said
    assert "Traceback" not in said
    assert begun(home) == [1]
    (row,) = cli("sweep", "list", "--json").document()["sweeps"]
    assert (row["state"], row["left"]) == ("stopped", 2)
    cells = cli("sweep", "show", "latest", "--json").document()["cells"]
    assert [cell["state"] for cell in cells] == ["stopped, to do again", "to do"]


def test_a_run_that_is_killed_is_tried_once_more(
    mini: Path, home: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    driver = started("sweep", "run", mini, *HERE, "--duration", LONG, "--yes", "--format", "jsonl")
    until(measuring(home, 1))
    (run,) = children(driver)
    os.kill(run, signal.SIGKILL)
    printed, _ = driver.communicate(timeout=60)
    (cell,) = map(json.loads, printed.splitlines())
    assert (cell["outcome"], cell["attempts"]) == ("completed", 2)
    first = next(line for line in log(home) if line["event"] == "ended")
    assert first["outcome"] == "lacking"
    assert "SIGKILL" in first["error"]["message"]


def test_what_lacks_is_tried_once_more_and_what_fails_is_not_and_the_others_go_on(
    cli: Cli, tmp_path: Path, home: Path
) -> None:
    make_bundle(tmp_path / "bad", preprocess="raise ValueError('no such thing')")
    asked = ("sweep", "run", "bad", *HERE, "--duration", SHORT, "-y", "--json")
    lacking = cli(*asked)
    assert lacking.status == 3, lacking.stderr
    (cell,) = lacking.document()["cells"]
    assert (cell["outcome"], cell["attempts"], cell["exit_status"]) == ("lacking", 2, 3)
    assert cell["error"]["reference"] == "trust-required"
    # Gone on with, it gets another chance.
    assert cli("sweep", "resume", "latest", "--json").status == 3
    assert begun(home) == [1, 1, 1, 1]
    assert cli("sweep", "rm", "latest").status == 0

    failing = cli(*asked, "--trust", "--seed", "1,2")
    assert failing.status == 4, failing.stderr
    for cell in failing.document()["cells"]:
        assert (cell["outcome"], cell["attempts"], cell["exit_status"]) == ("failed", 1, 4)
        assert cell["error"]["message"]
        record = json.loads((home / "data" / "runs" / cell["run_id"] / "record.json").read_text())
        assert record["status"] == "failed"
        assert f"--seed {cell['values']['seed']}" in record["command"]
    assert cli("sweep", "resume", "latest", "--json").status == 4
    assert begun(home) == [1, 2]


def test_a_matrix_and_options_exclude_each_other(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "sweep.yml").write_text("schema: mlbundle/sweep/v1\nreference: digits-cnn\n")
    assert (
        "--threads"
        in cli("sweep", "run", "sweep.yml", "--threads", "1", "--json").error(2, "usage")["message"]
    )
    (tmp_path / "sweep.yml").write_text("schema: mlbundle/sweep/v1\nreference: digits-cnn\nrunds: 2\n")
    error = cli("sweep", "run", "sweep.yml", "--json").error(2, "usage")
    assert error["where"].endswith("sweep.yml:3:1")
    assert "rounds" in error["hint"]
