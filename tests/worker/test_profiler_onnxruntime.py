"""Layers of ONNX Runtime, of real sessions: as many as the graph has, named as its author names them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import time
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import ROOT, command_line

from mlbundle.wire import columns
from mlbundle.worker.predictors.onnx_runtime import OnnxRuntimePredictor
from mlbundle.worker.profilers.base import Profile, Run, Runs, realtime_offset_ns
from mlbundle.worker.profilers.onnx_runtime import OnnxRuntimeProfiler

DIGITS = ROOT / "manifests" / "models" / "digits-cnn" / "model.onnx"
FLOAT = TensorProto.FLOAT
info = helper.make_tensor_value_info


class Profiled:
    """What a profiler made of some queries."""

    def __init__(self, graph: str | Path, feeds: dict[str, Any], folder: Path, **settings: Any) -> None:
        level, queries, warm_up = (
            settings.pop(name, usual) for name, usual in (("level", "system"), ("queries", 4), ("warm_up", 3))
        )
        options = {"scratch": str(folder), "threads": 1, "accelerator": "cpu", **settings}
        self.profiler, predictor = OnnxRuntimeProfiler(level, options), OnnxRuntimePredictor()
        handle = predictor.open({"graph": str(graph)}, {**options, "profile": dict(self.profiler.settings())})
        self.profiler.attach(predictor, handle)
        batch = predictor.prepare(handle, feeds)
        call = self.profiler.caller(predictor.predict, handle)
        for _ in range(warm_up):
            call(batch)
        self.most_runs = self.profiler.most_runs()
        self.profiler.begin()
        self.runs = []
        for number in range(queries):
            offset_ns, start = realtime_offset_ns(), time.monotonic_ns()
            self.outputs = call(batch)
            self.runs.append(Run(number, start, time.monotonic_ns(), offset_ns))
        self.profiler.end()
        self.profile = Profile()
        self.profiler.read(Runs(self.runs), self.profile)
        self.notes, self.facts = self.profile.notes, self.profile.facts
        self.layers, self.kernels = rows(self.profile.layers_bytes()), rows(self.profile.kernels_bytes())

    def layers_of(self, run: int) -> list[dict[str, Any]]:
        return [layer for layer in self.layers if layer["run"] == run]


def rows(content: bytes) -> list[dict[str, Any]]:
    texts = {*columns.LAYER_TEXTS, *columns.KERNEL_TEXTS}
    with np.load(io.BytesIO(content)) as table:
        strings = table["strings"]
        found = {
            name: strings[table[name]] if name in texts else table[name]
            for name in table.files
            if name != "strings"
        }
        return [
            dict(zip(found, (value.item() for value in row), strict=True))
            for row in zip(*found.values(), strict=True)
        ]


def save(
    path: Path, nodes: Sequence[Any], ends: Sequence[Any], constants: dict[str, Any] | None = None
) -> Path:
    """Write a graph; `ends` are its input and its output."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [ends[0]],
        [ends[1]],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


def noise(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def assert_sound(found: Profiled) -> None:
    """Layers lie in their query one after the other, in a sum below it; what is below a layer lies in it."""
    assert found.layers
    for run in found.runs:
        layers = found.layers_of(run.number)
        assert [layer["index"] for layer in layers] == list(range(len(layers)))
        ends = [run.start_ns, *(layer["start_ns"] + layer["duration_ns"] for layer in layers)]
        assert all(layer["start_ns"] >= end for layer, end in zip(layers, ends, strict=False))
        assert ends[-1] <= run.end_ns
        assert 0 < sum(layer["duration_ns"] for layer in layers) <= run.end_ns - run.start_ns
    places = {(layer["run"], layer["index"]): layer for layer in found.layers}
    for kernel in found.kernels:
        layer = places[kernel["run"], kernel["layer_index"]]
        assert layer["start_ns"] <= kernel["start_ns"]
        assert kernel["start_ns"] + kernel["duration_ns"] <= layer["start_ns"] + layer["duration_ns"]


def convolutions_by_onnx(path: Path, sample: np.ndarray[Any, Any]) -> dict[str, tuple[str, str, int]]:
    """Shapes and operations of each convolution, as the onnx package infers them."""
    model = onnx.load(str(path))
    for size, axis in zip(sample.shape, model.graph.input[0].type.tensor_type.shape.dim, strict=True):
        axis.dim_value = size
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {
        value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in [*graph.value_info, *graph.input]
    }
    weights = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    found = {}
    for node in graph.node:
        if node.op_type == "Conv":
            out, weight = shapes[node.output[0]], weights[node.input[1]]
            found[node.name] = (
                "x".join(map(str, weight)),
                "x".join(map(str, out)),
                2 * prod(out) * prod(weight[1:]),
            )
    return found


@pytest.fixture(scope="module")
def small_resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ResNet-50 with 16 channels where it has 64, for images of 64 x 64."""
    folder = tmp_path_factory.mktemp("resnet") / "small"
    sizes = ["--set", "width=16", "--set", "size=64", "--set", "classes=10", "--set", "images=1"]
    subprocess.run(
        command_line("generate", "resnet50", "-o", folder, "--framework", "onnxruntime", *sizes),
        check=True,
        capture_output=True,
        env={**os.environ, "MLBUNDLE_HOME": str(folder.parent / "home")},
    )
    return folder / "onnx" / "model.onnx"


def test_digits_has_the_authors_layers(tmp_path: Path) -> None:
    found = Profiled(DIGITS, {"input": noise(1, 1, 8, 8)}, tmp_path)
    assert_sound(found)
    assert len(found.layers) == 4 * found.facts["optimised_nodes"] > 0
    layers = found.layers_of(3)
    by_name = {layer["original_name"]: layer for layer in layers}
    assert set(by_name) - {""} == {"/0/Conv", "/2/Conv", "/4/MaxPool", "/5/Flatten", "/6/Gemm", "/8/Gemm"}
    conv, gemm = by_name["/2/Conv"], by_name["/6/Gemm"]
    assert (conv["type"], conv["shape_in"], conv["shape_out"]) == (
        "Conv",
        "1x16x8x8, 32x16x3x3, 32",
        "1x32x8x8",
    )
    assert (conv["flops"], conv["flops_source"]) == (2 * 32 * 8 * 8 * 16 * 3 * 3, "computed")
    assert (conv["param_bytes"], conv["alloc_bytes"]) == (4 * (32 * 16 * 9 + 32), 4 * 32 * 8 * 8)
    # Its weights are packed beforehand, so the profile itself does not have them.
    assert (gemm["type"], gemm["shape_in"], gemm["shape_out"]) == ("Gemm", "1x512, 64x512, 64", "1x64")
    assert (gemm["flops"], gemm["param_bytes"]) == (2 * 64 * 512, 4 * (64 * 512 + 64))
    pool = by_name["/4/MaxPool"]
    assert (pool["flops"], pool["flops_source"], pool["param_bytes"]) == (columns.UNKNOWN, "", 0)
    assert {layer["provider"] for layer in layers} == {"CPUExecutionProvider"}
    assert found.facts["fused"][gemm["name"]] == ["/6/Gemm", "/7/Relu"]
    inserted = {layer["type"] for layer in layers if not layer["original_name"]}
    assert [note for note in found.notes if "without an original name" in note] == (
        [f"inserted by ONNX Runtime, so without an original name: {', '.join(sorted(inserted))}"]
        if inserted
        else []
    )


def test_convolutions_of_resnet_are_those_of_its_graph(small_resnet: Path, tmp_path: Path) -> None:
    image = noise(1, 3, 64, 64)
    expected = convolutions_by_onnx(small_resnet, image)
    assert len(expected) == 53
    (name,) = [one.name for one in onnxruntime.InferenceSession(str(small_resnet)).get_inputs()]
    found = Profiled(small_resnet, {name: image}, tmp_path)
    assert_sound(found)
    for run in found.runs:
        layers = found.layers_of(run.number)
        seen = {
            layer["original_name"]: (layer["shape_in"], layer["shape_out"], layer["flops"])
            for layer in layers
            if layer["type"] == "Conv"
        }
        assert seen.keys() == expected.keys()
        for original_name, (weight, out, flops) in expected.items():
            shape_in, shape_out, counted = seen[original_name]
            assert weight in shape_in.split(", "), "the author's channels, whatever they are rounded to"
            assert (shape_out, counted) == (out, flops)
        assert [layer["original_name"] for layer in layers if layer["type"] == "Gemm"] == ["fc"]
    # One after the other means: the same order each time, and inserted layers have the same names each time.
    assert len({tuple(layer["name"] for layer in found.layers_of(run)) for run in range(4)}) == 1
    again = Profiled(small_resnet, {name: image}, tmp_path, queries=1)
    assert [layer["name"] for layer in again.layers] == [layer["name"] for layer in found.layers_of(0)]
    held = {original for names in found.facts["fused"].values() for original in names}
    assert {"layer1.0.bn3", "layer1.0.add", "layer1.0.relu3"} <= held, "what is done along is told"


def test_the_profiled_graph_is_the_one_that_is_measured(small_resnet: Path, tmp_path: Path) -> None:
    """Saving the optimised graph must not change it: a session that only profiles runs the same operators."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = 1, 1
    settings.enable_profiling, settings.profile_file_prefix = True, str(tmp_path / "plain")
    session = onnxruntime.InferenceSession(str(small_resnet), settings)
    name = session.get_inputs()[0].name
    session.run(None, {name: noise(1, 3, 64, 64)})
    events = json.loads(Path(session.end_profiling()).read_bytes())
    plain = [event["args"]["op_name"] for event in events if event["cat"] == "Node"]
    found = Profiled(small_resnet, {name: noise(1, 3, 64, 64)}, tmp_path, queries=1)
    assert [kernel["name"].rpartition(".")[2] for kernel in found.kernels] == plain


def test_levels_and_what_is_left_in_the_scratch_folder(tmp_path: Path) -> None:
    shallow = Profiled(DIGITS, {"input": noise(2, 1, 8, 8)}, tmp_path, level="framework")
    assert (len(shallow.kernels), bool(shallow.layers)) == (0, True)
    deep = Profiled(DIGITS, {"input": noise(2, 1, 8, 8)}, tmp_path, level="serial", threads=2)
    assert_sound(deep)
    assert len(deep.kernels) == len(deep.layers)
    assert {(kernel["kind"], kernel["device"]) for kernel in deep.kernels} == {("operator", "cpu")}
    assert min(kernel["stream"] for kernel in deep.kernels) > 0, "the thread"
    assert "FusedGemm" in {kernel["name"].rpartition(".")[2] for kernel in deep.kernels}
    assert list(tmp_path.iterdir()) == []


def test_profiled_answers_are_the_answers(tmp_path: Path) -> None:
    image = noise(1, 1, 8, 8)
    found = Profiled(DIGITS, {"input": image}, tmp_path)
    (plain,) = onnxruntime.InferenceSession(str(DIGITS)).run(None, {"input": image})
    np.testing.assert_allclose(found.outputs[0], plain, rtol=1e-5, atol=1e-5)


def test_fused_layers_lead_back_to_what_they_are_about(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w1"], ["product"], name="linear"),
        node("Add", ["product", "b1"], ["biased"], name="bias"),
        node("Div", ["biased", "root"], ["divided"], name="gelu_div"),
        node("Erf", ["divided"], ["erf"], name="gelu_erf"),
        node("Add", ["erf", "one"], ["shifted"], name="gelu_add"),
        node("Mul", ["biased", "shifted"], ["both"], name="gelu_mul"),
        node("Mul", ["both", "half"], ["gelu"], name="gelu_end"),
        node("Transpose", ["gelu"], ["turned"], name="turn", perm=[0, 2, 1]),
        node("MatMul", ["gelu", "turned"], ["attention"], name="attention"),
        node("Softmax", ["attention"], ["y"]),
    ]
    scalars = {name: np.float32(value) for name, value in (("root", 2**0.5), ("one", 1), ("half", 0.5))}
    constants = {"w1": noise(32, 16), "b1": noise(16), **scalars}
    ends = info("x", FLOAT, ["N", 8, 32]), info("y", FLOAT, ["N", 8, 8])
    found = Profiled(save(tmp_path / "model.onnx", nodes, ends, constants), {"x": noise(2, 8, 32)}, tmp_path)
    layers = {layer["original_name"]: layer for layer in found.layers_of(0)}
    assert list(layers) == ["linear", "gelu_end", "attention", "y"], "one without a name goes by its tensor"
    assert layers["gelu_end"]["type"].endswith("Gelu")
    gelu = found.facts["fused"][layers["gelu_end"]["name"]]
    assert gelu == ["bias", "gelu_div", "gelu_erf", "gelu_add", "gelu_mul", "gelu_end"]
    assert found.facts["fused"][layers["attention"]["name"]] == ["turn", "attention"]
    assert layers["linear"]["flops"] == 2 * (2 * 8 * 16) * 32
    assert layers["attention"]["flops"] == 2 * (2 * 8 * 8) * 16, "one side is transposed on the way"
    assert layers["attention"]["type"] == "MatMul"


def test_every_kind_of_convolution_has_its_operations(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["plain"], name="plain", pads=[1] * 4),
        node("HardSigmoid", ["plain"], ["gate"], alpha=1 / 6),
        node("Mul", ["plain", "gate"], ["swish"]),
        node("Conv", ["swish", "depth"], ["deep"], name="depthwise", pads=[1] * 4, group=20),
        node("ConvTranspose", ["deep", "up"], ["y"], name="up", strides=[2, 2]),
    ]
    constants = {"w": noise(20, 3, 3, 3), "depth": noise(20, 1, 3, 3), "up": noise(20, 5, 2, 2)}
    ends = info("x", FLOAT, ["N", 3, 8, 8]), info("y", FLOAT, ["N", 5, 16, 16])
    found = Profiled(
        save(tmp_path / "model.onnx", nodes, ends, constants), {"x": noise(1, 3, 8, 8)}, tmp_path
    )
    layers = {layer["original_name"]: layer for layer in found.layers_of(0)}
    assert {name: layers[name]["flops"] for name in ("plain", "depthwise", "up")} == {
        "plain": 2 * 20 * 64 * 27,
        "depthwise": 2 * 20 * 64 * 9,
        "up": 2 * 5 * 256 * 20,
    }
    assert layers["plain"]["shape_out"] == "1x20x8x8", "not rounded up to a multiple of a vector"


def test_a_quantised_convolution_is_found_again(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantise"),
        node("DequantizeLinear", ["q", "scale", "zero"], ["dq"]),
        node("DequantizeLinear", ["wq", "scale", "zero8"], ["w"]),
        node("Conv", ["dq", "w"], ["c"], name="conv", pads=[1] * 4),
        node("QuantizeLinear", ["c", "scale", "zero"], ["q2"]),
        node("DequantizeLinear", ["q2", "scale", "zero"], ["y"]),
    ]
    constants = {"scale": np.float32(0.1), "zero": np.uint8(128), "zero8": np.int8(0)}
    constants["wq"] = np.arange(-54, 54, dtype=np.int8).reshape(4, 3, 3, 3)
    ends = info("x", FLOAT, ["N", 3, 8, 8]), info("y", FLOAT, ["N", 4, 8, 8])
    found = Profiled(
        save(tmp_path / "model.onnx", nodes, ends, constants), {"x": noise(1, 3, 8, 8)}, tmp_path
    )
    (conv,) = [layer for layer in found.layers_of(0) if layer["original_name"] == "conv"]
    assert (conv["type"], conv["flops"]) == ("Conv", 2 * 4 * 64 * 27)


def test_nodes_of_a_loop_are_operators_of_its_layer(tmp_path: Path) -> None:
    node = helper.make_node
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["go_on"]),
            node("Sin", ["a"], ["b"], name="inner"),
        ],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("a", FLOAT, [1, 64])],
        [info("go_on", TensorProto.BOOL, []), info("b", FLOAT, [1, 64])],
    )
    nodes = [
        node("Cos", ["x"], ["first"], name="first"),
        node("Loop", ["times", "", "first"], ["looped"], name="loop", body=body),
        node("Tanh", ["looped"], ["y"], name="last"),
    ]
    ends = info("x", FLOAT, [1, 64]), info("y", FLOAT, [1, 64])
    path = save(tmp_path / "model.onnx", nodes, ends, {"times": np.int64(3)})
    found = Profiled(path, {"x": noise(1, 64)}, tmp_path)
    assert_sound(found)
    assert [layer["name"] for layer in found.layers_of(0)] == ["first", "loop", "last"]
    inner = [kernel["name"] for kernel in found.kernels if (kernel["run"], kernel["layer_index"]) == (0, 1)]
    assert sorted(inner) == ["Identity"] * 3 + ["Sin"] * 3
    assert any("within a node" in note for note in found.notes)


NAMES = ["plain", "日本語", "עברית", "a b/c:d", "tab\tand\nline", 'quo"te', "back\\slash", "x" * 2000]


def test_names_in_any_script_come_whole_or_cut(tmp_path: Path) -> None:
    tensors = ["x", *(f"t{n}" for n in range(len(NAMES) - 1)), "y"]
    nodes = [
        helper.make_node("Sin" if n % 2 else "Cos", [tensors[n]], [tensors[n + 1]], name=name)
        for n, name in enumerate(NAMES)
    ]
    ends = info("x", FLOAT, ["N", 4]), info("y", FLOAT, ["N", 4])
    found = Profiled(save(tmp_path / "model.onnx", nodes, ends), {"x": noise(1, 4)}, tmp_path)
    layers = found.layers_of(0)
    if found.notes:  # Older versions don't escape names, so their lines are not JSON.
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__}: {found.notes}")
    expected = [name.replace("\t", "\ufffd").replace("\n", "\ufffd")[:1000] for name in NAMES]
    assert [layer["name"] for layer in layers] == expected
    assert [layer["original_name"] for layer in layers] == expected


def test_a_name_of_many_megabytes_leaves_room_for_fewer_queries(tmp_path: Path) -> None:
    node = helper.make_node("Sin", ["x"], ["y"], name="n" * 10_000_000)
    ends = info("x", FLOAT, ["N", 4]), info("y", FLOAT, ["N", 4])
    path = save(tmp_path / "model.onnx", [node], ends)
    (tmp_path / "scratch").mkdir()
    found = Profiled(path, {"x": noise(1, 4)}, tmp_path / "scratch", queries=2, warm_up=50)
    assert 2 <= found.most_runs < 12
    assert [layer["name"] for layer in found.layers] == ["n" * 1000] * 2, (
        "two queries, none of those that warmed up"
    )


def test_many_nodes_are_bounded_and_their_warm_up_too(tmp_path: Path) -> None:
    tensors = ["x", *(f"t{n}" for n in range(1999)), "y"]
    nodes = [helper.make_node("Sin", [tensors[n]], [tensors[n + 1]], name=f"sin{n}") for n in range(2000)]
    ends = info("x", FLOAT, ["N", 4]), info("y", FLOAT, ["N", 4])
    path = save(tmp_path / "model.onnx", nodes, ends)
    found = Profiled(path, {"x": noise(1, 4)}, tmp_path, level="framework", queries=3, warm_up=1000)
    assert 3 < found.most_runs < 100
    assert len(found.layers) == 3 * 2000
    assert found.notes == []


def test_weights_of_a_big_graph_are_not_written_to_the_scratch_folder(tmp_path: Path) -> None:
    path = save(
        tmp_path / "model.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="big")],
        (info("x", FLOAT, ["N", 2000]), info("y", FLOAT, ["N", 1000])),
        {"w": noise(2000, 1000)},
    )
    options = {"scratch": str(tmp_path), "threads": 1, "accelerator": "cpu"}
    profiler = OnnxRuntimeProfiler("framework", options)
    settings = dict(profiler.settings())
    OnnxRuntimePredictor().open({"graph": str(path)}, {**options, "profile": settings})
    assert 0 < Path(settings["graph"]).stat().st_size < 10_000


def test_a_graph_that_cannot_be_saved_is_profiled_all_the_same(tmp_path: Path) -> None:
    options = {"scratch": str(tmp_path), "threads": 1, "accelerator": "cpu"}
    profiler, predictor = OnnxRuntimeProfiler("framework", options), OnnxRuntimePredictor()
    settings = {**profiler.settings(), "graph": str(tmp_path / "missing" / "optimised.onnx")}
    handle = predictor.open({"graph": str(DIGITS)}, {**options, "profile": settings})
    profiler.attach(predictor, handle)
    batch = predictor.prepare(handle, {"input": noise(1, 1, 8, 8)})
    profiler.begin()
    offset_ns, start = realtime_offset_ns(), time.monotonic_ns()
    predictor.predict(handle, batch)
    run = Run(0, start, time.monotonic_ns(), offset_ns)
    profiler.end()
    profile = Profile()
    profiler.read(Runs([run]), profile)
    layers = rows(profile.layers_bytes())
    assert {"/0/Conv", "/2/Conv", "/6/Gemm", "/8/Gemm"} <= {layer["original_name"] for layer in layers}
    assert any("the optimised graph can't be read" in note for note in profile.notes)
