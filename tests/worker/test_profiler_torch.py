"""PyTorch's profiler: layers and operators of real models, and what is made of profiles that are unsound."""

from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT

from mlbundle.wire import columns
from mlbundle.worker.profilers import torch_events
from mlbundle.worker.profilers.base import Profile, Run, Runs
from mlbundle.worker.profilers.torch_ import TorchProfiler
from mlbundle.worker.profilers.torch_events import Op, Placer, Working, nest, read_events
from mlbundle.worker.profilers.torch_names import Origin, match, whole_path
from mlbundle.worker.profilers.torch_trace import (
    MOST_BYTES,
    Node,
    TensorFacts,
    UnreadableTrace,
    flops,
    read_trace,
)

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def found(torch_python, tmp_path_factory) -> dict[str, Any]:
    """What was seen of each model."""
    done = subprocess.run(
        [torch_python, "-s", HERE / "torch_profiles.py", tmp_path_factory.mktemp("profiles"), ROOT],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def layers(seen: dict[str, Any], run: int = 0) -> list[dict[str, Any]]:
    return [layer for layer in seen["layers"] if layer["run"] == run]


def by_name(seen: dict[str, Any], run: int = 0) -> dict[str, dict[str, Any]]:
    return {layer["original_name"]: layer for layer in layers(seen, run)}


MODELS = [
    "torchscript", "program", "code", "framework", "two shapes", "resnet traced", "resnet exported", "parts", "writes",
    "loop", "own predictor", "lists",
]  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_layers_lie_within_their_query_one_after_the_other(found, model) -> None:
    seen = found[model]
    for number, (start_ns, end_ns) in enumerate(seen["runs"]):
        mine = layers(seen, number)
        assert [layer["index"] for layer in mine] == list(range(len(mine)))
        assert mine
        before = start_ns
        for layer in mine:
            assert layer["start_ns"] >= before
            assert layer["duration_ns"] >= 0
            before = layer["start_ns"] + layer["duration_ns"]
        assert before <= end_ns


@pytest.mark.parametrize("model", [model for model in MODELS if model != "framework"])
def test_operators_lie_within_their_layer_and_no_time_counts_twice(found, model) -> None:
    seen = found[model]
    assert {kernel["kind"] for kernel in seen["kernels"]} == {"operator"}
    for number in range(len(seen["runs"])):
        for layer in layers(seen, number):
            mine = [k for k in seen["kernels"] if k["run"] == number and k["layer_index"] == layer["index"]]
            assert mine
            before = layer["start_ns"]
            for kernel in mine:
                assert kernel["start_ns"] >= before
                before = kernel["start_ns"] + kernel["duration_ns"]
            assert before <= layer["start_ns"] + layer["duration_ns"]


@pytest.mark.parametrize("model", MODELS)
def test_nothing_is_left_in_the_scratch_folder(found, model) -> None:
    assert found[model]["left"] == []


DIGITS = [
    ("0", "Conv2d", "1x1x8x8, 16x1x3x3, 16", "1x16x8x8", 18_432),
    ("1", "ReLU", "1x16x8x8", "1x16x8x8", -1),
    ("2", "Conv2d", "1x16x8x8, 32x16x3x3, 32", "1x32x8x8", 589_824),
    ("3", "ReLU", "1x32x8x8", "1x32x8x8", -1),
    ("4", "MaxPool2d", "1x32x8x8", "1x32x4x4", -1),
    ("5", "Flatten", "1x32x4x4", "1x512", -1),
    ("6", "Linear", "1x512, 64x512, 64", "1x64", 65_536),
    ("7", "ReLU", "1x64", "1x64", -1),
    ("8", "Linear", "1x64, 10x64, 10", "1x10", 1_280),
]


@pytest.mark.parametrize("form", ["torchscript", "program", "code", "framework"])
def test_all_forms_of_a_model_have_the_layers_of_its_author(found, form) -> None:
    wanted = ("original_name", "type", "shape_in", "shape_out", "flops")
    for number in range(3):
        assert [tuple(layer[key] for key in wanted) for layer in layers(found[form], number)] == DIGITS
    assert found[form]["notes"] == []
    assert sum(layer["param_bytes"] for layer in layers(found[form])) == 4 * 38_282


def test_the_name_is_that_of_the_form(found) -> None:
    assert [layer["name"] for layer in layers(found["torchscript"])][:3] == ["0", "1", "2"]
    assert [layer["name"] for layer in layers(found["program"])][:3] == ["conv2d", "relu", "conv2d_1"]


def test_memory_is_what_a_layer_allocates(found) -> None:
    allocated = by_name(found["code"])
    assert allocated["1"]["alloc_bytes"] == 4 * 16 * 8 * 8
    assert allocated["0"]["alloc_bytes"] >= 4 * 16 * 8 * 8
    assert allocated["5"]["alloc_bytes"] == 0


def test_operators_below_a_layer_are_those_that_work(found) -> None:
    seen = found["torchscript"]
    names = {
        layer["original_name"]: [
            k["name"] for k in seen["kernels"] if (k["run"], k["layer_index"]) == (0, layer["index"])
        ]
        for layer in layers(seen)
    }
    assert "aten::addmm" in names["6"]
    assert names["1"] == ["aten::relu"]
    assert names["4"] == ["aten::max_pool2d_with_indices"]
    assert not {"aten::linear", "aten::conv2d", "aten::max_pool2d"} & {
        one for below in names.values() for one in below
    }


def test_only_layers_are_seen_at_the_level_of_the_framework(found) -> None:
    assert found["framework"]["kernels"] == []


def test_each_shape_is_learnt_by_itself(found) -> None:
    shapes = [layers(found["two shapes"], number)[0]["shape_out"] for number in range(3)]
    assert shapes == ["1x16x8x8", "2x16x8x8", "1x16x8x8"]
    assert [layers(found["two shapes"], number)[0]["flops"] for number in range(2)] == [18_432, 36_864]


@pytest.mark.parametrize("form", ["resnet traced", "resnet exported"])
def test_resnet_has_53_convolutions_and_a_dense_layer(found, form) -> None:
    seen = layers(found[form])
    types = [layer["type"] for layer in seen]
    counts = {kind: types.count(kind) for kind in set(types)}
    assert counts == {
        "Conv2d": 53, "BatchNorm2d": 53, "ReLU": 49, "add": 16, "Linear": 1, "MaxPool2d": 1,
        "AdaptiveAvgPool2d": 1, "flatten": 1,
    }  # fmt: skip
    named = by_name(found[form])
    assert len(named) == len(seen)
    assert named["layer3.5.conv2"]["shape_in"] == "1x32x2x2, 32x32x3x3"
    assert named["layer4.0.downsample.0"]["flops"] == 2 * 256 * 1 * 1 * 128
    assert named["layer1.2.add"]["type"] == "add"
    assert found[form]["notes"] == []


def test_both_forms_of_resnet_agree(found) -> None:
    keys = ("original_name", "type", "shape_in", "shape_out", "flops", "param_bytes")
    traced, exported = (
        [[layer[key] for key in keys] for layer in layers(found[form])]
        for form in ("resnet traced", "resnet exported")
    )
    assert traced == exported


def test_layers_of_pytorch_are_whole_and_operators_of_other_modules_are_layers(found) -> None:
    named = by_name(found["parts"])
    assert named["rows"]["type"] == "LSTM"
    assert named["attention"]["type"] == "MultiheadAttention"
    assert named["scale.mul"]["type"] == "mul"
    assert named["scale.relu"]["shape_out"] == "1x4x9x9"
    assert "scale" not in named
    assert [layer["original_name"] for layer in layers(found["parts"])].count("shared") == 2
    assert {"add", "add_1", "cat", "matmul"} <= set(named)


def test_names_of_any_script_are_kept(found) -> None:
    assert by_name(found["parts"])["blöcke.große 层"]["type"] == "Linear"


def test_operations_are_those_of_the_formulas(found) -> None:
    named = by_name(found["parts"])
    assert named["up"]["flops"] == 2 * (2 * 4 * 4) * 4 * 9
    assert named["grouped"]["flops"] == 2 * (8 * 7 * 7) * 2 * 9
    assert named["matmul"]["flops"] == 2 * 49 * 8 * 8
    products = 2 * 49 * 6 * (18 + 6)
    attention = 2 * 2 * 2 * 49 * 49 * 3
    assert named["attention"]["flops"] == products + attention
    assert {named[name]["flops_source"] for name in ("up", "attention")} == {"computed"}
    assert (named["cat"]["flops"], named["cat"]["flops_source"]) == (-1, "")


def test_weights_come_after_activations_and_count_as_the_layers(found) -> None:
    named = by_name(found["parts"])
    assert named["grouped"]["shape_in"] == "1x4x9x9, 8x2x3x3"
    assert named["grouped"]["param_bytes"] == 4 * 8 * 2 * 9
    assert named["cat"]["param_bytes"] == 0


def test_a_branch_that_depends_on_the_data_is_learnt_from_such_data(found) -> None:
    """The second batch does not take the way that the first one takes."""
    assert "tanh" in by_name(found["parts"], 0)
    assert "tanh" not in by_name(found["parts"], 1)
    assert all(layer["original_name"] for layer in found["parts"]["layers"])
    assert found["parts"]["notes"] == []


def test_copies_of_inputs_and_outputs_as_arrays_are_no_layers(found) -> None:
    assert [layer["type"] for layer in layers(found["writes"])] == ["mul", "sum"]


def test_operators_in_a_loop_of_torchscript_have_names(found) -> None:
    names = [layer["original_name"] for layer in layers(found["loop"])]
    assert names.count("step") == 3
    assert names[-3:] == ["unsqueeze", "end", "flatten"]


def test_modules_in_lists_have_their_whole_path_in_torchscript(found) -> None:
    assert [layer["original_name"] for layer in layers(found["lists"])] == [
        "encoders.0", "encoders.1.linear", "encoders.1.tanh", "decoders.0",
    ]  # fmt: skip


def test_a_predictor_without_a_module_gives_operators(found) -> None:
    seen = layers(found["own predictor"])
    assert [layer["name"] for layer in seen][:3] == ["aten::ones", "aten::matmul", "aten::relu"]
    assert {layer["original_name"] for layer in seen} == {""}
    assert seen[1]["flops"] == 2 * 2 * 4 * 4


# Profiles that are made up.


def event(name: str, start_ns: int, duration_ns: int, **others: Any) -> Any:
    """An event as Kineto has it."""
    values = {
        "name": name,
        "start_ns": start_ns,
        "duration_ns": duration_ns,
        "activity_type": "cpu_op",
        "scope": 0,
        "device_resource_id": 7,
        "device_index": 0,
        "correlation_id": 0,
        "linked_correlation_id": 0,
        "nbytes": 0,
        "metadata_json": "",
        **others,
    }
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})


def rows(content: bytes, texts: tuple[str, ...]) -> list[dict[str, Any]]:
    table = np.load(io.BytesIO(content), allow_pickle=False)
    strings, names = table[columns.STRINGS], [name for name in table.files if name != columns.STRINGS]
    return [
        {
            name: str(strings[value]) if name in texts else int(value)
            for name, value in zip(names, row, strict=True)
        }
        for row in zip(*(table[name] for name in names), strict=True)
    ]


def profiled(
    events: list[Any], runs: list[Run], level: str = "system", *, gpu: bool = False
) -> dict[str, Any]:
    """Read a made-up profile; there is no model to learn from."""

    class Made(TorchProfiler):
        def _events(self) -> Any:
            return events

        def _learner(self) -> Any:
            return None

        def _own_kernels(self) -> list[str]:
            return ["aten::relu", "aten::addmm.out"]

    profiler = Made(level, {})
    profiler._called, profiler._thread, profiler._on_gpu = [], 7, gpu
    profiler._torch = SimpleNamespace(__version__="2.13.0")
    profile = Profile()
    profiler.read(Runs(runs), profile)
    return {
        "layers": rows(profile.layers_bytes(), columns.LAYER_TEXTS),
        "kernels": rows(profile.kernels_bytes(), columns.KERNEL_TEXTS),
        "notes": profile.notes,
    }


OFFSET_NS = 1_000_000_000_000
ONE_RUN = [Run(0, 100_000, 200_000, OFFSET_NS)]


def at(ns: int) -> int:
    """A monotonic time as the profiler's clock has it."""
    return ns + OFFSET_NS


def test_times_become_those_of_the_monotonic_clock_and_stay_in_the_query() -> None:
    seen = profiled([event("aten::relu", at(99_000), 5_000), event("aten::t", at(199_000), 9_000)], ONE_RUN)
    assert [(layer["start_ns"], layer["duration_ns"]) for layer in seen["layers"]] == [
        (100_000, 4_000),
        (199_000, 1_000),
    ]
    assert seen["notes"] == []


def test_operators_between_queries_are_left_out_and_said() -> None:
    seen = profiled([event("aten::relu", at(150_000), 10), event("aten::relu", at(300_000), 10)], ONE_RUN)
    assert len(seen["layers"]) == 1
    assert "1 operators ran outside" in seen["notes"][0]


def test_a_step_of_the_clock_spoils_one_query() -> None:
    runs = [Run(0, 100_000, 200_000, OFFSET_NS), Run(1, 300_000, 400_000, OFFSET_NS - 10**9)]
    seen = profiled([event("aten::relu", at(150_000), 10), event("aten::relu", at(350_000), 10)], runs)
    assert [layer["run"] for layer in seen["layers"]] == [0]
    assert any("was the clock set" in note for note in seen["notes"])


def test_events_that_end_before_they_begin_are_left_out() -> None:
    seen = profiled([event("aten::relu", at(150_000), -5), event("aten::t", at(160_000), 5)], ONE_RUN)
    assert [layer["name"] for layer in seen["layers"]] == ["aten::t"]
    assert "end before they begin" in seen["notes"][0]


def test_overlapping_operators_of_a_thread_are_cut() -> None:
    seen = profiled(
        [event("aten::linear", at(150_000), 100), event("aten::addmm", at(150_050), 100)], ONE_RUN
    )
    assert [(k["name"], k["duration_ns"]) for k in seen["kernels"]] == [("aten::addmm", 50)]
    assert any("overlap" in note for note in seen["notes"])


def test_an_empty_profile_has_no_rows() -> None:
    seen = profiled([], ONE_RUN)
    assert (seen["layers"], seen["kernels"]) == ([], [])
    assert any("nothing was seen" in note for note in seen["notes"])


def test_events_beyond_the_limit_are_not_read(monkeypatch) -> None:
    monkeypatch.setattr(torch_events, "MOST_EVENTS", 3)
    seen = profiled([event("aten::relu", at(110_000 + 10 * i), 5) for i in range(9)], ONE_RUN)
    assert len(seen["layers"]) == 3
    assert "more than 3 events" in seen["notes"][0]


def test_a_huge_name_is_cut_and_one_of_any_script_kept() -> None:
    seen = profiled([event("x" * 10_000_000, at(150_000), 5), event("мой::слой\n", at(160_000), 5)], ONE_RUN)
    assert [len(layer["name"]) for layer in seen["layers"]] == [1000, 10]
    assert seen["layers"][1]["name"] == "мой::слой\ufffd"


def test_marks_and_operators_of_other_threads_are_no_layers() -> None:
    events = [
        event("forward", at(150_000), 100, scope=2),
        event("aten::relu", at(150_010), 10),
        event("aten::t", at(150_020), 10, device_resource_id=8),
    ]
    seen = profiled(events, ONE_RUN)
    assert [layer["name"] for layer in seen["layers"]] == ["aten::relu"]
    assert any("other threads" in note for note in seen["notes"])


def test_allocations_count_for_the_operator_that_made_them() -> None:
    memory = {"activity_type": "cpu_instant_event"}
    events = [
        event("aten::linear", 100, 50),
        event("aten::addmm", 110, 30),
        event("[memory]", 120, 0, nbytes=64, **memory),
        event("[memory]", 130, 0, nbytes=-64, **memory),
        event("[memory]", 170, 0, nbytes=32, **memory),
    ]
    (root,) = read_events(events, pytest.fail).roots[7]
    assert root.allocated == 64


GPU = {"device_resource_id": 20, "device_index": 1}
LAUNCH = {"activity_type": "cuda_runtime"}


def gpu_events() -> list[Any]:
    told = '"stream": 20, "correlation": 91, "grid": [16, 1, 1], "block": [128, 2, 1]'
    copied = '"bytes": 4096, "memory bandwidth (GB/s)": 12.5'
    return [
        event("aten::linear", at(110_000), 5_000, correlation_id=1),
        event("aten::addmm", at(111_000), 3_000, correlation_id=2),
        event("cudaLaunchKernel", at(112_000), 900, correlation_id=91, linked_correlation_id=2, **LAUNCH),
        event("aten::relu", at(120_000), 5_000, correlation_id=3),
        event("cudaLaunchKernel", at(121_000), 900, correlation_id=92, **LAUNCH),
        event("sgemm", at(130_000), 40_000, activity_type="kernel", correlation_id=91, linked_correlation_id=2,
              metadata_json=told, **GPU),
        event("relu_kernel", at(170_000), 9_000, activity_type="kernel", correlation_id=92, metadata_json="[[[", **GPU),
        event("Memcpy DtoH", at(180_000), 1_000, activity_type="gpu_memcpy", correlation_id=93, linked_correlation_id=55,
              metadata_json=copied, **GPU),
        event("late", at(900_000), 1_000, activity_type="kernel", correlation_id=94, **GPU),
    ]  # fmt: skip


def test_kernels_belong_to_the_layer_that_launched_them() -> None:
    seen = profiled(gpu_events(), ONE_RUN, gpu=True)
    assert [layer["name"] for layer in seen["layers"]] == ["aten::linear", "aten::relu"]
    told = [
        (k["name"], k["kind"], k["layer_index"], k["start_ns"], k["duration_ns"]) for k in seen["kernels"]
    ]
    assert told == [
        ("sgemm", "kernel", 0, 130_000, 40_000),
        ("relu_kernel", "kernel", 1, 170_000, 9_000),
        ("Memcpy DtoH", "copy", -1, 180_000, 1_000),
    ]
    gemm, _, copy = seen["kernels"]
    assert (gemm["device"], gemm["stream"], gemm["correlation"]) == ("cuda:1", 20, 91)
    assert (gemm["grid"], gemm["block"], gemm["bytes"]) == ("16x1x1", "128x2x1", -1)
    assert (copy["bytes"], copy["grid"]) == (4096, "")
    assert "2 kernels and copies are of no known layer" in seen["notes"]
    assert "1 kernels and copies ran outside of the queries; they were left out" in seen["notes"]


def test_a_gpu_that_shows_no_kernels_is_said() -> None:
    seen = profiled(gpu_events()[:2], ONE_RUN, gpu=True)
    assert any("CUPTI" in note for note in seen["notes"])


def test_launches_are_not_waited_for_at_the_level_of_the_framework() -> None:
    seen = profiled(gpu_events()[:2], ONE_RUN, "framework", gpu=True)
    assert any("does not wait" in note for note in seen["notes"])


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 30), st.sampled_from(["aten::relu", "aten::linear"])),
        max_size=40,
    )
)
def test_whatever_overlaps_the_rows_are_sound(spans) -> None:
    events = [event(name, at(150_000 + start), length) for start, length, name in spans]
    seen = profiled(events, ONE_RUN)
    for table in (seen["layers"], seen["kernels"]):
        before = 0
        for row in table:
            assert row["duration_ns"] >= 0
            assert row["start_ns"] >= before
            before = row["start_ns"] + row["duration_ns"]
    inside = {layer["index"]: layer for layer in seen["layers"]}
    for kernel in seen["kernels"]:
        layer = inside[kernel["layer_index"]]
        assert layer["start_ns"] <= kernel["start_ns"]
        assert kernel["start_ns"] + kernel["duration_ns"] <= layer["start_ns"] + layer["duration_ns"]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=40))
def test_no_operator_is_lost_when_they_are_nested(spans) -> None:
    roots, _ = nest([Op("x", start, start + length) for start, length in spans])
    assert sum(1 for root in roots for _ in root.walk()) == len(spans)


def test_a_time_close_to_a_query_is_of_the_nearest_one() -> None:
    placer = Placer(Runs([Run(0, 10_000, 20_000, 0), Run(1, 24_000, 30_000, 0)]))
    numbers = [
        run.number if run else None for run in map(placer.run_at, (6_000, 21_000, 23_500, 34_000, 40_000, 0))
    ]
    assert numbers == [0, 0, 1, 1, None, None]


def test_an_operator_that_only_calls_helpers_is_shown_as_a_whole() -> None:
    roots, _ = nest([Op("aten::conv", 0, 100), Op("aten::mkldnn_conv", 5, 95), Op("aten::empty", 10, 20)])
    assert [op.name for op in Working([]).below(roots[0])] == ["aten::mkldnn_conv"]
    assert [op.name for op in Working(["aten::conv.out"]).below(roots[0])] == ["aten::conv"]


# Names.


@pytest.mark.parametrize(
    ("ran", "known", "places"),
    [
        ("abc", "abc", [0, 1, 2]),
        ("abxc", "abc", [0, 1, None, 2]),
        ("ac", "abc", [0, 2]),
        ("", "abc", []),
        ("xyz", "abc", [None, None, None]),
    ],
)
def test_what_ran_is_matched_in_order(ran, known, places) -> None:
    assert match(list(ran), list(known)) == places


def test_sequences_too_long_to_compare_are_not_compared() -> None:
    long = [str(number) for number in range(6000)]
    assert match(long, long)[-1] == 5999
    assert set(match([*long, "x"], long)) == {None}


@pytest.mark.parametrize(
    ("short", "owners", "whole"),
    [
        ("head", set(), "head"),
        ("body.0.norm", set(), "body.layers.0.norm"),
        ("0", set(), None),
        ("0", {"tail.0.norm"}, "tail.0"),
        ("0", {"tail.0.norm", "head"}, None),
        ("nowhere", {"head"}, None),
    ],
)
def test_paths_without_lists_are_made_whole_where_only_one_fits(short, owners, whole) -> None:
    modules = {
        "",
        "head",
        "body",
        "body.layers",
        "body.layers.0",
        "body.layers.0.norm",
        "tail.0",
        "tail.0.norm",
    }
    origin = whole_path(Origin(short, "LayerNorm"), modules, owners)
    assert (origin.path if origin else None) == whole


# Execution traces.


def trace_node(number: int, parent: int, name: str = "aten::mm", scope: int = 0) -> dict[str, Any]:
    tensor = [1, 2, 0, 6, 4, "cpu"]
    side = {"values": [tensor, [tensor, tensor], "<None>"], "shapes": [[2, 3], [[2, 3], [2, 3]], []],
            "types": ["Tensor(float)", "GenericList[Tensor(float),Tensor(float)]", "None"]}  # fmt: skip
    return {"id": number, "ctrl_deps": parent, "name": name, "inputs": side, "outputs": side,
            "attrs": [{"name": "scope", "value": scope}]}  # fmt: skip


def test_an_execution_trace_is_read_as_a_tree(tmp_path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"nodes": [trace_node(3, 2), trace_node(2, 1, "mark", 7)]}))
    (mark,) = read_trace(str(path)).find("mark")
    (node,) = mark.children
    assert node.inputs == [TensorFacts(2, 0, 24, (2, 3))] * 3


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{}", b'{"nodes": 1}', b'{"nodes": [{}]}', b'{"nodes": [{"id": {}}]}', b"\xff\x00", b"[" * 100_000,
        json.dumps({"nodes": [trace_node(1, 0)]}).encode()[:-20],
        json.dumps({"nodes": [{**trace_node(1, 0), "inputs": {"values": [[1]], "shapes": [3], "types": [5]}}]}).encode(),
    ],
)  # fmt: skip
def test_what_is_no_execution_trace_is_refused(tmp_path, content) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableTrace):
        read_trace(str(path))


def test_an_execution_trace_of_any_size_is_not_read(tmp_path) -> None:
    path = tmp_path / "trace.json"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(UnreadableTrace, match="more than"):
        read_trace(str(path))


def operator(
    name: str, inputs: list[tuple[int, ...]], out: tuple[int, ...], *children: Node, **others: Any
) -> Node:
    facts = [TensorFacts(0, 0, 0, shape) for shape in inputs]
    return Node(
        name,
        operator=True,
        inputs=facts,
        outputs=[TensorFacts(0, 0, 0, out)],
        children=list(children),
        **others,
    )


@pytest.mark.parametrize(
    ("node", "count"),
    [
        (operator("aten::conv2d", [(1, 3, 224, 224), (64, 3, 7, 7)], (1, 64, 112, 112)), 236_027_904),
        (
            operator(
                "aten::_convolution", [(1, 2, 4, 4), (2, 4, 3, 3)], (1, 4, 9, 9), values=[0] * 6 + [True]
            ),
            2_304,
        ),
        (operator("aten::linear", [(5, 8), (3, 8), (3,)], (5, 3)), 240),
        (operator("aten::addmm", [(3,), (5, 8), (8, 3)], (5, 3)), 240),
        (
            operator("aten::einsum", [(5, 8), (8, 3)], (5, 3), operator("aten::bmm", [(1, 5, 8)], (1, 5, 3))),
            240,
        ),
        (operator("aten::conv2d", [(3, 8, 8)], (4, 8, 8)), -1),
        (operator("aten::mm", [], (5, 3)), -1),
        (operator("aten::relu", [(5,)], (5,)), -1),
        (operator("other::conv2d", [(1, 3, 8, 8), (4, 3, 1, 1)], (1, 4, 8, 8)), -1),
    ],
)
def test_operations_of_an_operator(node, count) -> None:
    assert flops(node) == count
