"""Traces in other formats: what an older tool and a spreadsheet read is what was put in."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlbundle.errors import IntegrityError, ProtocolBroken, UsageError
from mlbundle.trace.chrome import chrome_events
from mlbundle.trace.export import (
    RunColumns,
    export_chrome,
    export_csv,
    export_perfetto,
    load_columns,
)
from mlbundle.trace.samples import SampleColumns, load_samples
from mlbundle.trace.spans import SpanColumns, save_spans
from mlbundle.trace.tables import KERNELS, LAYERS, Table, TableKind, save_table

BASE_NS = 24_041_772_494_573
NAMES = ("query", "pre<dict> & 'co', \"x\"", "Свёртка 卷积", "")
TRACE = b"\x0a\x02\x40\x01" * 1000


def spans_of(rows: list[tuple[int, int, int]]) -> SpanColumns:
    """Spans of (name, start, duration) on two tracks, times after BASE_NS."""
    name, start, duration = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    count = len(rows)
    return SpanColumns(
        strings=NAMES,
        level=np.full(count, 1),
        track=name % 2,
        name=name,
        start_ns=start + BASE_NS,
        duration_ns=duration,
        parent=np.full(count, -1),
        query=np.arange(count) - 1,
        pass_number=np.zeros(count, np.int64),
    )


def table_of(kind: TableKind, rows: list[dict[str, Any]]) -> Table:
    """A table of rows; numbers that are left out are not known, texts that are left out are empty."""
    strings = list(dict.fromkeys(["", *(v for row in rows for v in row.values() if isinstance(v, str))]))
    columns = {n: np.array([row.get(n, -1) for row in rows], np.int64) for n in (*kind.numbers, "pass")}
    columns |= {n: np.array([strings.index(row.get(n, "")) for row in rows], np.int64) for n in kind.texts}
    return Table(kind, tuple(strings), columns)


LAYER_ROWS = [
    {
        "pass": 2,
        "run": 0,
        "index": 0,
        "name": "conv",
        "type": "Conv",
        "start_ns": BASE_NS + 10,
        "duration_ns": 50,
        "flops": 99,
    },
    {
        "pass": 2,
        "run": 0,
        "index": 1,
        "name": NAMES[2],
        "type": "Relu",
        "start_ns": BASE_NS + 60,
        "duration_ns": 5,
    },
]
KERNEL_ROWS = [
    # Two that overlap in part on one stream, one on another.
    {"pass": 2, "run": 0, "layer_index": 0, "name": "k", "kind": "kernel", "device": "cuda:0", "stream": 7, "start_ns": BASE_NS + 20, "duration_ns": 20},
    {"pass": 2, "run": 0, "layer_index": 0, "name": "k", "kind": "kernel", "device": "cuda:0", "stream": 7, "start_ns": BASE_NS + 30, "duration_ns": 20},
    {"pass": 2, "run": 0, "layer_index": 1, "name": "copy", "kind": "copy", "device": "cuda:0", "stream": 8, "start_ns": BASE_NS + 61, "duration_ns": 1, "bytes": 64},
]  # fmt: skip


@pytest.fixture
def columns() -> RunColumns:
    samples = SampleColumns(
        ("cpu_time_s",), np.zeros(3, np.int64), np.arange(3) * 1000 + BASE_NS, np.array([0.5, np.nan, 1.5])
    )
    return RunColumns(
        spans_of([(0, 0, 100), (1, 5, 50), (0, 100, 0)]),
        table_of(LAYERS, LAYER_ROWS),
        table_of(KERNELS, KERNEL_ROWS),
        samples,
        {2: "profile: system"},
    )


def slices_in(judge: Any, path: Path) -> Counter[tuple[str, int, int]]:
    with judge(path) as trace:
        rows = trace.query("select name, ts, dur from slice")
        # It notes that it knows better than the hint for Chrome's own viewer.
        assert trace.losses() == {"json_display_time_unit": 1}
    return Counter((row["name"] or "", row["ts"], row["dur"]) for row in rows)


def test_chromes_events_are_what_was_put_in(judge, columns: RunColumns, tmp_path: Path) -> None:
    done = export_chrome(columns, tmp_path / "t.json", title="digits", force=False)
    assert done.size_bytes == done.path.stat().st_size
    document = json.loads(done.path.read_text())
    assert document["otherData"]["first_event_ns"] == str(BASE_NS)
    assert done.rows == len(document["traceEvents"])
    expected = Counter(
        {("query", 0, 100): 1, (NAMES[1], 5, 50): 1, ("query", 100, 0): 1}
        | {
            (row["name"], row["start_ns"] - BASE_NS, row["duration_ns"]): 1
            for row in LAYER_ROWS + KERNEL_ROWS
        }
    )
    assert slices_in(judge, done.path) == expected
    with judge(done.path) as trace:
        (conv,) = trace.query("select arg_set_id from slice where name = 'conv'")
        facts = trace.query(
            f"select key, display_value as v from args where arg_set_id = {conv['arg_set_id']}"
        )
        assert {row["key"]: row["v"] for row in facts}["args.flops"] == "99"
        categories = trace.query("select category as c, count(*) as n from slice group by 1")
        assert {row["c"]: row["n"] for row in categories} == {"model": 3, "framework": 2, "system": 3}
        assert trace.counters() == {"cpu_time_s value": [(0, 0.5), (2000, 1.5)]}
        threads = trace.query("select name, count(*) as n from thread where name glob '*cuda*' group by 1")
        assert {row["name"]: row["n"] for row in threads} == {
            "profile: system cuda:0 stream 7": 2,
            "profile: system cuda:0 stream 8": 1,
        }
        assert {row["depth"] for row in trace.query("select depth from slice where name = 'k'")} == {0}


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=25)
)
def test_whatever_overlaps_comes_out_as_it_went_in(
    judge, tmp_path: Path, rows: list[tuple[int, int, int]]
) -> None:
    first = min(start for _, start, _ in rows)
    lines = b"".join(chrome_events(RunColumns(spans_of(rows), None, None, None), "any"))
    (tmp_path / "any.json").write_bytes(lines)
    expected = Counter((NAMES[name], start - first, duration) for name, start, duration in rows)
    assert slices_in(judge, tmp_path / "any.json") == expected


def test_a_run_without_columns_makes_an_empty_document(tmp_path: Path) -> None:
    done = export_chrome(RunColumns(None, None, None, None), tmp_path / "t.json.gz", title="", force=False)
    events = json.loads(gzip.decompress(done.path.read_bytes()))["traceEvents"]
    assert {event["ph"] for event in events} == {"M"}


def test_csv_holds_every_row_with_names_for_numbers(columns: RunColumns, tmp_path: Path) -> None:
    done = export_csv(columns, tmp_path / "new" / "folder", force=False)
    assert {file.path.name: file.rows for file in done} == {
        "spans.csv": 3,
        "layers.csv": 2,
        "kernels.csv": 3,
        "counters.csv": 3,
    }
    tables = {}
    for file in done:
        with file.path.open(encoding="utf-8", newline="") as stream:
            tables[file.path.stem] = list(csv.DictReader(stream))
    spans = tables["spans"]
    assert [row["name"] for row in spans] == [NAMES[0], NAMES[1], NAMES[0]]
    assert spans[1]["start_ns"] == str(BASE_NS + 5)
    assert spans[0]["level"] == "model"
    for name, rows in (("layers", LAYER_ROWS), ("kernels", KERNEL_ROWS)):
        for found, row in zip(tables[name], rows, strict=True):
            called = {"run": "query", "layer_index": "layer"}
            expected = {called.get(key, key): str(value) for key, value in row.items()}
            assert {key: found[key] for key in expected} == expected | {"pass": "profile: system"}
    assert [row["value"] for row in tables["counters"]] == ["0.5", "nan", "1.5"]


def test_what_is_there_is_kept_unless_forced(columns: RunColumns, tmp_path: Path) -> None:
    (tmp_path / "spans.csv").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        export_csv(columns, tmp_path, force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["spans.csv"]
    (tmp_path / "notes").write_text("also mine")
    export_csv(columns, tmp_path, force=True)
    assert (tmp_path / "notes").read_text() == "also mine"
    assert (tmp_path / "spans.csv").read_text() != "mine"
    no_kernels = RunColumns(columns.spans, columns.layers, None, None)
    (tmp_path / "spans.csv").unlink()
    with pytest.raises(UsageError, match="exists already"):
        export_csv(no_kernels, tmp_path, force=False)
    export_csv(no_kernels, tmp_path, force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"notes", "spans.csv", "layers.csv"}
    with pytest.raises(UsageError, match="is no folder"):
        export_csv(columns, tmp_path / "notes", force=True)
    for force in (False, True):
        with pytest.raises(UsageError):
            export_chrome(columns, tmp_path, title="", force=force)


def test_a_trace_is_copied_or_unpacked_by_its_name(tmp_path: Path) -> None:
    stored = tmp_path / "stored.gz"
    stored.write_bytes(gzip.compress(TRACE))
    export_perfetto(stored, tmp_path / "a.gz", force=False)
    assert (tmp_path / "a.gz").read_bytes() == stored.read_bytes()
    export_perfetto(stored, tmp_path / "a.pftrace", force=False)
    assert (tmp_path / "a.pftrace").read_bytes() == TRACE
    with pytest.raises(UsageError, match="exists already"):
        export_perfetto(stored, tmp_path / "a.pftrace", force=False)
    with pytest.raises(UsageError, match="nowhere does not exist"):
        export_perfetto(stored, tmp_path / "nowhere" / "a.pftrace", force=False)


@pytest.mark.parametrize("name", ["a.gz", "a.pftrace"])
def test_a_damaged_trace_leaves_what_was_there(tmp_path: Path, name: str) -> None:
    stored = tmp_path / "stored.gz"
    stored.write_bytes(gzip.compress(TRACE)[:-5])
    (tmp_path / name).write_bytes(b"before")
    with pytest.raises(IntegrityError, match="cut short"):
        export_perfetto(stored, tmp_path / name, force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"stored.gz", name}
    assert (tmp_path / name).read_bytes() == b"before"


def test_the_tables_of_a_folder_are_found_and_damaged_ones_told(columns: RunColumns, tmp_path: Path) -> None:
    assert load_columns(tmp_path) == RunColumns(None, None, None, None)
    assert columns.spans is not None
    assert columns.layers is not None
    save_spans(tmp_path / "spans.npz", columns.spans)
    save_table(tmp_path / "layers.npz", columns.layers)
    found = load_columns(tmp_path)
    assert found.layers is not None
    assert found.layers.texts("name") == ["conv", NAMES[2]]
    (tmp_path / "kernels.npz").write_bytes((tmp_path / "layers.npz").read_bytes())
    with pytest.raises(ProtocolBroken):
        load_columns(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"counter": np.array([0, 1])},
        {"counter": np.array([0, -1])},
        {"t_ns": np.array([1])},
        {"t_ns": np.array([0.5, 1.5])},
        {"value": np.array([[1.0, 2.0]])},
        {"strings": np.array([b"bytes"])},
        {"strings": np.array([{"an": "object"}], object)},
        {"more": np.array([1])},
    ],
)
def test_samples_are_looked_at_before_they_are_believed(tmp_path: Path, change: dict[str, Any]) -> None:
    sound: dict[str, Any] = {
        "strings": np.array(["cpu"]),
        "counter": np.array([0, 0]),
        "t_ns": np.array([1, 2]),
        "value": np.array([1.0, 2.0]),
    }
    np.savez(tmp_path / "sound.npz", **sound)
    assert load_samples(tmp_path / "sound.npz").strings == ("cpu",)
    np.savez(tmp_path / "bad.npz", **(sound | change))
    with pytest.raises(ProtocolBroken):
        load_samples(tmp_path / "bad.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "sound.npz").read_bytes()[:-30])
    with pytest.raises(ProtocolBroken):
        load_samples(tmp_path / "cut.npz")
