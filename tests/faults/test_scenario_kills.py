"""SIGKILL in the middle of each scenario, of ourselves and of the worker: no orphan, and what was seen is kept."""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from framework_pythons import framework_python
from support import command_line, make_bundle

from mlbundle.config import load_settings
from mlbundle.resources import load_schema
from mlbundle.runs.recover import recover_left_runs
from mlbundle.runs.seen import seen_of
from mlbundle.runtime.docker import RUN_LABEL

SEED = int(os.environ.get("MLBUNDLE_FAULT_SEED") or secrets.randbelow(1_000_000))
"""Repeats what a failed test printed, as far as processes that race can be repeated."""

SCENARIOS = {
    "online": ("--duration", "60s"),
    "batched": ("--duration", "20s"),
    "poisson": ("--rate", "200", "--duration", "60s"),
    "pipeline": ("--duration", "60s"),
    "cold-start": ("--repeats", "32"),
    "single-stream": ("--duration", "5s"),
    "server": ("--rate", "200", "--target-latency", "100ms", "--duration", "60s"),
}
LOADGEN = ("single-stream", "server")


def moments(scenario: str) -> tuple[str, ...]:
    """Phases in which to kill a worker; all that a cold start does is measured."""
    return ("measure",) if scenario == "cold-start" else ("load", "measure")


@dataclass
class Run:
    """A command that runs a scenario in a home of its own."""

    process: subprocess.Popen[str]
    home: Path

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.until(lambda: next((self.home / "data" / "runs").glob("2*"), None), "has a folder")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until a condition gives something."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if found := condition():
                return found
            if self.process.poll() is not None:
                stdout, stderr = self.process.communicate()
                raise AssertionError(f"ended before it {what}: {stdout[-1000:]}{stderr[-1000:]}")
            time.sleep(0.02)
        raise AssertionError(f"60 s over before it {what}")

    def events(self) -> list[dict[str, Any]]:
        """What is written down; the last line may be half a line."""
        return [json.loads(line) for line in (self.folder / "events.jsonl").read_text().split("\n")[:-1]]

    def began(self, phase: str) -> None:
        """Wait until the worker begins a phase."""
        self.until(
            lambda: any(e["kind"] == "phase" and e["name"] == phase for e in self.events()),
            f"began to {phase}",
        )

    def told(self) -> None:
        """Wait until the worker has told something of its measuring."""

        def tells(event: dict[str, Any]) -> bool:
            return event["kind"] == "result" or event.get("phase") == "measure"

        self.until(lambda: any(map(tells, self.events())), "told how it goes")

    def workers(self) -> dict[int, bytes]:
        """Process id -> command line of each process of the worker that lives."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if (
                    entry.name.isdecimal()
                    and f"mlbundle-scratch-{self.folder.name}".encode() in (entry / "environ").read_bytes()
                ):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes()
        return found

    def kill(self, victim: str) -> None:
        """Kill ourselves, the worker's supervisor, or the process that measures."""
        if victim == "host":
            self.process.kill()
            return
        measuring = victim == "measuring process"
        chosen = self.until(
            lambda: [pid for pid, line in self.workers().items() if (b"--pass" in line) == measuring],
            "measures",
        )
        os.kill(chosen[0], signal.SIGKILL)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    begun: list[Run] = []

    def start(scenario: str, name: str, *, images: Path | None = None) -> Run:
        home = tmp_path / name / "home"
        bundle = make_bundle(tmp_path / name / "mini")
        if images is not None:
            (home / "data").mkdir(parents=True)
            shutil.copy(images, home / "data" / images.name)
            where = ["--runtime", "docker"]
        else:
            python = framework_python("onnxruntime") if scenario in LOADGEN else sys.executable
            where = ["--runtime", "process", "--python", str(python)]
        process = subprocess.Popen(
            command_line(
                "run", bundle, *where, "--concurrent", "--scenario", scenario, *SCENARIOS[scenario], "--json"
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "MLBUNDLE_HOME": str(home)},
        )  # fmt: skip
        begun.append(Run(process, home))
        return begun[-1]

    yield start
    for run in begun:
        run.process.kill()
        run.process.communicate()


def left_over(run: Run) -> dict[int, bytes]:
    """The worker's processes that are still there after a while."""
    deadline = time.monotonic() + 10
    while (found := run.workers()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_leaves_no_orphan_and_keeps_what_was_seen(
    begin, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{SEED} {scenario}")
    victim, moment = chance.choice(("supervisor", "measuring process")), chance.choice(moments(scenario))
    why = f"MLBUNDLE_FAULT_SEED={SEED}: {victim} while it was to {moment}"
    ours, theirs = begin(scenario, "ours"), begin(scenario, "theirs")
    theirs.began(moment)
    time.sleep(chance.random() * 0.3)
    theirs.kill(victim)
    ours.told()
    time.sleep(chance.random() * 0.3)
    ours.kill("host")

    _, stderr = theirs.process.communicate(timeout=60)
    assert theirs.process.returncode == 4, f"{why}\n{stderr}"
    assert "Traceback" not in stderr
    ours.process.wait()
    for run, status in ((ours, "partial"), (theirs, "failed")):
        assert left_over(run) == {}, f"orphans; {why}"
        monkeypatch.setenv("MLBUNDLE_HOME", str(run.home))
        assert recover_left_runs(load_settings()) == ([run.folder.name] if status == "partial" else [])
        check_kept(run, status, why)


@pytest.mark.engine
@pytest.mark.parametrize(("scenario", "victim"), [("server", "host"), ("pipeline", "container")])
def test_a_kill_leaves_no_container_and_keeps_what_was_seen(
    begin, engine: Any, image_home: Path, scenario: str, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(scenario, "contained", images=image_home / "data" / "images.lock")
    run.told()
    time.sleep(random.Random(f"{SEED} {victim}").random() * 0.3)
    label = {"label": f"{RUN_LABEL}={run.folder.name}"}
    (container,) = engine.api.containers(filters=label)
    if victim == "host":
        run.process.kill()
        run.process.wait()
    else:
        engine.api.kill(container["Id"])
        assert run.process.wait(60) == 4
    deadline = time.monotonic() + 10
    while (left := engine.api.containers(all=True, filters=label)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == [], f"MLBUNDLE_FAULT_SEED={SEED}"
    monkeypatch.setenv("MLBUNDLE_HOME", str(run.home))
    recover_left_runs(load_settings())
    check_kept(run, "partial" if victim == "host" else "failed", f"MLBUNDLE_FAULT_SEED={SEED}")


def check_kept(run: Run, status: str, why: str) -> None:
    """What a run must leave behind however it ended."""
    folder = run.folder
    record = json.loads((folder / "record.json").read_text())
    assert (record["status"], record["validity"]["valid"]) == (status, False), why
    assert record["validity"]["reasons"]
    assert record["result"] is None, "half a result is none"
    assert not list(folder.rglob("*.part")), f"half a file; {why}"
    assert not (Path(tempfile.gettempdir()) / f"mlbundle-scratch-{folder.name}").exists()
    assert (folder / "job.json").is_file()
    seen = seen_of(folder)
    windows = [event for event in run.events() if event["kind"] == "window"]
    assert record["seen"] == seen
    assert [p["kind"] for p in record["passes"]] == [
        path.name.partition("-")[2] for path in sorted(folder.glob("passes/*")) if any(path.iterdir())
    ]
    assert seen.get("queries", 0) == sum(window["queries"] for window in windows)
    if status == "partial":
        assert seen["phase"] == "measure", "that is where it was killed"
        assert seen.get("queries") or seen.get("progress") or seen["passes_done"], f"nothing was kept; {why}"
    else:
        assert record["error"]["reference"] in {"worker-failed", "worker-crashed"}, record["error"]
        assert record["error"]["hint"]
    assert record["phases_s"]["start"] > 0
    jsonschema.validate(record, load_schema("run"))
