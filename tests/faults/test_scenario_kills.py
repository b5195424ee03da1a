"""SIGKILL in the middle of each scenario, of ourselves and of the worker: no orphan, and what was seen is kept."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scenario_runs import SCENARIOS, SEED, Run, check_kept, left_over, start

from mlbundle.config import load_settings
from mlbundle.runs.recover import recover_left_runs
from mlbundle.runtime.docker import RUN_LABEL
from mlbundle.wire.scenarios import BY_NAME


def moments(scenario: str) -> tuple[str, ...]:
    """Phases in which to kill a worker; all that a cold start does is measured."""
    return ("measure",) if scenario == "cold-start" else ("load", "measure")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    begun: list[Run] = []

    def begin_one(scenario: str, name: str, *, images: Path | None = None) -> Run:
        begun.append(start(scenario, tmp_path / name, images=images))
        return begun[-1]

    yield begin_one
    for run in begun:
        run.process.kill()
        run.process.communicate()


def test_no_scenario_is_left_out() -> None:
    assert set(SCENARIOS) == set(BY_NAME)


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
@pytest.mark.parametrize(
    ("scenario", "victim"),
    [("server", "host"), ("pipeline", "container"), ("cold-start", "host"), ("offline", "container")],
)
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
    deadline = time.monotonic() + 60
    while (left := engine.api.containers(all=True, filters=label)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == [], f"MLBUNDLE_FAULT_SEED={SEED}"
    monkeypatch.setenv("MLBUNDLE_HOME", str(run.home))
    recover_left_runs(load_settings())
    check_kept(run, "partial" if victim == "host" else "failed", f"MLBUNDLE_FAULT_SEED={SEED}")
