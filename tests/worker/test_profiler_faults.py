"""A bundle's own profiler that fails in any way: the profile is lost and said to be, what was measured is kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judge import TraceJudge
from support import make_bundle

PREDICTOR = """
import ctypes, os, sys, time
import numpy as np
from mlbundle.worker.profilers import base

class Handle:
    input_names = ["points"]
    output_names = ["scores"]

class Predictor:
    def open(self, model, options):
        return Handle()
    def predict(self, handle, batch):
        return [np.zeros((1, 4), np.float32)]
    def close(self, handle):
        pass

class Profiler(base.Profiler):
    def begin(self):
        {{"framework": self.begin_framework, "system": self.begin_system}}[self.level]()
    def begin_framework(self):
        {framework}
    def begin_system(self):
        {system}
    def layer(self, profile, **changes):
        run = self.runs[0]
        known = dict(run=0, index=0, name="layer", start_ns=run.start_ns, duration_ns=run.end_ns - run.start_ns)
        profile.add_layer(**{{**known, **changes}})
    def read(self, runs, profile):
        self.runs = runs
        for n in range(len(runs)):
            at = dict(start_ns=runs[n].start_ns, duration_ns=0)
            profile.add_layer(run=n, index=0, name="only", **at)
            {read}
"""
SOUND = "pass"


def bundle_with(folder: Path, framework: str = SOUND, system: str = SOUND, read: str = SOUND) -> Path:
    made = make_bundle(folder, accuracy=0.25)
    text = PREDICTOR.format(framework=framework, system=system, read=read)
    (made / "predictor.py").write_text(text)
    with (made / "model.yml").open("a") as manifest:
        manifest.write("predictor: predictor.py\n")
    return made


def commands() -> Iterator[str]:
    """Yield the command lines of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_text(errors="replace")


@pytest.fixture
def profiled(cli, home, tmp_path):
    def run(*options: Any, **bodies: str) -> tuple[dict[str, Any], Any]:
        bundle = bundle_with(tmp_path / "bundle", **bodies)
        here = ("--python", sys.executable, "--trust", "--concurrent", "--warmup", "10ms", "--queries", "200")
        outcome = cli("run", bundle, *here, "--no-accuracy", "--trace", "full", *options, "--json")
        assert outcome.status == 1, outcome.stderr  # not alone on this machine, and nothing worse
        return outcome.document(), outcome

    return run


def levels(record: dict[str, Any]) -> dict[str, Any]:
    return {found["level"]: found for found in record["profiles"]}


@pytest.mark.parametrize(
    ("framework", "system", "words"),
    [
        (
            "raise RuntimeError('no permission')",
            "sys.exit(0)",
            ["RuntimeError: no permission", "wanted to exit"],
        ),
        ("os._exit(0)", "os.kill(os.getpid(), 11)", ["status 0 and said nothing", "crashed: SIGSEGV"]),
        ("bytearray(1 << 50)", "os.fork(); raise KeyError('twice')", ["MemoryError", "KeyError: 'twice'"]),
        ("self.read = 7", "os.write(4, b'no frame' * 9)", ["TypeError", "wrote into the protocol"]),
    ],
)
def test_what_it_does_costs_the_profile_and_not_the_run(profiled, home, framework, system, words) -> None:
    record, outcome = profiled(framework=framework, system=system)
    assert record["status"] == "completed"
    assert record["result"]["queries"] == 200
    found = levels(record)
    for level, told in zip(("framework", "system"), words, strict=True):
        error = found[level].pop("error")
        assert found[level] == {"level": level, "missing": True}
        assert told in error
        assert f"profile:{level}: " in outcome.stderr
        assert told in outcome.stderr
    assert "Traceback" not in outcome.stderr
    folder = home / "data" / "runs" / record["run_id"]
    with TraceJudge(folder / record["files"]["trace"]) as trace:
        assert trace.losses() == {}
        slices = trace.slices()
        assert sum(s.name == "query" and s.category == "model" for s in slices) >= 200
        assert all(s.dur >= 0 for s in slices), "the phase of a profile that failed has ended"
        (run,) = [s for s in slices if s.name == "run"]
        assert "profile: framework: it failed: " in run.args["note"]


def test_a_hang_ends_the_profile_before_the_host_gives_up(profiled, home) -> None:
    hang = "ctypes.PyDLL(None).sleep(300)"  # and holds the interpreter
    fork = "print('chatter'); os.fork() or time.sleep(300)"
    record, outcome = profiled("--timeout", "20s", framework=hang, system=fork)
    found = levels(record)
    assert found["framework"].pop("error")
    assert found["framework"] == {"level": "framework", "missing": True}
    assert found["system"]["layers"] == found["system"]["queries"], "the next pass is not affected"
    log = (home / "data" / "runs" / record["run_id"] / "worker.log").read_text()
    assert "in begin_framework" in log, "where it hung"
    assert "chatter" in log
    assert "chatter" not in outcome.stdout
    assert not [command for command in commands() if str(home) in command], "no process is left"


def test_nonsense_is_left_out_and_noted(profiled, home) -> None:
    read = """
            if n == 0:
                self.layer(profile, run=9999, index=5)
                self.layer(profile, index=1, start_ns=-5)
                self.layer(profile, index=2, duration_ns=-1)
                self.layer(profile, index=3, start_ns=1, duration_ns=5)
                self.layer(profile, index=4, duration_ns=1 << 60, name="\\x1b[31m" + "x" * 10_000_000)
                self.layer(profile, index=4, name="again")
                self.layer(profile, index=1 << 61)
                profile.add_kernel(run=0, kind="operator", name="o", layer_index=77, start_ns=at["start_ns"], duration_ns=0)
                profile.add_kernel(run=-1, kind="kernel", name="k", start_ns=0, duration_ns=0, bytes=-900)
                profile.notes = ["a note\\x07", 7] * 100
                profile.facts = {"deep": [[[[1]]]], "not": float("nan"), 3: object()}
    """
    record, _ = profiled(read=read.strip(), system="raise RuntimeError")
    found = levels(record)["framework"]
    assert (found["queries"], found["layers"], found["kernels"]) == (100, 101, 1)
    assert found["notes"][:2] == ["a note\ufffd", "7"]
    assert len(found["notes"]) == 32
    assert found["facts"]["not"] == "nan"
    folder = home / "data" / "runs" / record["run_id"]
    with np.load(folder / "layers.npz", allow_pickle=False) as layers:
        assert layers["index"].tolist().count(4) == 1
        assert max(map(len, layers["strings"].tolist())) == 1000
    with TraceJudge(folder / record["files"]["trace"]) as trace:
        assert trace.losses() == {}
        inside = {s.id: s for s in trace.slices() if s.name == "predict"}
        layers = [s for s in trace.slices() if s.category == "framework"]
        assert len(layers) == 101
        assert all(s.parent is not None for s in layers)
        assert inside
