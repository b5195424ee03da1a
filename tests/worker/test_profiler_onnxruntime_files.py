"""Profiles and graphs in any state: what is sound is kept, what is not is said, and nothing is an error."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ROOT
from test_profiler_onnxruntime import rows

from mlbundle.worker.profilers import onnx_events
from mlbundle.worker.profilers.base import Profile, Run, Runs
from mlbundle.worker.profilers.onnx_events import read_events
from mlbundle.worker.profilers.onnx_graph import Graph, Node, read_graph
from mlbundle.worker.profilers.onnx_runtime import Reader

DIGITS = ROOT / "manifests" / "models" / "digits-cnn" / "model.onnx"
# CLOCK_REALTIME when profiling began, and by how much it is ahead of CLOCK_MONOTONIC.
START_NS, AHEAD_NS = 1_795_284_636_012_901_381, 1_795_000_000_000_000_000
QUERY_US = 1000
GRAPH = Graph(
    [Node("a", "Conv", "", ("x", "w"), ("t",), False), Node("b", "Relu", "", ("t",), ("y",), False)], {}
)


def monotonic_ns(us: int) -> int:
    return START_NS + us * 1000 - AHEAD_NS


def queries(count: int, *, offsets_ns: dict[int, int] | None = None) -> Runs:
    """Queries of 1 ms, one beginning at each 2 ms; `offsets_ns` sets the real-time clock for some."""
    return Runs(
        [
            Run(
                number,
                monotonic_ns(2 * QUERY_US * number),
                monotonic_ns(2 * QUERY_US * number + QUERY_US),
                AHEAD_NS + (offsets_ns or {}).get(number, 0),
            )
            for number in range(count)
        ]
    )


def event(name: str, start_us: Any, duration_us: Any, **args: Any) -> dict[str, Any]:
    session = name == "model_run"
    return {
        "cat": "Session" if session else "Node",
        "pid": 1,
        "tid": 7,
        "dur": duration_us,
        "ts": start_us,
        "ph": "X",
        "name": name if session else f"{name}_kernel_time",
        "args": args
        or {
            "op_name": "Conv" if name == "a" else "Relu",
            "provider": "CPUExecutionProvider",
            "input_type_shape": [{"float": [1, 2]}],
            "output_type_shape": [{"float": [1, 3]}],
            "output_size": "12",
            "parameter_size": "0",
        },
    }


def query(number: int, *, shift_us: int = 0) -> list[dict[str, Any]]:
    """The events of a query as they are written: nodes, then the run that they were in."""
    begin = 2 * QUERY_US * number + shift_us
    return [
        event("a", begin + 100, 300),
        event("b", begin + 400, 500),
        event("model_run", begin + 50, 900, none=1),
    ]


def written(events: list[Any], *, end: bytes = b"]\n") -> bytes:
    return b"[\n" + b",\n".join(json.dumps(one).encode() for one in events) + b"\n" + end


def read(content: bytes, runs: Runs, *, deep: bool = False, graph: Graph | None = GRAPH) -> Profile:
    profile = Profile()
    Reader(graph, graph, START_NS, deep=deep).read(read_events(content.splitlines(True)), runs, profile)
    return profile


def layers(profile: Profile) -> list[tuple[int, int, str]]:
    return [(row["run"], row["index"], row["name"]) for row in rows(profile.layers_bytes())]


BOTH = [(0, 0, "a"), (0, 1, "b"), (1, 0, "a"), (1, 1, "b")]


def test_a_sound_profile_has_nothing_to_note() -> None:
    profile = read(written([*query(0), *query(1)]), queries(2), deep=True)
    assert layers(profile) == BOTH
    assert profile.notes == []
    first = rows(profile.layers_bytes())[0]
    assert (first["start_ns"], first["duration_ns"]) == (monotonic_ns(100), 300_000)
    assert [row["stream"] for row in rows(profile.kernels_bytes())] == [7] * 4


def test_what_warmed_up_is_no_query() -> None:
    warm = [one for number in (-3, -2, -1) for one in query(number)]
    assert layers(read(written([*warm, *query(0), *query(1)]), queries(2))) == BOTH


@pytest.mark.parametrize("cut", [3, 20, 200, 400])
def test_a_profile_that_breaks_off_keeps_the_queries_before(cut: int) -> None:
    content = written([*query(0), *query(1), *query(2)])[:-cut]
    profile = read(content, queries(3))
    assert layers(profile)[:4] == BOTH
    assert any("breaks off" in note for note in profile.notes)


def test_an_empty_profile_has_no_layers_and_says_so() -> None:
    for content in (b"", b"[\n]\n", b"\0" * 100, b"{}"):
        profile = read(content, queries(2))
        assert layers(profile) == []
        assert any(note.startswith("2 of 2 queries have no layers") for note in profile.notes)


def test_layers_stay_in_their_query_and_negative_times_are_left_out() -> None:
    events = query(0)
    events[1:1] = [event("n", 390, -5), event("n", "390", 5), event("n", 1 << 70, 5), event("n", 3, True)]
    events[0]["ts"], events[0]["dur"] = -60, 460  # Begins before the query, but within what ran in it.
    events[-1]["ts"], events[-1]["dur"] = -100, 1000
    profile = read(written(events), queries(1))
    assert layers(profile) == BOTH[:2]
    first = rows(profile.layers_bytes())[0]
    assert (first["start_ns"], first["duration_ns"]) == (monotonic_ns(0), 400_000)
    assert any(note.startswith("4 events") and "impossible" in note for note in profile.notes)


def test_layers_that_cross_are_left_out() -> None:
    events = query(0)
    events.insert(1, event("c", 300, 150))
    profile = read(written(events), queries(1))
    assert layers(profile) == BOTH[:2]
    assert any(note.startswith("1 events cross") for note in profile.notes)


def test_a_clock_that_is_set_spoils_one_query() -> None:
    """Set back by an hour within the second query, whose own relation of the clocks is then wrong."""
    hour_us = 3_600_000_000
    events = [*query(-1), *query(0), *query(1, shift_us=-hour_us), *query(2, shift_us=-hour_us)]
    profile = read(written(events), queries(3, offsets_ns={2: -hour_us * 1000}))
    assert layers(profile) == [*BOTH[:2], (2, 0, "a"), (2, 1, "b")]
    assert any(note.startswith("1 of 3 queries have no layers") for note in profile.notes)
    starts = [row["start_ns"] for row in rows(profile.layers_bytes())]
    assert starts == [monotonic_ns(us) for us in (100, 400, 4100, 4400)]


def test_more_events_than_are_kept_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_events, "MOST_EVENTS", 6)
    profile = read(written([*query(0), *query(1), *query(2)]), queries(3))
    assert layers(profile) == BOTH
    assert any("keeps 6 events" in note for note in profile.notes)
    assert any(note.startswith("1 of 3 queries") for note in profile.notes)


def test_lines_that_are_no_events_are_counted() -> None:
    events: list[Any] = [*query(0), [], 5, "x", None, {"name": 5}, {"name": "a", "args": 3}]
    content = written(events).replace(b"\n]", b',\n{"name": \xff\xfe}\n' + b"[" * 100_000 + b"\n]")
    profile = read(content, queries(1))
    assert layers(profile) == BOTH[:2]
    assert any(note.startswith("8 lines") for note in profile.notes)


@pytest.mark.parametrize(
    "args",
    [
        {"op_name": 5, "provider": None, "input_type_shape": "none", "output_type_shape": {"float": [1]}},
        {"op_name": "Conv", "input_type_shape": [{"float": [1, -2]}], "output_type_shape": [[1, 2]]},
        {"op_name": "Conv", "output_type_shape": [{}], "output_size": "-5", "parameter_size": "\u0665"},
        {"op_name": "Conv", "output_type_shape": [{"float": [1] * 5000}], "output_size": 10**30},
        {"op_name": "Conv", "output_type_shape": [{"float": [1.5, True, "2"]}]},
    ],
)
def test_arguments_that_are_not_what_they_should_be_are_unknown(args: dict[str, Any]) -> None:
    events = query(0)
    events[0]["args"] = args
    found = rows(read(written(events), queries(1)).layers_bytes())
    assert [row["name"] for row in found] == ["a", "b"]
    assert (found[0]["shape_out"], found[0]["alloc_bytes"], found[0]["flops"]) == ("", -1, -1)


def test_kernels_of_a_gpu_go_to_the_layer_that_started_them() -> None:
    """Made up after the sources of ONNX Runtime: a kernel is written behind its node, with the node's type."""
    grid = {
        f"{of}_{axis}": str(n)
        for n, (of, axis) in enumerate((o, a) for o in ("grid", "block") for a in "xyz")
    }
    first, second, run = query(0)

    def kernel(name: str, start_us: int, op_name: str) -> dict[str, Any]:
        made = event(name, start_us, 20, op_name=op_name, stream="13", **grid)
        return {**made, "cat": "Kernel", "name": name, "pid": -1, "tid": -1}

    events = [
        run,
        first,
        kernel("convolve<float>", 420, "Conv"),
        second,
        kernel("Memcpy DtoH", 500, "Relu"),
        kernel("stray", 600, ""),
    ]
    found = rows(read(written(events), queries(1), deep=True).kernels_bytes())
    assert [(row["name"], row["kind"], row["layer_index"]) for row in found] == [
        ("convolve<float>", "kernel", 0),
        ("Memcpy DtoH", "copy", 1),
        ("stray", "kernel", -1),
    ]
    assert {(row["device"], row["stream"], row["grid"], row["block"]) for row in found} == {
        ("cuda", 13, "0x1x2", "3x4x5")
    }
    assert found[0]["start_ns"] == monotonic_ns(420)


TIMES = st.integers(-5000, 9000) | st.integers() | st.floats() | st.none() | st.text(max_size=3)
EVENTS = st.fixed_dictionaries(
    {"cat": st.sampled_from(["Session", "Node", "Kernel", "x"]), "ts": TIMES, "dur": TIMES},
    optional={
        "name": st.sampled_from(["a_kernel_time", "b_kernel_time", "model_run"]) | st.text(max_size=4),
        "args": st.dictionaries(
            st.sampled_from(["op_name", "input_type_shape", "output_type_shape", "output_size", "stream"]),
            st.recursive(
                st.none() | st.integers() | st.text(max_size=4) | st.just("Conv"),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("float"), inner),
                max_leaves=6,
            ),
        ),
        "tid": st.integers() | st.text(max_size=2),
    },
)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=12), st.binary(max_size=60))
def test_rows_lie_in_their_query_whatever_is_in_the_file(events: list[Any], rest: bytes) -> None:
    content = written([*query(0), *events, *query(2)]) + rest
    profile = read(content, runs := queries(3), deep=True)
    places = {}
    for row in rows(profile.layers_bytes()):
        run = runs[row["run"]]
        assert run.start_ns <= row["start_ns"]
        assert row["duration_ns"] >= 0
        assert row["start_ns"] + row["duration_ns"] <= run.end_ns
        before = places.get((row["run"], row["index"] - 1))
        assert (before is None) == (row["index"] == 0)
        if before is not None:
            assert before["start_ns"] + before["duration_ns"] <= row["start_ns"]
        places[row["run"], row["index"]] = row
    for row in rows(profile.kernels_bytes()):
        assert row["duration_ns"] >= 0
        assert row["layer_index"] == -1 or (row["run"], row["layer_index"]) in places


def graph_of(content: bytes) -> Graph:
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        Path(file.name).write_bytes(content)
        return read_graph(file.name)


def test_a_graph_is_read_as_the_onnx_package_reads_it() -> None:
    import onnx

    graph, expected = read_graph(str(DIGITS)), onnx.load(str(DIGITS)).graph
    assert [(n.name, n.op_type, list(n.inputs), list(n.outputs)) for n in graph.nodes] == [
        (n.name, n.op_type, list(n.input), list(n.output)) for n in expected.node
    ]
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in expected.initializer}
    assert {name: (one.shape, one.size_bytes) for name, one in graph.constants.items()} == {
        name: (array.shape, array.nbytes) for name, array in arrays.items()
    }


def test_constants_within_nodes_count_too(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    value = numpy_helper.from_array(np.zeros((2, 3), np.int64))
    nodes = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, [2, 3]) for name in "xy"]
    save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:])), str(tmp_path / "c.onnx"))
    (constant,) = read_graph(str(tmp_path / "c.onnx")).constants.values()
    assert (constant.shape, constant.size_bytes) == ((2, 3), 48)


@pytest.mark.parametrize(
    "content", [b"", b"\x3a", b"\x3a\x05ab", b"\x08", b"\x07", b"no graph at all", b"\x08" * 99]
)
def test_what_is_no_graph_is_refused_in_words(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        graph_of(content)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1500), st.binary(max_size=8), st.integers(0, 1500))
def test_a_spoilt_graph_is_read_or_refused(place: int, spoilt: bytes, end: int) -> None:
    content = DIGITS.read_bytes()
    content = content[:place] + spoilt + content[place + len(spoilt) :]
    try:
        graph = graph_of(content[: len(content) - end])
    except ValueError:
        return
    profile = read(written(query(0)), queries(1), graph=graph)
    assert layers(profile) == BOTH[:2]
