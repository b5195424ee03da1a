"""Filters over the index of runs, as people type them: what each word lets through, sorting, and pages."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_database import record

from mlbundle.store.database import RunDatabase
from mlbundle.store.run_filter import NAMES, SORTS, parse_filter

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)


@pytest.fixture
def database(tmp_path: Path) -> RunDatabase:
    """Five runs, numbered from the oldest to the newest."""
    found = RunDatabase(tmp_path / "runs.sqlite")

    def add(number: int, model: str, framework: str, mean_ns: float | None = 1.0, **more: object) -> None:
        bundle = {"name": model, "version": "1.0.0", "manifest_digest": "sha256:0", "set_digest": "sha256:1"}
        result = {"latency_ns": {"trimmed_mean": mean_ns, "p99": mean_ns}} if mean_ns else None
        named = {"name": framework, "version": "2.1", "variant": more.pop("variant", None)}
        started = f"2026-11-2{number}T00:00:00.000Z"
        changes = {"bundle": bundle, "framework": named, "result": result, "started_at": started, **more}
        found.add(record(str(number), **changes))

    add(1, "resnet50", "onnxruntime", 30.0)
    add(2, "resnet50", "torch", 10.0, validity={"valid": False, "reasons": ["x"]})
    add(3, "bert_100%", "torch", None, status="failed", variant="torch-export")
    add(4, "digits-cnn", "tensorflow", 20.0, scenario={"name": "offline", "options": {"quick": True}})
    add(5, "Größe [x] 模型", "onnxruntime", 40.0, runtime="docker", isolation="pinned")
    return found


def ids(database: RunDatabase, text: str, **how: object) -> str:
    rows, total = database.page(parse_filter(text, now=lambda: NOW), **how)
    assert total >= len(rows)
    return "".join(row["run_id"] for row in rows)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "54321"),
        ("model:resnet*", "21"),
        ("MODEL resnet50:1", ""),
        ("resnet50:1.0", "21"),
        ("model:digits-cnn:1.0.0", "4"),
        ("model:*net50", "21"),
        ("model:ResNet5?", "21"),
        ("framework=torch", "32"),
        ("framework:torch-exp", "3"),
        ("status:invalid", "2"),
        ("status:quick", "4"),
        ("status:completed", "51"),
        ("status:fail", "3"),
        ("scenario:off", "4"),
        ("scenario:line", ""),
        ("runtime:pinned", "5"),
        ("resnet torch", "2"),
        ("torch status:failed model:bert", "3"),
        ("100%", "3"),
        ("bert_", "3"),
        ("t%r", ""),
        ("[x]", "5"),
        ("模型", "5"),
        ("since:5d", "54"),
        ("since:2026-11-23", "543"),
        ("since:99999w", "54321"),
        ("model:", "54321"),
        ("'; DROP TABLE runs; --", ""),
    ],
)
def test_words_choose_runs(database: RunDatabase, text: str, expected: str) -> None:
    assert ids(database, text) == expected


def test_sorting_puts_runs_without_a_value_last_both_ways(database: RunDatabase) -> None:
    assert ids(database, "", sort="headline", descending=False) == "24153"
    assert ids(database, "", sort="headline", descending=True) == "51423"
    assert ids(database, "", sort="model", descending=False) == "34521"
    for sort in SORTS:
        assert sorted(ids(database, "", sort=sort)) == list("12345")


def test_rates_and_latencies_are_not_sorted_among_each_other(database: RunDatabase) -> None:
    database.add(record("6", result={"queries": 1, "peak": {"rate_per_s": 15.0}, "latency_ns": {}}))
    assert ids(database, "", sort="headline", descending=False) == "241563"
    assert ids(database, "", sort="headline", descending=True) == "514263"


def test_rows_are_found_by_their_ids(database: RunDatabase) -> None:
    assert [row["run_id"] for row in database.rows_of(["4", "none", "1"])] == ["4", "1"]
    assert database.rows_of([]) == []


def test_pages_follow_each_other_without_gaps(database: RunDatabase) -> None:
    pages = [database.page(parse_filter(""), offset=offset, limit=2) for offset in (0, 2, 4)]
    assert [[row["run_id"] for row in rows] for rows, _ in pages] == [["5", "4"], ["3", "2"], ["1"]]
    assert {total for _, total in pages} == {5}


def test_a_page_is_read_without_the_records(database: RunDatabase, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "runs.sqlite") as connection:
        plan = connection.execute(
            f"EXPLAIN QUERY PLAN SELECT run_id, quick FROM runs INDEXED BY runs_listed "
            f"WHERE {parse_filter('model:x status:y z').where}",
            ["%"] * (2 + len(parse_filter("z").values)),
        ).fetchall()
    connection.close()
    assert "COVERING INDEX runs_listed" in plan[0][3]


@given(st.lists(st.one_of(st.text(max_size=20), st.tuples(st.sampled_from(NAMES), st.text(max_size=9)))))
def test_any_text_is_a_filter(tmp_path_factory: pytest.TempPathFactory, words: list) -> None:
    text = " ".join(word if isinstance(word, str) else ":".join(word) for word in words)
    database = RunDatabase(tmp_path_factory.getbasetemp() / "any.sqlite")
    chosen = parse_filter(text)
    assert chosen.where.count("?") == len(chosen.values)
    rows, total = database.page(chosen)
    assert (rows, total) == ([], 0)
