"""What a run that goes on says of itself, read from the end of its events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlbundle.config import load_settings
from mlbundle.runs.folder import RunFolder, unfinished_folders
from mlbundle.runs.queue import MACHINE_BUSY
from mlbundle.runs.running import (
    RunningRun,
    latest_running,
    running_rows,
    running_run,
    running_runs,
    runs_go_on,
)
from mlbundle.wire.events import Counter, Log, Phase, Progress, Warned, Window

RUN_IDS = [f"20261121T12000{number}Z-000000" for number in range(4)]


@pytest.fixture
def run(home: Path) -> Iterator[RunFolder]:
    with RunFolder(load_settings().runs_dir, RUN_IDS[1]) as folder:
        folder.append(Log(message="digits-cnn:1.0.0"), source="host")
        yield folder


def look(run: RunFolder) -> RunningRun:
    found = running_run(run.path)
    assert found is not None
    return found


def test_from_its_first_event_to_its_last(run: RunFolder) -> None:
    found = look(run)
    assert (found.model, found.model_version, found.framework, found.phase) == ("digits-cnn", "1.0.0", "", "")
    assert (found.status, found.progress, found.started_at) == ("running", None, "2026-11-21T12:00:01.000Z")
    run.append(Phase(name="image", state="begun"), source="host")
    run.append(Warned(reference=MACHINE_BUSY), source="host")
    assert (look(run).status, look(run).phase) == ("waiting", "")
    run.append(Phase(name="create", state="begun"), source="host")
    assert (look(run).status, look(run).phase) == ("running", "create")
    run.append(Progress(phase="measure", done=1, total=4), source="worker")
    assert (look(run).phase, look(run).progress) == ("measure", 0.25)
    run.append(Progress(phase="measure", done=9, total=4), source="worker")
    assert look(run).progress == 1.0
    run.append(Progress(phase="measure", done=9), source="worker")
    assert look(run).progress is None


@pytest.mark.parametrize(("counters", "phase"), [(2_000, "load"), (6_000, "load"), (80_000, "")])
def test_how_far_back_is_looked(run: RunFolder, counters: int, phase: str) -> None:
    run.append(Phase(name="load", state="begun"), source="host")
    text = json.dumps(Counter(name="cpu", unit="share", value=0.5, seq=9, t_ns=1).to_document()) + "\n"
    with (run.path / "events.jsonl").open("a") as stream:
        stream.write(text * counters)
    assert look(run).phase == phase
    run.append(Window(phase="measure"), source="worker")
    assert look(run).phase == "measure"


@pytest.mark.parametrize("job", ["", "[]", '{"model": 3, "scenario": null}', "{" * 5000])
def test_a_job_that_cannot_be_read(run: RunFolder, job: str) -> None:
    (run.path / "job.json").write_text(job)
    assert (look(run).framework, look(run).scenario) == ("", "")


def test_only_what_goes_on_is_told(run: RunFolder) -> None:
    settings = load_settings()
    with RunFolder(settings.runs_dir, RUN_IDS[0]):
        over = settings.runs_dir / RUN_IDS[2]
        with RunFolder(settings.runs_dir, RUN_IDS[2]) as ended:
            ended.write_record({})
            assert running_run(over) is None, "it has its record"
        with RunFolder(settings.runs_dir, RUN_IDS[3]):
            pass  # its owner is gone
        (settings.runs_dir / "something else").mkdir()
        assert [path.name for path in unfinished_folders(settings)] == [RUN_IDS[3], RUN_IDS[1], RUN_IDS[0]]
        assert [found.run_id for found in running_runs(settings)] == [RUN_IDS[1], RUN_IDS[0]]
        assert latest_running(settings) == RUN_IDS[1]
        assert [row["run_id"] for row in running_rows(settings, model="digits*")] == [RUN_IDS[1]]
        assert running_rows(settings, framework="torch") == []
    assert running_run(settings.runs_dir / "not there") is None


def test_without_runs(home: Path) -> None:
    assert running_runs(load_settings()) == []
    assert latest_running(load_settings()) is None


def test_who_leaves_is_told_what_goes_on(run: RunFolder) -> None:
    settings = load_settings()
    (line,) = runs_go_on(settings)
    assert line == f"run {RUN_IDS[1]} goes on (digits-cnn): `mlbundle runs attach {RUN_IDS[1]}`"
    assert runs_go_on(settings, most=0) == ["1 runs go on: `mlbundle runs list`"]
