"""Runs of each scenario that are to be killed in the middle, and what must be left of them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
from framework_pythons import framework_python
from support import command_line, make_bundle

from mlbundle.resources import load_schema
from mlbundle.runs.seen import seen_of

SEED = int(os.environ.get("MLBUNDLE_FAULT_SEED") or secrets.randbelow(1_000_000))
"""Repeats what a failed test printed, as far as processes that race can be repeated."""

SCENARIOS = {
    "online": ("--duration", "60s"),
    "batched": ("--duration", "20s"),
    "poisson": ("--rate", "200", "--duration", "60s"),
    "pipeline": ("--duration", "60s"),
    "cold-start": ("--repeats", "32"),
    "single-stream": ("--duration", "60s"),
    "multi-stream": ("--duration", "60s"),
    "server": ("--rate", "200", "--target-latency", "100ms", "--duration", "60s"),
    "offline": ("--duration", "60s", "--memory", "4GiB"),
}
# At a rate that LoadGen finds, it makes all queries beforehand: those of a minute fit into the memory if each is slow.
SLOW = """
import time
import numpy as np

class Predictor:
    def open(self, model, options):
        return None

    def predict(self, handle, batch):
        time.sleep(0.001 * len(batch["points"]))
        return [np.zeros((len(batch["points"]), 4), np.float32)]

    def close(self, handle):
        pass
"""
LOADGEN = ("single-stream", "multi-stream", "server", "offline")


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


def start(scenario: str, folder: Path, *, images: Path | None = None, engine: str | None = None) -> Run:
    """Begin a run in a home below `folder`; with the images lock of `images` in a container, of this engine."""
    home = folder / "home"
    bundle = make_bundle(folder / "mini")
    (bundle / "predictor.py").write_text(SLOW)
    with (bundle / "model.yml").open("a") as manifest:
        manifest.write("predictor: predictor.py\n")
    environment = {**os.environ, "MLBUNDLE_HOME": str(home)}
    if images is not None:
        (home / "data").mkdir(parents=True)
        shutil.copy(images, home / "data" / images.name)
        where = ["--runtime", "docker"]
        environment |= {} if engine is None else {"DOCKER_HOST": engine}
    else:
        python = framework_python("onnxruntime") if scenario in LOADGEN else sys.executable
        where = ["--runtime", "process", "--python", str(python)]
    process = subprocess.Popen(
        command_line(
            "run",
            bundle,
            *where,
            "--trust",
            "--concurrent",
            "--scenario",
            scenario,
            *SCENARIOS[scenario],
            "--json",
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    return Run(process, home)


def left_over(run: Run) -> dict[int, bytes]:
    """The worker's processes that are still there after a while."""
    deadline = time.monotonic() + 60
    while (found := run.workers()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


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
        assert record["error"]["reference"] in {"worker-failed", "worker-crashed", "engine-died"}, record[
            "error"
        ]
        assert record["error"]["hint"]
    assert record["phases_s"]["start"] > 0
    jsonschema.validate(record, load_schema("run"))
