"""What becomes of a detached run whose starter is gone, or that can't begin."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path

import pytest
from support import make_bundle

from mlbundle.config import Settings, load_settings
from mlbundle.errors import Interrupted, RunFailed, StorageFailed, error_of_document
from mlbundle.runs import detach
from mlbundle.runs.detach import start_by_command
from mlbundle.runs.plan import RunOptions, RunPlan, make_plan


@pytest.fixture
def planned(home: Path, tmp_path: Path) -> tuple[RunPlan, Settings]:
    settings = load_settings()
    options = RunOptions(str(make_bundle(tmp_path / "mini")), runtime="process", python=Path(sys.executable))
    return make_plan(options, settings), settings


def test_a_run_that_nobody_was_told_of_does_not_go_on(planned: tuple[RunPlan, Settings]) -> None:
    heard, teller = os.pipe()
    os.close(heard)
    plan, settings = planned
    detach._run(plan, settings, teller)
    record = json.loads((settings.runs_dir / plan.run_id / "record.json").read_text())
    assert record["status"] == "cancelled"
    assert record["passes"] == []
    os.close(teller)


def test_what_keeps_a_run_from_beginning_is_told(planned: tuple[RunPlan, Settings]) -> None:
    plan, settings = planned
    settings.runs_dir.parent.mkdir(parents=True, exist_ok=True)
    settings.runs_dir.write_text("a file")
    heard, teller = os.pipe()
    detach._run(plan, settings, teller)
    with os.fdopen(heard, "rb") as answer:
        assert type(error_of_document(json.loads(answer.read()))) is StorageFailed


def test_a_command_that_tells_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detach.sys, "executable", "/bin/false")
    with pytest.raises(RunFailed, match="status 1"):
        detach.start_by_command(["digits-cnn"])


def test_what_is_planned_can_be_stopped(home: Path) -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections and never answers
        server.settimeout(60)
        threading.Thread(target=lambda: (server.accept(), stop.set()), daemon=True).start()
        place = f"oci://127.0.0.1:{server.getsockname()[1]}/x:1"
        with pytest.raises(Interrupted):
            start_by_command([place, "--plain-http"], stop=stop)
    assert list((home / "data" / "runs").glob("*")) == []
