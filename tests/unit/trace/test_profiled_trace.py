"""Layers and kernels of profiled passes in the trace, asked of Perfetto by SQL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from span_samples import recorded
from table_samples import kernels_of, layers_of

from mlbundle.trace.profiled import ProfiledPass
from mlbundle.trace.samples import SampleColumns
from mlbundle.trace.timeline import write_timeline
from mlbundle.worker.spans import SpanRecorder

T0 = 70_000_000_000
QUERY_NS, LAYERS_EACH = 1000, 3


def profiled(
    folder: Path, level: str, queries: int, kernels: list[dict[str, int | str]], at: int
) -> ProfiledPass:
    recorder = SpanRecorder(True)
    starts = [at + 2 * QUERY_NS * number for number in range(queries)]
    recorder.add_queries(starts, [start + QUERY_NS for start in starts], 0)
    layers = [
        {
            "run": run, "index": index, "name": f"conv{index}_nchwc", "original_name": f"features.{index}",
            "type": "Conv", "provider": "CPU", "shape_in": "1x3x8x8", "shape_out": "1x4x8x8",
            "start_ns": start + 100 + 300 * index, "duration_ns": 250, "param_bytes": 40, "flops": 7,
            "flops_source": "computed",
        }
        for run, start in enumerate(starts)
        for index in range(LAYERS_EACH)
    ]  # fmt: skip
    return ProfiledPass(
        level,
        recorded(recorder, folder / f"{level}-spans.npz"),
        layers_of(folder / f"{level}-layers.npz", *layers),
        kernels_of(folder / f"{level}-kernels.npz", *kernels),
    )


def moved(passed: ProfiledPass, layer: int, start_ns: int) -> ProfiledPass:
    start = passed.layers["start_ns"].copy()
    start[layer] = start_ns
    layers = replace(passed.layers, columns={**passed.layers.columns, "start_ns": start})
    return replace(passed, layers=layers)


def kernel(run: int, layer: int, start_ns: int, **more: int | str) -> dict[str, int | str]:
    return {
        "run": run, "layer_index": layer, "name": "gemm", "kind": "kernel", "device": "GPU 0", "stream": 7,
        "start_ns": start_ns, "duration_ns": 40, **more,
    }  # fmt: skip


def write(path: Path, *passes: ProfiledPass, samples: SampleColumns | None = None):
    return write_timeline(
        path,
        host_phases=[("plan", T0 - 500, T0)],
        spans=[],
        windows=[],
        attributes={"bundle": "digits:1.0"},
        clocks_start={"monotonic": T0, "realtime": T0 + 1},
        clocks_end={"monotonic": T0 + 100_000, "realtime": T0 + 100_001},
        profiles=passes,
        samples=samples,
    )


def test_layers_lie_in_predict_and_say_what_is_known_of_them(tmp_path: Path, judge) -> None:
    write(tmp_path / "t.gz", profiled(tmp_path, "framework", 4, [], T0))
    trace = judge(tmp_path / "t.gz")
    slices = trace.slices()
    by_id = {s.id: s for s in slices}
    layers = [s for s in slices if s.category == "framework"]
    assert len(layers) == 4 * LAYERS_EACH
    assert sum(s.dur for s in layers) == 4 * LAYERS_EACH * 250
    for layer in layers:
        predict = by_id[layer.parent]
        assert (predict.name, by_id[predict.parent].name) == ("predict", "query")
        assert predict.args["query"] == layer.args["query"]
    assert layers[1].name == "features.1"
    assert layers[1].args == {
        "level": "framework", "name": "conv1_nchwc", "query": 0, "index": 1, "type": "Conv", "provider": "CPU", "shape_in": "1x3x8x8", "shape_out": "1x4x8x8",
        "original_name": "features.1", "param_bytes": 40, "flops": 7, "flops_source": "computed",
    }  # fmt: skip
    links = {(by_id[a].name, by_id[a].args["query"], b) for a, b in trace.flows()}
    assert links == {("predict", layer.args["query"], layer.id) for layer in layers}
    assert trace.losses() == {}


def test_kernels_of_a_device_lie_on_its_streams_and_are_linked_to_their_layers(tmp_path: Path, judge) -> None:
    kernels = [
        kernel(0, 0, T0 + 150),
        kernel(0, 0, T0 + 160, stream=8, name="copy", kind="copy", bytes=4096),
        kernel(0, 2, T0 + 5_000, grid="1,2,3", block="32,1,1", correlation=99),
        kernel(1, -1, T0 + 6_000, name="nobody's"),
        kernel(1, 77, T0 + 6_100, name="of a layer that is not there"),
    ]
    summary = write(tmp_path / "t.gz", profiled(tmp_path, "system", 2, kernels, T0))
    trace = judge(tmp_path / "t.gz")
    slices = trace.slices()
    by_id = {s.id: s for s in slices}
    found = [s for s in slices if s.category == "system"]
    assert [(s.track, s.name, s.ts - T0, s.dur) for s in found] == [
        ("GPU 0 stream 7", "gemm", 150, 40),
        ("GPU 0 stream 8", "copy", 160, 40),
        ("GPU 0 stream 7", "gemm", 5_000, 40),
        ("GPU 0 stream 7", "nobody's", 6_000, 40),
        ("GPU 0 stream 7", "of a layer that is not there", 6_100, 40),
    ]
    assert found[2].args | {"grid": "1,2,3", "block": "32,1,1", "correlation": 99} == found[2].args
    to_kernels = sorted(
        (by_id[a].args["query"], by_id[a].args["index"], by_id[b].name)
        for a, b in trace.flows()
        if by_id[b].category == "system"
    )
    assert to_kernels == [(0, 0, "copy"), (0, 0, "gemm"), (0, 2, "gemm")]
    assert summary.flows == 2 * LAYERS_EACH + 3
    assert trace.losses() == {}


def test_operators_of_the_cpu_lie_inside_their_layer_and_others_on_tracks_of_their_threads(
    tmp_path: Path, judge
) -> None:
    operator = {"kind": "operator", "device": "cpu"}
    kernels = [
        kernel(0, 0, T0 + 100, duration_ns=250, stream=11, **operator),
        kernel(0, 0, T0 + 120, duration_ns=100, stream=12, name="inner", **operator),
        kernel(0, -1, T0 + 130, stream=12, name="stray", **operator),
        kernel(0, 1, T0 + 390, stream=12, duration_ns=500, name="longer than its layer", **operator),
    ]
    write(tmp_path / "t.gz", profiled(tmp_path, "system", 1, kernels, T0))
    trace = judge(tmp_path / "t.gz")
    by_id = {s.id: s for s in trace.slices()}
    found = {s.name: s for s in by_id.values() if s.category == "system"}
    assert by_id[found["gemm"].parent].name == "features.0"
    assert by_id[found["inner"].parent].name == "gemm"
    assert (found["stray"].track, found["stray"].parent) == ("thread 12", None)
    assert found["longer than its layer"].track == "thread 12"
    assert trace.losses() == {}


def test_a_layer_and_a_kernel_that_began_before_what_holds_them_are_linked_all_the_same(
    tmp_path: Path, judge
) -> None:
    # Clocks of devices and whole microseconds make such times.
    passed = profiled(tmp_path, "system", 1, [kernel(0, 0, T0 + 90), kernel(0, 1, T0 - 5)], T0)
    write(tmp_path / "t.gz", moved(passed, 1, T0 - 10))
    trace = judge(tmp_path / "t.gz")
    by_id = {s.id: s for s in trace.slices()}
    links = {frozenset((by_id[a].ts - T0, by_id[b].ts - T0)) for a, b in trace.flows()}
    assert links == {frozenset(pair) for pair in ((0, 100), (0, -10), (0, 700), (100, 90), (-10, -5))}
    assert trace.losses() == {}


def test_layers_that_ran_at_the_same_time_keep_their_operators(tmp_path: Path, judge) -> None:
    operators = [
        kernel(0, layer, T0 + start, duration_ns=250, name=f"op{layer}", kind="operator", device="cpu")
        for layer, start in ((0, 100), (1, 200), (2, 700))
    ]
    write(tmp_path / "t.gz", moved(profiled(tmp_path, "system", 1, operators, T0), 1, T0 + 200))
    trace = judge(tmp_path / "t.gz")
    by_id = {s.id: s for s in trace.slices()}
    found = [s for s in by_id.values() if s.category == "system"]
    assert [(s.name, by_id[s.parent].name, s.dur) for s in found] == [
        (f"op{layer}", f"features.{layer}", 250) for layer in range(3)
    ]
    assert trace.losses() == {}


def test_each_pass_has_a_group_of_its_own(tmp_path: Path, judge) -> None:
    passes = [profiled(tmp_path, "framework", 1, [], T0), profiled(tmp_path, "system", 1, [], T0 + 50_000)]
    write(tmp_path / "t.gz", *passes)
    rows = judge(tmp_path / "t.gz").query(
        "select p.name, count(*) as n from slice s join track t on s.track_id = t.id join track p on t.parent_id = p.id"
        " where s.category = 'framework' group by 1 order by 1"
    )
    assert rows == [{"name": "profile: framework", "n": 3}, {"name": "profile: system", "n": 3}]


def test_what_a_name_does_not_say_the_type_does_and_levels_tell_passes_apart(tmp_path: Path, judge) -> None:
    def of(level: str, at: int) -> ProfiledPass:
        recorder = SpanRecorder(True)
        recorder.add_queries([at], [at + QUERY_NS], 0)
        named = (("2", "", "Conv2d"), ("a", "", ""), ("x", "Partitioned/relu", "Relu"), ("raw", "7", "Add"))
        rows = [
            {"run": 0, "index": place, "name": name, "original_name": original, "type": kind,
             "start_ns": at + 100 * place, "duration_ns": 90}
            for place, (name, original, kind) in enumerate(named)
        ]  # fmt: skip
        spans = recorded(recorder, tmp_path / f"{level}.npz")
        kernels = kernels_of(tmp_path / "k.npz", kernel(0, 0, at + 10))
        return ProfiledPass(level, spans, layers_of(tmp_path / "l.npz", *rows), kernels)

    write(tmp_path / "t.gz", of("framework", T0), of("system", T0 + 5000))
    trace = judge(tmp_path / "t.gz")
    slices = trace.slices()
    for level in ("framework", "system"):
        mine = [s for s in slices if s.args.get("level") == level]
        assert {s.category for s in mine} == {"model", "framework", "system"}
        assert [s.name for s in mine if s.category == "framework"] == [
            "2 (Conv2d)", "a", "Partitioned/relu", "7 (Add)"
        ]  # fmt: skip
    assert {s.args["name"] for s in slices if s.category == "framework"} == {"2", "a", "x", "raw"}
    assert trace.losses() == {}


def test_samples_become_counters_and_what_only_grows_a_rate(tmp_path: Path, judge) -> None:
    names = ("cpu_time_s", "memory_bytes", "gpu0_power_w", "energy_package_0_j", "page_faults_minor")
    rows = [
        (0, 0, 5.0), (1, 0, 1e6), (3, 0, 10.0),
        (0, 1_000_000_000, 5.5), (1, 1_000_000_000, 2e6), (2, 1_000_000_000, 70.5), (3, 2_000_000_000, 40.0),
        (4, 0, 7.0), (4, 2_000_000_000, 11.0),
        (0, 3_000_000_000, 8.5), (0, 3_000_000_000, 8.5), (1, 2_000_000_000, float("nan")),
    ]  # fmt: skip
    counter, t_ns, value = zip(*rows, strict=True)
    samples = SampleColumns(names, np.array(counter), T0 + np.array(t_ns), np.array(value))
    summary = write(tmp_path / "t.gz", samples=samples)
    trace = judge(tmp_path / "t.gz")
    assert {name: [(t - T0, v) for t, v in values] for name, values in trace.counters().items()} == {
        "cpu": [(1_000_000_000, 0.5), (3_000_000_000, 1.5)],
        "memory": [(0, 1e6), (1_000_000_000, 2e6)],
        "gpu0_power": [(1_000_000_000, 70.5)],
        "energy_package_0_power": [(2_000_000_000, 15.0)],
        "page_faults_minor": [(2_000_000_000, 2.0)],
    }
    assert summary.counter_values == 7
    units = trace.query("select name, unit from counter_track where unit is not null order by 1")
    assert {row["name"]: row["unit"] for row in units} == {
        "cpu": "CPUs", "memory": "bytes", "gpu0_power": "W", "energy_package_0_power": "W",
            "page_faults_minor": "/s",
    }  # fmt: skip
    assert trace.losses() == {}
