"""Pages of runs: what the index knows, and what it takes in from the folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlbundle.config import load_settings
from mlbundle.runs.catalog import refresh_runs, remove_run, search_runs


def make_run(home: Path, number: int) -> str:
    run_id = f"20261121T0857{number:02}Z-{number:06x}"
    folder = home / "data" / "runs" / run_id
    folder.mkdir(parents=True)
    record = {
        "run_id": run_id,
        "status": "completed",
        "validity": {"valid": True, "reasons": []},
        "bundle": {"name": f"m{number}", "version": "1.0.0", "manifest_digest": "", "set_digest": ""},
        "framework": {"name": "torch", "version": "2"},
        "runtime": "process",
        "scenario": {"name": "online", "options": {}},
        "trace_level": "none",
        "started_at": "2026-11-21T08:57:00.000Z",
    }
    (folder / "record.json").write_text(json.dumps(record))
    (folder / "owner.lock").touch()
    return run_id


def test_runs_are_searched_as_the_index_knows_them(home: Path) -> None:
    settings = load_settings()
    made = [make_run(home, number) for number in range(5)]
    assert search_runs(settings).total == 0
    refresh_runs(settings)
    page = search_runs(settings, "torch", offset=1, limit=2)
    assert [row["run_id"] for row in page.rows] == made[3:1:-1]
    assert (page.offset, page.total) == (1, 5)
    remove_run(settings, made[4])
    assert [row["run_id"] for row in search_runs(settings, sort="model").rows] == made[:4]
    backwards = search_runs(settings, sort="model", descending=True)
    assert [row["run_id"] for row in backwards.rows] == made[3::-1]
    with pytest.raises(KeyError):
        search_runs(settings, sort="record")
