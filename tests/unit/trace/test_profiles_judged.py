"""Any spans, layers, kernels and samples: what Perfetto reads of a profiled pass is what was put in."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judge.trace import Slice

from mlbundle.trace.counters import write_counters
from mlbundle.trace.packets import clean
from mlbundle.trace.perfetto import trace_writer
from mlbundle.trace.profiled import ProfiledPass, write_profiles
from mlbundle.trace.samples import SampleColumns
from mlbundle.trace.spans import SpanColumns
from mlbundle.trace.tables import KERNELS, LAYERS, Table, TableKind

CLOCKS = {"monotonic": 1_000, "realtime": 1_700_000_000_000_000_000}
Row = dict[str, int | str]

times = st.integers(0, 12) | st.integers(0, 12) | st.integers(0, 2**61)
lengths = st.integers(0, 6) | st.integers(0, 6) | st.integers(0, 2**61)
texts = st.text(max_size=8) | st.sampled_from(["Conv", "1x3x8x8", "ü", "名前", "a\0b", "\ud800", "x" * 300])
# Few names, for Perfetto mends some wrong pairs of begins and ends where the names differ.
names = st.sampled_from("ab") | texts
numbers = st.integers(-1, 3) | st.integers(-1, 2**63 - 1)
runs = st.integers(0, 3)
layer_rows = st.fixed_dictionaries(
    {"run": runs, "index": st.integers(0, 4) | st.just(2**63 - 1), "start_ns": times, "duration_ns": lengths}
    | dict.fromkeys(("param_bytes", "flops"), numbers)
    | dict.fromkeys(("original_name", "type", "provider", "shape_in", "shape_out"), texts)
    | {"name": names, "flops_source": st.sampled_from(["", "computed", "measured"])}
)
kernel_rows = st.fixed_dictionaries(
    {"run": runs, "layer_index": st.integers(-1, 5), "start_ns": times, "duration_ns": lengths}
    | {
        "stream": st.integers(-1, 2) | numbers,
        "bytes": numbers,
        "device": st.sampled_from(["", "GPU 0", "ü"]),
    }
    | dict.fromkeys(("grid", "block"), texts)
    | {"name": names, "kind": st.sampled_from(["kernel", "copy", "operator"])}
)
span_rows = st.fixed_dictionaries(
    {
        "name": texts,
        "start_ns": times,
        "duration_ns": lengths,
        "query": st.integers(-1, 3),
        "inner": st.booleans(),
    }
)
passes = st.tuples(
    st.lists(span_rows, max_size=5), st.lists(layer_rows, max_size=12), st.lists(kernel_rows, max_size=20)
)
samples = st.lists(
    st.tuples(st.sampled_from(["rate_hz", "ü"]), times, st.floats(allow_nan=True, allow_infinity=True)),
    max_size=9,
)


def table_of(kind: TableKind, rows: list[Row]) -> Table:
    strings: dict[str, int] = {"": 0}
    columns = {
        name: [
            strings.setdefault(str(row[name]), len(strings)) if name in kind.texts else int(row[name])
            for row in rows
        ]
        for name in kind.columns
    }
    return Table(kind, tuple(strings), {name: np.array(values, np.int64) for name, values in columns.items()})


def spans_of(rows: list[Row]) -> SpanColumns:
    def column(name: str):
        return np.array([int(row[name]) for row in rows], np.int64)

    place = np.arange(len(rows))
    return SpanColumns(
        strings=tuple(str(row["name"]) for row in rows),
        level=np.ones(len(rows), np.int64),
        track=place,
        name=place,
        start_ns=column("start_ns"),
        duration_ns=column("duration_ns"),
        parent=np.where(place * column("inner") > 0, place - 1, -1),
        query=column("query"),
        pass_number=np.zeros(len(rows), np.int64),
    )


def known(row: Row, names: dict[str, str]) -> frozenset[tuple[str, Any]]:
    """What a slice should say of a row: what is known of it, as Perfetto can hold it."""
    values = {note: row[column] for note, column in names.items() if row[column] not in (-1, "")}
    return frozenset((note, clean(v) if isinstance(v, str) else v) for note, v in values.items())


LAYER_NOTES = {"query": "run"} | {
    name: name
    for name in ("name", "index", "param_bytes", "alloc_bytes", "flops", "type", "provider", "shape_in", "shape_out",
                 "original_name", "flops_source")
}  # fmt: skip
KERNEL_NOTES = {"query": "run", "layer": "layer_index"} | {
    name: name for name in ("stream", "correlation", "bytes", "kind", "device", "grid", "block")
}


def serial_of(found: Slice) -> int:
    """Return the row that a slice was, by what only that row says."""
    if found.category == "model":
        return int(found.name.split(" ")[0])
    return found.args["alloc_bytes" if found.category == "framework" else "correlation"]


class Expected:
    """What should be found of a pass, in the simplest way that says it."""

    def __init__(self, group: str, spans: list[Row], layers: list[Row], kernels: list[Row]) -> None:
        self.group, self.slices, self.links = group, Counter[Any](), set[Any]()
        self.level = group.removeprefix("profile: ")
        first_of: dict[Any, Any] = {}
        for place, row in enumerate(spans):
            self.slices[self.slice("query", "model", row, {"query": "query"})] += 1
            if row["inner"] and place:
                first_of.setdefault(row["query"], (group, "model", place))
        bounds = {}
        for place, row in enumerate(layers):
            self.slices[self.slice("query", "framework", row, LAYER_NOTES)] += 1
            if row["run"] in first_of:
                self.links.add((first_of[row["run"]], (group, "framework", place)))
            key = (row["run"], row["index"])
            if key not in first_of:
                first_of[key] = (group, "framework", place)
                bounds[key] = (row["start_ns"], row["start_ns"] + row["duration_ns"])
        for place, row in enumerate(kernels):
            key = (row["run"], row["layer_index"])
            if key in first_of:
                self.links.add((first_of[key], (group, "system", place)))
            end = row["start_ns"] + row["duration_ns"]
            inside = key in bounds and bounds[key][0] <= row["start_ns"] and end <= bounds[key][1]
            self.slices[self.slice(self.track(row, inside), "system", row, KERNEL_NOTES)] += 1

    def slice(self, track: str, category: str, row: Row, notes: dict[str, str]) -> Any:
        name = clean(self.shown(row) if category == "framework" else str(row["name"]))
        said = known(row, notes) | {("level", self.level)}
        return self.group, track, category, name, row["start_ns"], row["duration_ns"], said

    @staticmethod
    def shown(row: Row) -> str:
        """What a layer is called: as its author does, with its type where that says nothing."""
        name = str(row["original_name"] or row["name"])
        is_bare = name.isascii() and (name.isdigit() or (len(name) == 1 and name.isalpha()))
        return f"{name} ({row['type']})" if is_bare and row["type"] else name

    @staticmethod
    def track(row: Row, inside: bool) -> str:
        if row["kind"] == "operator":
            return "query" if inside else f"thread {row['stream']}" if row["stream"] >= 0 else "other threads"
        return f"{row['device'] or 'device'} stream" + (f" {row['stream']}" if row["stream"] >= 0 else "")


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.lists(passes, min_size=1, max_size=3), samples, st.sampled_from([1, 4, 1 << 15]))
def test_what_comes_out_is_what_went_in(tmp_path: Path, judge, drawn, sampled, at_once: int) -> None:
    """`at_once`: how many slices and events are written together."""
    expected = []
    profiles = []
    for number, (drawn_spans, drawn_layers, drawn_kernels) in enumerate(drawn):
        # Each row says something that no other says, so that it is known again.
        spans = [{**row, "name": f"{place} {row['name']}"} for place, row in enumerate(drawn_spans)]
        layers = [{**row, "alloc_bytes": place} for place, row in enumerate(drawn_layers)]
        kernels = [{**row, "correlation": place} for place, row in enumerate(drawn_kernels)]
        expected.append(Expected(f"profile: {number}", spans, layers, kernels))
        tables = table_of(LAYERS, layers), table_of(KERNELS, kernels)
        profiles.append(ProfiledPass(str(number), spans_of(spans), *tables))
    known_counters = sorted({name for name, _, _ in sampled})
    counters = SampleColumns(
        tuple(known_counters),
        np.array([known_counters.index(name) for name, _, _ in sampled], np.int64),
        np.array([t_ns for _, t_ns, _ in sampled], np.int64),
        np.array([value for _, _, value in sampled], np.float64),
    )
    with (
        mock.patch.multiple("mlbundle.trace.columns", _PART_SLICES=at_once, _CHUNK_EVENTS=at_once),
        trace_writer(tmp_path / "t.gz", CLOCKS) as writer,
    ):
        links = write_profiles(writer, writer.process("worker", pid=2), profiles, 1, 1 << 32)
        values = write_counters(writer, writer.process("counters", pid=3), counters)
    trace = judge(tmp_path / "t.gz")

    slices = {s.id: s for s in trace.slices()}
    group = {row["id"]: row["name"] for row in trace.query(
        "select t.id, p.name from track t join track p on t.parent_id = p.id")}  # fmt: skip
    found = Counter(
        (group[s.lane], s.track, s.category, s.name, s.ts, s.dur, frozenset(s.args.items()))
        for s in slices.values()
    )
    assert found == sum((one.slices for one in expected), Counter())
    assert writer.slices_written == len(slices)
    for inner in slices.values():
        if inner.parent is not None:
            outer = slices[inner.parent]
            assert outer.ts <= inner.ts
            assert inner.ts + inner.dur <= outer.ts + outer.dur

    label = {s.id: (group[s.lane], s.category, serial_of(s)) for s in slices.values()}
    met = Counter(frozenset((label[a], label[b])) for a, b in trace.flows())
    assert met == Counter(frozenset(pair) for one in expected for pair in one.links)
    assert links == met.total()
    for earlier, later in trace.flows():
        assert slices[earlier].ts <= slices[later].ts
    finite = Counter((n.removesuffix("_hz"), t, v) for n, t, v in sampled if math.isfinite(v))
    assert Counter((n, t, v) for n, rows in trace.counters().items() for t, v in rows) == finite
    assert values == finite.total()
    assert trace.losses() == {}
