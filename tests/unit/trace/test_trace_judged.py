"""What Perfetto reads from our traces is what was put in, and it lost nothing.

Every test asks Perfetto's own importer by SQL.
"""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from mlbundle.trace.columns import SliceColumns
from mlbundle.trace.nesting import MAX_DEPTH
from mlbundle.trace.perfetto import trace_writer

T0 = 123_456_789_000_000
CLOCKS = {"monotonic": T0, "realtime": 1_700_000_000_000_000_000, "boottime": T0 + 5_000_000}


def column(*values):
    return np.array(values, np.int64)


def by_name(slices):
    return {found.name: found for found in slices}


def test_slices_come_back_with_times_names_and_parents(tmp_path: Path, judge) -> None:
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        track = writer.track("query", writer.process("worker", pid=2))
        writer.slice(track, "outer", T0 + 1, T0 + 100, category="model")
        writer.slice(track, "inner", T0 + 1, T0 + 50, category="framework")
        writer.slice(track, "second", T0 + 50, T0 + 100)
        writer.slice(track, "after", T0 + 100, T0 + 101)
        writer.snapshot({name: value + 1000 for name, value in CLOCKS.items()})
    trace = judge(tmp_path / "t.gz")
    found = by_name(trace.slices())
    assert {name: (s.ts - T0, s.dur, s.depth, s.category) for name, s in found.items()} == {
        "outer": (1, 99, 0, "model"),
        "inner": (1, 49, 1, "framework"),
        "second": (50, 50, 1, None),
        "after": (100, 1, 0, None),
    }
    assert found["inner"].parent == found["second"].parent == found["outer"].id
    assert {(s.track, s.process) for s in found.values()} == {("query", "worker")}
    assert trace.losses() == {}


def test_annotations_of_every_type_come_back(tmp_path: Path, judge) -> None:
    args = {
        "text": "float32[1, 3, 224, 224] é",
        "empty": "",
        "int": -(2**63),
        "large": 2**63 - 1,
        "ratio": 0.25,
        "yes": True,
        "no": False,
        "nan": float("nan"),
        "huge": 10**30,
    }
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        track = writer.track("t", writer.process("p", pid=1))
        writer.slice(track, "slice", 1, 5, args=args)
        writer.slice(track, "plain", 6, 7)
        writer.instant(track, "instant", 8, category="note", args={"why": "here"})
    trace = judge(tmp_path / "t.gz")
    found = by_name(trace.slices())
    assert found["slice"].args == args | {"nan": "nan", "huge": "1" + "0" * 30}
    assert found["plain"].args == {}
    assert (found["instant"].ts, found["instant"].dur, found["instant"].args) == (8, 0, {"why": "here"})
    assert found["instant"].category == "note"
    assert trace.losses() == {}


def test_an_instant_at_the_end_of_a_slice_is_not_inside_it(tmp_path: Path, judge) -> None:
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        track = writer.track("t", writer.process("p", pid=1))
        writer.slice(track, "slice", 1, 5)
        writer.instant(track, "inside", 3)
        writer.instant(track, "behind", 5)
    found = by_name(judge(tmp_path / "t.gz").slices())
    assert found["inside"].parent == found["slice"].id
    assert found["behind"].parent is None


def test_flows_link_slices_in_order_of_time(tmp_path: Path, judge) -> None:
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        process = writer.process("p", pid=1)
        layers, kernels = writer.track("layers", process), writer.track("stream 0", process)
        writer.slice(layers, "layer", 1, 5, flows=(1, 2**64 - 1))
        writer.slice(kernels, "kernel 1", 3, 4, ends_flows=(1,))
        writer.slice(kernels, "kernel 2", 6, 8, ends_flows=(2**64 - 1,))
        writer.slice(kernels, "alone", 9, 10)
    trace = judge(tmp_path / "t.gz")
    name = {found.id: found.name for found in trace.slices()}
    links = {(name[out], name[into]) for out, into in trace.flows()}
    assert links == {("layer", "kernel 1"), ("layer", "kernel 2")}
    assert trace.losses() == {}


def test_counters_come_back_with_their_units(tmp_path: Path, judge) -> None:
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        process = writer.process("p", pid=1)
        rate = writer.counter_track("rate", process, unit="queries/s")
        memory = writer.counter_track("memory", process, unit="bytes")
        for t, value in ((1, 2.5), (2, float("nan")), (3, 0.0)):
            writer.count(rate, t, value)
        writer.count(memory, 2, 2**40)
        writer.count(memory, 3, 0.5)
        writer.count(memory, 4, 10**25)
    trace = judge(tmp_path / "t.gz")
    assert trace.counters() == {"rate": [(1, 2.5), (3, 0.0)], "memory": [(2, 2.0**40), (3, 0.5), (4, 1e25)]}
    units = {row["name"]: row["unit"] for row in trace.query("select name, unit from counter_track")}
    assert units == {"rate": "queries/s", "memory": "bytes"}
    assert trace.losses() == {}


def test_tracks_are_nested_and_ranked(tmp_path: Path, judge) -> None:
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        process = writer.process("worker", pid=2, rank=1)
        group = writer.track("pipeline", process, rank=3)
        for rank, name in enumerate(("query", "decode")):
            writer.slice(writer.track(name, group, rank=rank), name, 1, 2)
    rows = judge(tmp_path / "t.gz").query("""
        select t.name, p.name as parent, extract_arg(t.source_arg_set_id, 'child_ordering') as ordering,
               extract_arg(t.source_arg_set_id, 'sibling_order_rank') as rank
        from track t left join track p on t.parent_id = p.id where t.name is not null order by t.name""")
    assert {row["name"]: (row["parent"], row["ordering"], row["rank"]) for row in rows} == {
        "pipeline": (None, "explicit", 3),
        "query": ("pipeline", "explicit", 0),
        "decode": ("pipeline", "explicit", 1),
    }


def test_a_partial_overlap_goes_to_a_sibling_of_the_same_name(tmp_path: Path, judge) -> None:
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        track = writer.track("decode", writer.process("p", pid=1))
        writer.slice(track, "a", 0, 10)
        writer.slice(track, "b", 5, 15)
        writer.slice(track, "c", 12, 20)
    trace = judge(tmp_path / "t.gz")
    found = by_name(trace.slices())
    assert {name: (s.ts, s.dur, s.depth, s.track) for name, s in found.items()} == {
        "a": (0, 10, 0, "decode"),
        "b": (5, 10, 0, "decode"),
        "c": (12, 8, 0, "decode"),
    }
    assert trace.losses() == {}


@pytest.mark.parametrize("how", ["rows", "columns"])
def test_a_pile_deeper_than_perfetto_allows_is_complete(tmp_path: Path, judge, how: str) -> None:
    count = MAX_DEPTH + 100
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        track = writer.track("deep", writer.process("p", pid=1))
        if how == "rows":
            for i in range(count):
                writer.slice(track, "s", i, 10_000 - i)
        else:
            start = np.arange(count, dtype=np.int64)
            writer.slices(track, SliceColumns(start, 10_000 - 2 * start, start * 0, ("s",)))
    trace = judge(tmp_path / "t.gz")
    assert [(s.ts, s.dur) for s in trace.slices()] == [(i, 10_000 - 2 * i) for i in range(count)]
    assert trace.losses() == {}


def test_a_slice_that_never_ended_stays_open(tmp_path: Path, judge) -> None:
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        track = writer.track("t", writer.process("p", pid=1))
        writer.slice(track, "open", 1, None)
        writer.slice(track, "inside", 2, 3)
    trace = judge(tmp_path / "t.gz")
    assert [(s.name, s.dur, s.depth) for s in trace.slices()] == [("open", -1, 0), ("inside", 1, 1)]
    assert trace.losses() == {}


def test_times_are_monotonic_and_related_to_the_clocks_of_the_machine(tmp_path: Path, judge) -> None:
    later = {
        "monotonic": T0 + 1_000_000,
        "realtime": CLOCKS["realtime"] + 1_000_400,
        "boottime": T0 + 6_000_000,
    }
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        writer.slice(writer.track("t", writer.process("p", pid=1)), "s", T0 + 7, T0 + 9)
        writer.snapshot(later)
    trace = judge(tmp_path / "t.gz")
    rows = trace.query("select ts, lower(clock_name) as clock, clock_value from clock_snapshot order by ts")
    assert {(row["ts"], row["clock"]): row["clock_value"] for row in rows} == {
        (snapshot["monotonic"], clock): value
        for snapshot in (CLOCKS, later)
        for clock, value in snapshot.items()
    }
    assert trace.query("select to_realtime(ts) as t from slice") == [{"t": CLOCKS["realtime"] + 7}]
    assert trace.losses() == {}


def test_a_clock_that_was_set_back_between_the_snapshots_costs_no_event(tmp_path: Path, judge) -> None:
    with trace_writer(tmp_path / "t.gz", {"monotonic": 100, "realtime": 5_000_000_000}) as writer:
        writer.slice(writer.track("t", writer.process("p", pid=1)), "s", 150, 160)
        writer.snapshot({"monotonic": 200, "realtime": 4_000_000_000})
    assert [(s.ts, s.dur) for s in judge(tmp_path / "t.gz").slices()] == [(150, 10)]


def test_columns_nest_below_their_declared_parents_only(tmp_path: Path, judge) -> None:
    # Two queries in flight at once, each with a predict as long as itself, and a step of the second.
    columns = SliceColumns(
        start_ns=column(0, 0, 5, 5, 6),
        duration_ns=column(10, 10, 10, 10, 1),
        name=column(0, 1, 0, 1, 2),
        names=("query", "predict", "step"),
        category="model",
        parent=column(-1, 0, -1, 2, 3),
        flow=column(1, 1, 2, 2, 0),
        numbers={"query": column(0, 0, 1, 1, -1)},
    )
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        writer.slices(writer.track("query", writer.process("p", pid=1)), columns)
    trace = judge(tmp_path / "t.gz")
    slices = {s.id: s for s in trace.slices()}
    label = {s.id: (s.name, s.args.get("query")) for s in slices.values()}
    assert {label[s.id]: label.get(s.parent) for s in slices.values()} == {
        ("query", 0): None,
        ("predict", 0): ("query", 0),
        ("query", 1): None,
        ("predict", 1): ("query", 1),
        ("step", None): ("predict", 1),
    }
    links = {(slices[a].name, slices[b].name, slices[a].args == slices[b].args) for a, b in trace.flows()}
    assert links == {("query", "predict", True)}
    assert len(trace.flows()) == 2
    assert trace.losses() == {}


def test_a_hundred_thousand_slices_are_all_there(tmp_path: Path, judge) -> None:
    count = 100_000
    start = T0 + np.arange(count, dtype=np.int64) * 1000
    names = tuple(f"operator {i}" for i in range(300))
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        process = writer.process("p", pid=1)
        columns = SliceColumns(start, np.full(count, 1000), np.arange(count, dtype=np.int64) % 300, names)
        writer.slices(writer.track("bulk", process), columns)
    trace = judge(tmp_path / "t.gz")
    assert trace.query("select count(*) as n, sum(dur) as total, max(depth) as depth from slice") == [
        {"n": count, "total": count * 1000, "depth": 0}
    ]
    wrong = trace.query(
        f"select count(*) as n from slice where name != 'operator ' || ((ts - {T0}) / 1000 % 300)"
    )
    assert wrong == [{"n": 0}]
    assert trace.losses() == {}


intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, 3)), max_size=25)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.lists(intervals, min_size=1, max_size=12))
def test_any_slices_come_back_complete(tmp_path: Path, judge, tracks) -> None:
    """Random slices that nest, overlap and touch, as rows and as columns, on many tracks."""
    put_in: Counter[tuple[str, str, int, int]] = Counter()
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        process = writer.process("p", pid=1)
        for number, rows in enumerate(tracks):
            ordered = sorted(rows, key=lambda row: (row[0], -row[1]))
            by_row = writer.track(f"rows {number}", process)
            for start, duration, name in ordered:
                writer.slice(by_row, "abcd"[name], start, start + duration)
            table = np.array(rows, np.int64).reshape(-1, 3).T
            writer.slices(
                writer.track(f"columns {number}", process), SliceColumns(*table, names=tuple("abcd"))
            )
            parents = np.full(len(rows), -1)
            apart = SliceColumns(*table, names=tuple("abcd"), parent=parents)
            writer.slices(writer.track(f"apart {number}", process), apart)
            for kind in ("rows", "columns", "apart"):
                put_in.update(
                    (f"{kind} {number}", "abcd"[name], start, length) for start, length, name in rows
                )
    trace = judge(tmp_path / "t.gz")
    slices = trace.slices()
    assert Counter((s.track, s.name, s.ts, s.dur) for s in slices) == put_in
    held = {s.id: s for s in slices}
    for found in slices:
        if found.parent is not None:
            above = held[found.parent]
            assert not found.track.startswith("apart")
            assert above.ts <= found.ts
            assert found.ts + found.dur <= above.ts + above.dur
    assert trace.losses() == {}


def test_the_judge_notices_a_trace_that_loses_events(tmp_path: Path, judge) -> None:
    """The check of the statistics can fail: without the flag of incremental state Perfetto drops events."""
    with trace_writer(tmp_path / "good.gz", CLOCKS) as writer:
        writer.slice(writer.track("t", writer.process("p", pid=1)), "s", 1, 2)
    broken = Trace.FromString(gzip.decompress((tmp_path / "good.gz").read_bytes()))
    for packet in broken.packet:
        packet.sequence_flags = 2
    (tmp_path / "broken.gz").write_bytes(gzip.compress(broken.SerializeToString()))
    trace = judge(tmp_path / "broken.gz")
    assert trace.slices() == []
    assert trace.losses() != {}


def test_perfetto_silently_mispairs_what_the_writer_keeps_apart(tmp_path: Path, judge) -> None:
    """Why lanes exist: on one track a partial overlap comes back with wrong ends and not one complaint."""
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        track = writer.track("t", writer.process("p", pid=1))
        writer.slice(track, "s", 0, 10)
        writer.slice(track, "s", 5, 15)
    naive = Trace.FromString(gzip.decompress((tmp_path / "t.gz").read_bytes()))
    for packet in naive.packet:
        if packet.track_event.type in {TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END}:
            packet.track_event.track_uuid = track.uuid
    (tmp_path / "naive.gz").write_bytes(gzip.compress(naive.SerializeToString()))
    assert [(s.ts, s.dur) for s in judge(tmp_path / "t.gz").slices()] == [(0, 10), (5, 10)]
    assert [(s.ts, s.dur) for s in judge(tmp_path / "naive.gz").slices()] == [(0, 15), (5, 5)]
