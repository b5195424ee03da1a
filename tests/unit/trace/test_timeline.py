"""The trace of a run: what a user sees in it, asked of Perfetto by SQL."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from span_samples import recorded, spans_of

from mlbundle.errors import StorageFailed
from mlbundle.trace.spans import merge_spans
from mlbundle.trace.timeline import write_timeline
from mlbundle.wire.events import Window
from mlbundle.worker.spans import SpanRecorder

T0 = 50_000_000_000
ATTRIBUTES = {
    "bundle": "digits:1.0",
    "manifest_digest": "sha256:" + "ab" * 32,
    "image": "",
    "scenario": "online",
}
OPERATORS = ("decode", "resize", "normalize", "predict", "argsort")


def write(path: Path, **changed):
    given = {
        "host_phases": [("plan", T0 - 500, T0), ("create", T0, T0 + 90), ("collect", T0 + 9000, T0 + 9500)],
        "worker_phases": [("load", T0 + 100, T0 + 200), ("measure", T0 + 200, T0 + 5000)],
        "spans": [],
        "windows": [],
        "attributes": ATTRIBUTES,
        "clocks_start": {"monotonic": T0, "realtime": 1_700_000_000_000_000_000, "boottime": T0 + 77},
        "clocks_end": {"monotonic": T0 + 9400, "realtime": 1_700_000_000_000_009_400, "boottime": T0 + 9477},
    }
    return write_timeline(path, **(given | changed))


def measured(path: Path, queries: int):
    """Spans of a closed loop: samples prepared, then queries back to back."""
    recorder = SpanRecorder(True)
    for number in range(3):
        recorder.add("prepare", "prepare", T0 + 110 + number * 10, T0 + 118 + number * 10, number)
    starts = [T0 + 200 + 10 * i for i in range(queries)]
    recorder.add_queries(starts, [start + 9 for start in starts], 0)
    return recorded(recorder, path)


def pipelined(path: Path, samples: int):
    """Spans of a pipeline whose operators overlap."""
    recorder = SpanRecorder(True)
    for sample in range(samples):
        for place, operator in enumerate(OPERATORS):
            start = T0 + 6000 + 100 * (sample + place)
            recorder.add(operator, operator, start, start + 90, sample)
    return recorded(recorder, path)


def test_the_run_and_its_phases(tmp_path: Path, judge) -> None:
    summary = write(tmp_path / "t.gz")
    trace = judge(tmp_path / "t.gz")
    slices = trace.slices()
    assert [(s.process, s.track, s.name, s.ts - T0, s.dur, s.depth) for s in slices] == [
        ("host", "run", "run", -500, 10_000, 0),
        ("host", "run", "plan", -500, 500, 1),
        ("host", "run", "create", 0, 90, 1),
        ("worker", "phases", "load", 100, 100, 0),
        ("worker", "phases", "measure", 200, 4800, 0),
        ("host", "run", "collect", 9000, 500, 1),
    ]
    assert slices[0].args == ATTRIBUTES
    assert {s.category for s in slices} == {"phase"}
    assert (summary.slices, summary.flows, summary.counter_values, summary.notes) == (6, 0, 0, ())
    assert summary.size_bytes == (tmp_path / "t.gz").stat().st_size
    assert trace.losses() == {}


def test_queries_and_operators(tmp_path: Path, judge) -> None:
    parts = [measured(tmp_path / "a.npz", 20), pipelined(tmp_path / "b.npz", 4)]
    summary = write(tmp_path / "t.gz", spans=[merge_spans(parts)])
    trace = judge(tmp_path / "t.gz")
    slices = [s for s in trace.slices() if s.category == "model"]
    assert Counter((s.track, s.name) for s in slices) == {
        ("prepare", "prepare"): 3,
        ("query", "query"): 20,
        ("query", "predict"): 20,
        **{(operator, operator): 4 for operator in OPERATORS},
    }
    by_id = {s.id: s for s in slices}
    for found in slices:
        if found.track == "query" and found.name == "predict":
            above = by_id[found.parent]
            assert (above.name, above.args, above.ts, above.dur) == ("query", found.args, found.ts, found.dur)
        else:
            assert found.parent is None
    assert [s.args["query"] for s in slices if s.name == "query"] == list(range(20))

    links = Counter((by_id[a].track, by_id[a].name, by_id[b].track, by_id[b].name) for a, b in trace.flows())
    steps = {(a, a, b, b): 4 for a, b in zip(OPERATORS, OPERATORS[1:], strict=False)}
    assert links == {("query", "query", "query", "predict"): 20, **steps}
    assert all(by_id[a].args == by_id[b].args for a, b in trace.flows())
    assert summary.flows == len(trace.flows())
    assert trace.losses() == {}


def test_queries_come_first_then_tracks_in_order_of_time(tmp_path: Path, judge) -> None:
    write(tmp_path / "t.gz", spans=[measured(tmp_path / "a.npz", 2), pipelined(tmp_path / "b.npz", 1)])
    rows = judge(tmp_path / "t.gz").query("""
        select t.name from track t join track p on t.parent_id = p.id where p.name = 'pipeline'
        order by extract_arg(t.source_arg_set_id, 'sibling_order_rank')""")
    assert [row["name"] for row in rows] == ["query", "prepare", *OPERATORS]


def test_operators_that_overlap_themselves_are_complete(tmp_path: Path, judge) -> None:
    rows = [("decode", "decode", T0 + 10 * i, 35, -1, i) for i in range(8)]
    write(tmp_path / "t.gz", spans=[spans_of(*rows)])
    trace = judge(tmp_path / "t.gz")
    found = [(s.ts - T0, s.dur, s.depth, s.args["query"]) for s in trace.slices() if s.track == "decode"]
    assert found == [(10 * i, 35, 0, i) for i in range(8)]
    assert trace.losses() == {}


def test_windows_become_counters(tmp_path: Path, judge) -> None:
    windows = [
        Window(t_ns=T0 + 500 * i, queries=10, throughput=1000.5 + i, p50_ns=90 + i, p90_ns=95, p99_ns=99)
        for i in (1, 2)
    ]
    summary = write(
        tmp_path / "t.gz",
        windows=windows,
        worker_phases=[("measure", T0, T0 + 1500), ("profile", T0 + 1600, None)],
    )
    trace = judge(tmp_path / "t.gz")
    assert trace.counters() == {
        "throughput": [(T0 + 500, 1001.5), (T0 + 1000, 1002.5), (T0 + 1500, 0)],
        "p50": [(T0 + 500, 91.0), (T0 + 1000, 92.0), (T0 + 1500, 0)],
        "p99": [(T0 + 500, 99.0), (T0 + 1000, 99.0), (T0 + 1500, 0)],
    }, "they end where the measurement did"
    assert summary.counter_values == 9
    units = {row["name"]: row["unit"] for row in trace.query("select name, unit from counter_track")}
    assert units == {"throughput": "queries/s", "p50": "ns", "p99": "ns"}


def test_what_is_left_out_is_said_where_it_ends(tmp_path: Path, judge) -> None:
    note = "the first 5 of 9000 queries are in the trace"
    summary = write(tmp_path / "t.gz", spans=[measured(tmp_path / "a.npz", 5)], notes=[note])
    slices = judge(tmp_path / "t.gz").slices()
    (said,) = [s for s in slices if s.track == "notes"]
    assert (said.name, said.ts, said.dur) == (note, T0 + 249, 0)
    assert slices[0].args["note"] == note
    assert summary.notes == (note,)


def test_a_phase_that_never_ended_stays_open_and_so_does_the_run(tmp_path: Path, judge) -> None:
    write(
        tmp_path / "t.gz",
        host_phases=[("plan", T0, T0 + 5), ("start", T0 + 5, None)],
        worker_phases=[("load", T0 + 10, None)],
    )
    trace = judge(tmp_path / "t.gz")
    assert [(s.name, s.dur, s.depth) for s in trace.slices()] == [
        ("run", -1, 0),
        ("plan", 5, 1),
        ("start", -1, 1),
        ("load", -1, 0),
    ]
    assert trace.losses() == {}


def test_nonsense_from_a_worker_costs_neither_the_trace_nor_the_rest_of_it(tmp_path: Path, judge) -> None:
    windows = [
        Window(t_ns=-5, throughput=1.0),
        Window(t_ns=2**70, throughput=1.0),
        Window(t_ns=T0, throughput="fast", p50_ns=None, p99_ns=10**400),  # type: ignore[arg-type]
        Window(t_ns=T0 + 1, throughput=float("inf"), p50_ns=True, p99_ns=7),
    ]
    write(
        tmp_path / "t.gz",
        worker_phases=[
            ("before", -5, T0),
            ("late", 2**80, None),
            ("back", T0 + 9, T0 + 3),
            ("sound", T0 + 4, T0 + 8),
        ],
        windows=windows,
    )
    trace = judge(tmp_path / "t.gz")
    phases = [(s.name, s.ts - T0, s.dur) for s in trace.slices() if s.track == "phases"]
    assert phases == [("sound", 4, 4), ("back", 9, 0)]
    assert trace.counters() == {"p99": [(T0 + 1, 7.0)]}
    assert trace.losses() == {}


def test_the_same_run_makes_the_same_bytes(tmp_path: Path) -> None:
    spans = [measured(tmp_path / "a.npz", 50), pipelined(tmp_path / "b.npz", 5)]
    write(tmp_path / "one.gz", spans=spans)
    write(tmp_path / "two.gz", spans=spans)
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


def test_a_folder_that_can_not_be_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFailed):
        write(tmp_path / "file" / "t.gz")


def test_twenty_thousand_queries_are_complete(tmp_path: Path, judge) -> None:
    summary = write(tmp_path / "t.gz", spans=[measured(tmp_path / "a.npz", 20_000)])
    trace = judge(tmp_path / "t.gz")
    nested = trace.query("""
        select count(*) as n, sum(s.dur) as total from slice s join slice p on s.parent_id = p.id
        where s.name = 'predict' and p.name = 'query' and s.ts = p.ts and s.dur = p.dur""")
    assert nested == [{"n": 20_000, "total": 9 * 20_000}]
    assert len(trace.flows()) == summary.flows == 20_000
    assert np.diff([s.args["query"] for s in trace.slices() if s.name == "query"]).tolist() == [1] * 19_999
    assert trace.losses() == {}
