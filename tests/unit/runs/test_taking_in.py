"""Runs are taken into the index when they come, however long ago their folder was looked at."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from support import ROOT

from mlbundle.config import Settings, load_settings
from mlbundle.runs.catalog import list_runs, remove_run
from mlbundle.runs.folder import RunFolder, unfinished_folders
from mlbundle.store.database import DATABASE

GOLDEN = json.loads((ROOT / "tests" / "golden" / "record-docker.json").read_text())
OLD_NS = 1_600_000_000_000_000_000


@pytest.fixture
def settings(home: Path) -> Settings:
    settings = load_settings()
    settings.runs_dir.mkdir(parents=True)
    return settings


def begin(settings: Settings, number: int) -> str:
    run_id = f"20261121T085700Z-{number:06x}"
    RunFolder(settings.runs_dir, run_id).__exit__(None, None, None)
    return run_id


def finish(settings: Settings, run_id: str) -> None:
    (settings.runs_dir / run_id / "record.json").write_text(json.dumps(GOLDEN | {"run_id": run_id}))


def listed(settings: Settings) -> list[str]:
    return [row["run_id"] for row in list_runs(settings)]


def going(settings: Settings) -> list[str]:
    return [folder.name for folder in unfinished_folders(settings)]


def age(settings: Settings, changed_ns: int = OLD_NS) -> None:
    """Let the folder of the runs have been changed long ago: what is known of it may be trusted."""
    os.utime(settings.runs_dir, ns=(changed_ns, changed_ns))


def test_a_run_that_ends_later_is_taken_in(settings: Settings) -> None:
    first, second = begin(settings, 1), begin(settings, 2)
    finish(settings, first)
    age(settings)
    for _ in range(2):
        assert listed(settings) == [first]
        assert going(settings) == [second]
    finish(settings, second)
    assert listed(settings) == [second, first]
    assert going(settings) == []


def test_runs_that_come_and_go_are_noticed(settings: Settings) -> None:
    first = begin(settings, 1)
    finish(settings, first)
    age(settings)
    assert listed(settings) == [first]
    second = begin(settings, 2)
    finish(settings, second)
    assert listed(settings) == [second, first]
    age(settings, OLD_NS + 1)
    assert listed(settings) == [second, first]
    remove_run(settings, first)
    assert listed(settings) == [second]
    assert going(settings) == []


def test_an_index_that_is_lost_is_made_anew(settings: Settings) -> None:
    first = begin(settings, 1)
    finish(settings, first)
    age(settings)
    assert listed(settings) == [first]
    for path in settings.data_dir.glob(f"{DATABASE}*"):
        path.unlink()
    assert listed(settings) == [first]


def test_a_clock_that_was_set_back_hides_no_run(settings: Settings) -> None:
    first = begin(settings, 1)
    finish(settings, first)
    future_ns = time.time_ns() + 3_600_000_000_000
    age(settings, future_ns)
    assert listed(settings) == [first]
    second = begin(settings, 2)
    finish(settings, second)
    # As a file system with a coarse clock would have it.
    age(settings, future_ns)
    assert listed(settings) == [second, first]
    assert going(settings) == []
