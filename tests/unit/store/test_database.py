"""The index of runs: idempotent, shared, migrated once, newer versions refused."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from mlbundle.errors import StorageFailed
from mlbundle.store import database
from mlbundle.store.database import RunDatabase


def record(run_id: str, **changes: object) -> dict:
    return {
        "run_id": run_id,
        "started_at": "2026-11-20T14:25:03Z",
        "finished_at": None,
        "status": "completed",
        "validity": {"valid": True, "reasons": []},
        "bundle": {"name": "m", "version": "1.0.0", "manifest_digest": "sha256:0", "set_digest": "sha256:1"},
        "framework": {"name": "onnxruntime", "version": "1"},
        "runtime": "process",
        "image": None,
        "scenario": {"name": "online", "options": {}},
        "trace_level": "model",
        "result": {
            "latency_ns": {"trimmed_mean": 1.5, "p50": 1, "p90": 2, "p99": 3},
            "throughput_per_s": 10.0,
        },
        "accuracy": {"value": 0.5},
        **changes,
    }


def test_adding_the_same_record_twice_changes_nothing(tmp_path: Path) -> None:
    database = RunDatabase(tmp_path / "runs.sqlite")
    for _ in range(2):
        database.add(record("a"))
    assert [row["run_id"] for row in database.rows()] == ["a"]
    assert database.record("a") == record("a")
    assert database.record("b") is None


def test_rows_come_newest_first_and_can_be_filtered(tmp_path: Path) -> None:
    database = RunDatabase(tmp_path / "runs.sqlite")
    for run_id, name in (("1", "cat"), ("2", "dog"), ("3", "catfish")):
        database.add(record(run_id, bundle={**record("x")["bundle"], "name": name}))
    assert [row["run_id"] for row in database.rows()] == ["3", "2", "1"]
    assert [row["run_id"] for row in database.rows(model="cat*", limit=1)] == ["3"]
    assert database.run_ids("2") == ["2"]


def _add_many(path: Path, prefix: str) -> None:
    for i in range(20):
        RunDatabase(path).add(record(f"{prefix}{i:02}"))


def test_several_processes_write_at_once_from_the_first_moment(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_add_many, args=(path, prefix)) for prefix in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert len(RunDatabase(path).rows(limit=1000)) == 80


def test_a_new_index_is_opened_and_written_by_many_threads_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(6)

    def add(path: Path, run_id: str) -> None:
        together.wait()
        RunDatabase(path).add(record(run_id))

    with ThreadPoolExecutor(6) as pool:
        for attempt in range(40):
            path = tmp_path / f"{attempt}.sqlite"
            list(pool.map(add, [path] * 6, "abcdef"))
            assert RunDatabase(path).run_ids() == list("fedcba")


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    RunDatabase(path).add(record("a"))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StorageFailed, match="version 99"):
        RunDatabase(path).rows()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(StorageFailed) as caught:
        RunDatabase(path).rows()
    assert caught.value.where == str(path)
    assert caught.value.hint


def test_what_to_do_fits_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hint(path: Path) -> str:
        with pytest.raises(StorageFailed) as caught:
            RunDatabase(path).rows()
        return str(caught.value.hint)

    monkeypatch.setattr(database, "_BUSY_TIMEOUT_S", 0.02)
    path = tmp_path / "runs.sqlite"
    RunDatabase(path).rows()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        assert "another program holds it" in hint(path)
    assert RunDatabase(path).rows() == []
    (tmp_path / "folder.sqlite").mkdir()
    assert "MLBUNDLE_HOME" in hint(tmp_path / "folder.sqlite")
    (tmp_path / "odd.sqlite").write_bytes(b"no database" * 1000)
    assert "is rebuilt" in hint(tmp_path / "odd.sqlite")
