"""A data folder that is copied while a run goes on: the copy's run is closed, and the run itself is left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlbundle.config import Settings, load_settings
from mlbundle.runs.folder import JOB, OWNER_LOCK, RECORD
from mlbundle.runs.owner import own_document
from mlbundle.runs.recover import recover_left_runs
from mlbundle.runtime.process import left_scratch
from mlbundle.wire.job import ASSETS_IN_CONTAINER

RUN = "20261121T120000Z-abcdef"


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("mlbundle.runs.recover.remove_noted_containers", lambda _: None)
    return load_settings()


def left_by(owner: bytes, settings: Settings, tmp_path: Path) -> Path:
    """Make the folder of a run in a container without a record, and a scratch folder of its name."""
    folder = settings.runs_dir / RUN
    folder.mkdir(parents=True)
    (folder / OWNER_LOCK).write_bytes(owner)
    (folder / JOB).write_text(json.dumps({"run_id": RUN, "paths": {"assets": ASSETS_IN_CONTAINER}}))
    (tmp_path / f"mlbundle-scratch-{RUN}").mkdir()
    assert RUN in left_scratch()
    return folder


def notes(settings: Settings) -> list[str]:
    return [path.name for path in (settings.data_dir / "left-containers").glob("*")]


def test_what_belongs_to_a_run_that_goes_on_is_left_alone(settings: Settings, tmp_path: Path) -> None:
    folder = left_by(own_document(), settings, tmp_path)
    assert recover_left_runs(settings) == [RUN]
    assert json.loads((folder / RECORD).read_text())["status"] == "partial"
    assert notes(settings) == []
    assert RUN in left_scratch()


def test_what_an_owner_that_died_left_is_removed(settings: Settings, tmp_path: Path) -> None:
    script = "from mlbundle.runs.owner import own_document as o; import sys; sys.stdout.buffer.write(o())"
    died = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    left_by(died, settings, tmp_path)
    assert recover_left_runs(settings) == [RUN]
    assert notes(settings) == [RUN]
    assert RUN not in left_scratch()
