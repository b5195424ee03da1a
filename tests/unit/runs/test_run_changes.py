"""Whether anything came, ended or went among the runs."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from mlbundle.config import load_settings
from mlbundle.runs.changes import RunsSeen, look_at_runs

LONG_AGO_S = 1_000_000_000


def test_what_comes_ends_or_goes_is_seen_and_nothing_else(home: Path) -> None:
    settings = load_settings()
    folder = settings.runs_dir
    assert look_at_runs(settings) == RunsSeen()
    folder.mkdir(parents=True)
    os.utime(folder, (LONG_AGO_S, LONG_AGO_S))
    before = look_at_runs(settings)
    assert before == look_at_runs(settings)
    assert before.settled

    run = folder / "20261121T085900Z-aaaaaa"
    run.mkdir()
    with (run / "owner.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        seen = look_at_runs(settings)
        assert seen.going == (run.name,)
        assert not seen.settled  # more may come in the same tick
        (run / "record.json").write_text("{}")
        assert look_at_runs(settings).going == ()
    os.utime(folder, (LONG_AGO_S, LONG_AGO_S))
    shutil.rmtree(run)
    assert look_at_runs(settings) != before


def test_a_folder_that_is_none_has_no_runs(home: Path) -> None:
    settings = load_settings()
    settings.runs_dir.parent.mkdir(parents=True)
    settings.runs_dir.touch()
    assert look_at_runs(settings).going == ()
