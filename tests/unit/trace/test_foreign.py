"""Traces of other tools on the timeline of a run, asked of Perfetto; and files that are none."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlbundle.errors import IntegrityError, StorageFailed
from mlbundle.trace.foreign import combine, read_text
from mlbundle.trace.jsonwalk import JSONBroken, members
from mlbundle.trace.kineto import looks_like_kineto, read_kineto
from mlbundle.trace.nesting import MAX_LANES
from mlbundle.trace.otlp import looks_like_otlp, read_otlp
from mlbundle.trace.perfetto import trace_writer

T0, REAL = 10_000_000_000, 1_700_000_000_000_000_000
CLOCKS = {"monotonic": T0, "realtime": REAL}
BASE = REAL - 5_000_000


def own(path: Path) -> Path:
    with trace_writer(path, CLOCKS) as writer:
        writer.slice(writer.track("run", writer.process("host", pid=1)), "run", T0, T0 + 9_000)
        writer.snapshot({name: value + 9_000 for name, value in CLOCKS.items()})
    return path


def event(name: str, ts: float, dur: float, **more) -> dict:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 8, "ts": ts, "dur": dur, **more}


def kineto(*events: dict) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": list(events), "baseTimeNanoseconds": BASE})


def span(name: str, own_id: str, parent: str, start: int, end: int, **more) -> dict:
    return {
        "traceId": "ab" * 16, "spanId": own_id, "parentSpanId": parent, "name": name,
        "startTimeUnixNano": str(REAL + start), "endTimeUnixNano": str(REAL + end), **more,
    }  # fmt: skip


def otlp(service: str, *spans: dict) -> dict:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    return {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": {"name": "lib"}, "spans": list(spans)}]}
        ]
    }


def test_operators_and_kernels_of_kineto(tmp_path: Path, judge) -> None:
    text = kineto(
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "main"}},
        event("aten::conv2d", 5000.125, 3.5, args={"Input Dims": [[1, 3]], "Ev Idx": 4}),
        event("aten::mkldnn", 5001.0, 1.0),
        event("cudaLaunchKernel", 5001.5, 0.25, cat="cuda_runtime", args={"correlation": 11}),
        event("gemm", 5002.0, 1.5, cat="kernel", pid=0, tid=7, args={"correlation": 11, "stream": 7}),
        {"ph": "s", "id": 11, "pid": 7, "tid": 8, "ts": 5001.5, "cat": "ac2g", "name": "ac2g"},
    )
    assert looks_like_kineto(text)
    found = read_kineto(text, where="here")
    assert (len(found.slices), found.skipped) == (4, 0)
    assert combine(own(tmp_path / "own.gz"), [found], tmp_path / "both.gz") == 4
    trace = judge(tmp_path / "both.gz")
    by_id = {s.id: s for s in trace.slices()}
    slices = {s.name: s for s in by_id.values()}
    assert trace.losses() == {}
    conv = slices["aten::conv2d"]
    assert (conv.ts, conv.dur) == (T0 + 125, 3_500), "Perfetto relates the clocks"
    assert (conv.process, conv.track) == ("kineto: python 7", "main"), (
        "a number that the run's trace has itself"
    )
    assert conv.args == {"Input Dims": "[[1, 3]]", "Ev Idx": 4}
    assert slices["aten::mkldnn"].parent == conv.id
    assert (slices["run"].ts, slices["run"].process) == (T0, "host")
    assert [(by_id[a].name, by_id[b].name) for a, b in trace.flows()] == [("cudaLaunchKernel", "gemm")]


def test_spans_of_opentelemetry_nest_by_their_parents(tmp_path: Path, judge) -> None:
    text = "\n".join(
        json.dumps(document)
        for document in (
            otlp("web", span("request", "01", "", 100, 900), span("parse", "02", "01", 100, 200)),
            otlp(
                "web",
                span("other", "03", "", 150, 400, attributes=[{"key": "n", "value": {"intValue": "5"}}]),
            ),
            otlp("db", span("select", "04", "02", 120, 180, status={"code": 2, "message": "down"})),
        )
    )
    assert looks_like_otlp(text)
    found = read_otlp(text, where="here")
    combine(own(tmp_path / "own.gz"), [found], tmp_path / "both.gz")
    trace = judge(tmp_path / "both.gz")
    by_id = {s.id: s for s in trace.slices()}
    slices = {s.name: s for s in by_id.values()}
    assert trace.losses() == {}
    assert slices["parse"].parent == slices["request"].id
    assert slices["other"].parent is None, "it only happened meanwhile"
    assert slices["other"].lane != slices["request"].lane
    assert slices["other"].args["n"] == 5
    assert (slices["select"].process, slices["select"].args["error"]) == ("otlp: db", "down")
    assert [(by_id[a].name, by_id[b].name) for a, b in trace.flows()] == [("parse", "select")]
    assert (slices["request"].ts, slices["request"].dur) == (T0 + 100, 800)


def test_several_files_do_not_mix(tmp_path: Path, judge) -> None:
    one = read_kineto(kineto(event("a", 5000, 1, cat="cuda_runtime", args={"correlation": 1})), where="")
    two = read_kineto(kineto(event("b", 5001, 1, cat="kernel", args={"correlation": 1})), where="")
    combine(own(tmp_path / "own.gz"), [one, two, one], tmp_path / "all.gz")
    trace = judge(tmp_path / "all.gz")
    assert sorted(s.name for s in trace.slices()) == ["a", "a", "b", "run"]
    assert trace.flows() == [], "the same number in two files is not the same thing"
    assert trace.losses() == {}


def test_what_can_not_be_is_skipped_and_counted(tmp_path: Path, judge) -> None:
    bad = [
        event("negative", 5000, -1), event("nan", float("nan"), 1), event("text", "5", 1),
        event("before time", -1e18, 1), event("for ever", 5000, 1e19), 7, None, event("no dur", 1, None),
    ]  # fmt: skip
    good = [
        event("x" * 10_000_000, 5000, 2),
        event("Ünïcödé 名前 \ud83d\ude80\u0000\n", 5003, 1),
        event("overlaps", 5001, 5),
        event("zero", 5010, 0),
    ]
    found = read_kineto(kineto(*bad, *good), where="")
    assert found.skipped == len(bad)
    combine(own(tmp_path / "own.gz"), [found], tmp_path / "both.gz")
    trace = judge(tmp_path / "both.gz")
    assert trace.losses() == {}
    assert len(trace.slices()) == 1 + len(good)
    assert max(len(s.name) for s in trace.slices()) == 1000


def test_a_trace_that_was_cut_is_read_as_far_as_it_goes() -> None:
    text = json.dumps(
        {
            "baseTimeNanoseconds": BASE,
            "traceEvents": [event(f"op{number}", 5000 + number, 1) for number in range(50)],
        }
    )
    found = read_kineto(text[: len(text) // 2], where="")
    assert 20 <= len(found.slices) <= 25
    assert found.skipped == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "nonsense",
        '{"traceEvents": []}',
        '{"traceEvents": [{"ph": "X"}]}',
        '{"traceEvents": 5}',
        "{" * 5000,
    ],
)
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(IntegrityError):
        read_kineto(text, where="file")
    with pytest.raises(IntegrityError):
        read_otlp(text, where="file")


_KEYS = [
    "ph",
    "ts",
    "dur",
    "name",
    "args",
    "pid",
    "cat",
    "traceEvents",
    "baseTimeNanoseconds",
    "resourceSpans",
    "scopeSpans",
    "spans",
    "startTimeUnixNano",
    "endTimeUnixNano",
    "attributes",
    "key",
    "value",
    "resource",
]


def json_values(numbers: st.SearchStrategy) -> st.SearchStrategy:
    """Values of any form, with keys that mean something to a reader."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | numbers | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=5)
        ),
        max_leaves=40,
    )


@given(json_values(st.floats()))
@settings(max_examples=200, deadline=None)
def test_any_json_is_read_or_refused(value) -> None:
    text = json.dumps(value)
    for read in (read_kineto, read_otlp):
        try:
            found = read(text, where="")
        except IntegrityError:
            continue
        assert all(one.is_sound() for one in found.slices)


@given(
    st.dictionaries(
        st.text(max_size=5), json_values(st.floats(allow_nan=False, allow_infinity=False)), max_size=5
    ),
    st.integers(0, 200),
)
@settings(max_examples=200, deadline=None)
def test_the_walk_gives_what_json_gives(value: dict, cut: int) -> None:
    value = {**value, "long": [1, {"a": [2]}, "x"]}
    text = json.dumps(value)
    got: dict = {}
    for key, one in members(text, "long"):
        if key == "long":
            got.setdefault(key, []).append(one)
        else:
            got[key] = one
    assert got == value
    shorter = text[: max(0, len(text) - 1 - cut)]
    with pytest.raises(JSONBroken):
        list(members(shorter, "long"))


def test_files_may_be_gzip_and_a_cut_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    content = gzip.compress(b'{"a": 1}' * 1000)
    path.write_bytes(content)
    assert read_text(path) == '{"a": 1}' * 1000
    path.write_bytes(content[:-20])
    with pytest.raises(IntegrityError):
        read_text(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(IntegrityError, match="can't be read"):
        read_text(path)


def test_the_runs_own_trace_is_not_written_over(tmp_path: Path) -> None:
    path = own(tmp_path / "own.gz")
    with pytest.raises(StorageFailed):
        combine(path, [], path)


def test_processes_have_their_own_numbers_where_those_are_free(tmp_path: Path, judge) -> None:
    def named(pid: int, name: str) -> dict:
        return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}

    one = kineto(named(4711, "python"), event("a", 5000, 1, pid=4711))
    two = kineto(named(4711, "python"), event("b", 5000, 1, pid=4711), event("c", 5000, 1, pid=0))
    traces = [read_kineto(text, where="here") for text in (one, two)]
    combine(own(tmp_path / "own.gz"), traces, tmp_path / "both.gz")
    found = judge(tmp_path / "both.gz").query("select name, pid from process where name glob 'kineto*'")
    numbers = {row["name"]: row["pid"] for row in found}
    assert numbers["kineto: python"] == 4711
    assert {"kineto: python", "kineto: python 4711", "kineto: 0"} == set(numbers), "the second is told apart"


def written(path: Path, *traces) -> Path:
    combine(own(path.with_suffix(".own")), traces, path)
    return path


def test_times_beyond_all_numbers_are_skipped() -> None:
    events = [
        event("late", 1e308, 1), event("long", 5000, 1e308), event("early", -1e308, 1), event("whole", 10**300, 1),
    ]  # fmt: skip
    found = read_kineto(kineto(*events, event("sound", 5000, 1)), where="")
    assert ([one.name for one in found.slices], found.skipped) == (["sound"], len(events))


def test_arrows_that_lead_back_in_time_are_left_out_and_told(tmp_path: Path, judge) -> None:
    found = read_kineto(
        kineto(
            event("launch", 5002, 1, cat="cuda_runtime", args={"correlation": 1}),
            event("too early", 5001, 1, cat="kernel", pid=0, args={"correlation": 1}),
            event("launch too", 5005, 1, cat="cuda_runtime", args={"correlation": 2}),
            event("sound", 5006, 1, cat="kernel", pid=0, args={"correlation": 2}),
        ),
        where="",
    )
    assert len(found.notes) == 1
    assert found.notes[0].startswith("1 arrows are left out")
    trace = judge(written(tmp_path / "both.gz", found))
    by_id = {s.id: s.name for s in trace.slices()}
    assert [(by_id[a], by_id[b]) for a, b in trace.flows()] == [("launch too", "sound")]
    assert trace.losses() == {}


def test_a_parent_of_very_many_spans_elsewhere_takes_seconds(tmp_path: Path) -> None:
    count = 30_000
    parent = otlp("web", span("request", "p", "", 0, 10**9))
    children = otlp("db", *(span("q", f"c{n}", "p", n * 10, n * 10 + 5) for n in range(count)))
    begun = time.process_time()
    found = read_otlp("\n".join(map(json.dumps, (parent, children))), where="")
    assert time.process_time() - begun < 5
    assert len(found.slices[0].flows) == count
    assert {one.ends_flows for one in found.slices[1:]} == {(flow,) for flow in found.slices[0].flows}


def test_a_text_may_hold_separators_of_lines() -> None:
    lines = [otlp("web", span(f"a\u2028b\u0085{n}", "", "", 1, 2)) for n in range(2)]
    text = "\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    found = read_otlp(text, where="")
    assert ([one.name[-1] for one in found.slices], found.skipped) == (["0", "1"], 0)


def test_spans_from_before_the_machine_was_started_are_counted(tmp_path: Path, judge) -> None:
    old = span("old", "01", "", -T0 - 5, 50)
    found = read_otlp(json.dumps(otlp("web", old, span("first", "02", "01", -T0, 90))), where="")
    trace = judge(written(tmp_path / "both.gz", found))
    assert trace.losses() == {}
    assert {s.name: s.ts for s in trace.slices()} == {"run": T0, "first": 0}
    assert (found.skipped, len(found.notes)) == (1, 1)
    with pytest.raises(IntegrityError, match="before this machine was started"):
        written(tmp_path / "none.gz", read_otlp(json.dumps(otlp("web", old)), where=""))
    assert not (tmp_path / "none.gz").exists()


def test_more_spans_at_once_than_a_track_shows_are_counted(tmp_path: Path, judge) -> None:
    spans = [span("s", f"{n}", "", n, 1000 + n) for n in range(MAX_LANES + 5)]
    found = read_otlp(json.dumps(otlp("web", *spans)), where="")
    trace = judge(written(tmp_path / "both.gz", found))
    assert sum(s.name == "s" for s in trace.slices()) == MAX_LANES
    assert (found.skipped, len(found.notes)) == (5, 1)
    assert trace.losses() == {}


def test_processes_of_several_files_have_numbers_of_their_own(tmp_path: Path, judge) -> None:
    # More than 1,024 in the first; some have the numbers that the others would get.
    first = [event("a", 5000, 1, pid=pid) for pid in ("x", "1048576", *(f"p{n}" for n in range(1100)))]
    second = [event("b", 5000, 1, pid=pid) for pid in ("y", "1048577", "z")]
    both = [read_kineto(kineto(*events), where="") for events in (first, second)]
    trace = judge(written(tmp_path / "both.gz", *both))
    assert len({s.process for s in trace.slices() if s.name in "ab"}) == len(first) + len(second)
    assert trace.losses() == {}


@pytest.mark.parametrize("tied", [Path.hardlink_to, Path.symlink_to])
def test_no_file_that_is_read_is_written_over(tmp_path: Path, tied) -> None:
    source = tmp_path / "spans.json"
    source.write_text(json.dumps(otlp("web", span("a", "01", "", 1, 2))))
    trace = own(tmp_path / "own.gz")
    found = read_otlp(source.read_text(), where="")
    for read in (trace, source):
        before = read.read_bytes()
        other_name = tmp_path / f"tied-{read.name}"
        tied(other_name, read)
        for target in (read, other_name):
            with pytest.raises(StorageFailed, match="written over"):
                combine(trace, [found], target, [source])
        assert read.read_bytes() == before
