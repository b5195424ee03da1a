"""How a run ends: what is complete stays complete, and times of several processes are added up."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import make_bundle

from mlbundle.config import load_settings
from mlbundle.errors import MlbundleError
from mlbundle.runs import execute
from mlbundle.runs.execute import Execution
from mlbundle.runs.folder import RunFolder
from mlbundle.runs.plan import RunOptions, make_plan
from mlbundle.store.database import RunDatabase
from mlbundle.wire.events import End, Phase


class Stopped(BaseException):
    """A signal, as the code that it reaches sees it."""


@pytest.fixture
def execution(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Execution:
    """A run that has measured everything, and has nothing left to do but to write its record."""
    settings = load_settings()
    options = RunOptions(str(make_bundle(tmp_path / "mini")), runtime="process", python=Path(sys.executable))
    made = Execution(make_plan(options, settings), settings)

    def run(self: Execution, folder: RunFolder):  # type: ignore[no-untyped-def]
        self._findings.result = {"queries": 1}
        self._finish(folder, "completed")
        yield from ()

    monkeypatch.setattr(Execution, "_queue_and_run", run)
    return made


def left_by(execution: Execution) -> tuple[dict, list[str]]:
    (folder,) = load_settings().runs_dir.iterdir()
    record = json.loads((folder / "record.json").read_text())
    ends = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return record, [event["status"] for event in ends if event["kind"] == End.kind]


@pytest.mark.parametrize("error", [Stopped, RuntimeError])
def test_what_comes_after_the_record_takes_nothing_from_it(
    execution: Execution, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    add, calls = RunDatabase.add, []

    def stopped_once(self: RunDatabase, record: dict) -> None:
        calls.append(record["status"])
        if len(calls) == 1:
            raise error
        add(self, record)

    monkeypatch.setattr(RunDatabase, "add", stopped_once)
    with pytest.raises((Stopped, MlbundleError)):
        list(execution.events())
    record, ends = left_by(execution)
    assert record["status"] == "completed"
    assert record["result"] == {"queries": 1}
    assert ends == ["completed"]
    assert calls == ["completed", "completed"], "and the index knows it"
    assert execution.record == record


def test_a_run_that_is_stopped_before_its_record_has_no_result(
    execution: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = RunFolder.write_record, []

    def stopped_once(self: RunFolder, record: dict) -> None:
        calls.append(record)
        if len(calls) == 1:
            raise Stopped
        write(self, record)

    monkeypatch.setattr(RunFolder, "write_record", stopped_once)
    with pytest.raises(Stopped):
        list(execution.events())
    record, ends = left_by(execution)
    assert (record["status"], record["result"], record["accuracy"]) == ("cancelled", None, None)
    assert ends == ["cancelled"]


def test_a_phase_of_several_processes_is_added_up() -> None:
    clock = execute._PhaseClock((("pull", 0, 500_000_000),))
    for start_s, end_s in ((1, 3), (10, 11)):
        clock.take(Phase(name="measure", state="begun", t_ns=start_s * 10**9))
        clock.take(Phase(name="measure", state="done", t_ns=end_s * 10**9))
    clock.take(Phase(name="measure", state="begun", t_ns=20 * 10**9))
    clock.take(Phase(name="load", state="done", t_ns=10**9))
    assert clock.seconds() == {"pull": 0.5, "measure": 3.0}
    assert clock.spans() == [("pull", 0, 500_000_000), ("measure", 10**9, 11 * 10**9)]
