"""Layers of TensorFlow: of real sessions, of reports in any state, and of what its profiler writes of a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

HERE = Path(__file__).resolve().parent
SECOND_NS = 10**9


@pytest.fixture(scope="module")
def answers(tensorflow_python, tmp_path_factory) -> dict[str, Any]:
    """What was profiled, by case."""
    done = subprocess.run(
        [tensorflow_python, "-s", HERE / "tensorflow_profiles.py", tmp_path_factory.mktemp("profiles"), ROOT],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def layers_of(found: dict[str, Any], run: int = 0) -> list[dict[str, Any]]:
    return [row for row in found["layers"] if row["run"] == run]


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["original_name"]: row for row in layers_of(found)}


@pytest.mark.parametrize("case", ["digits", "frozen", "parts", "resnet", "digits-framework"])
def test_layers_follow_each_other_within_their_query(answers, case) -> None:
    found = answers[case]
    assert len(found["runs"]) == 3
    for run, (start_ns, end_ns) in enumerate(found["runs"]):
        layers = layers_of(found, run)
        assert [row["index"] for row in layers] == list(range(len(layers)))
        before_ns = start_ns
        for row in layers:
            assert row["start_ns"] >= before_ns
            before_ns = row["start_ns"] + row["duration_ns"]
        assert before_ns <= end_ns
        assert 0 < sum(row["duration_ns"] for row in layers) <= end_ns - start_ns
    assert {row["provider"] for row in found["layers"]} <= {"oneDNN", "CPU:0"}
    # The optimiser makes two additions of one: a part of a layer is none of the author's.
    assert set(found["notes"]) <= {"1 layers have no original name, as TensorFlow made them: AddN"}


@pytest.mark.parametrize("case", ["digits", "frozen", "parts", "resnet"])
def test_each_layer_has_its_operator_and_thread(answers, case) -> None:
    found = answers[case]
    for layer, operator in zip(found["layers"], found["kernels"], strict=True):
        assert (operator["run"], operator["layer_index"]) == (layer["run"], layer["index"])
        assert (operator["start_ns"], operator["duration_ns"]) == (layer["start_ns"], layer["duration_ns"])
        assert (operator["kind"], operator["device"]) == ("operator", "cpu")
        assert layer["type"] in operator["name"].replace("Fused", "")
    assert len({operator["stream"] for operator in found["kernels"]}) == 1


def test_operators_are_left_to_deeper_levels(answers) -> None:
    assert answers["digits-framework"]["kernels"] == []
    types = [row["type"] for row in layers_of(answers["digits"])]
    assert types == [row["type"] for row in layers_of(answers["digits-framework"])]


def test_a_profiled_session_answers_as_before(answers) -> None:
    assert all(answers[case]["same"] for case in ("digits", "frozen", "parts", "resnet", "device-session"))


def test_layers_have_the_names_of_the_program_that_wrote_the_model(answers) -> None:
    """Calls of functions are no part of a name; a fused layer has the name of what it is about."""
    layers = by_name(answers["digits"])
    assert layers["Conv2D_1"]["name"] == "StatefulPartitionedCall/StatefulPartitionedCall/Relu_1"
    assert layers["MatMul_2"]["name"].endswith("/logits")
    assert layers["add_1"]["name"].endswith("/ArithmeticOptimizer/AddOpsRewrite_add_1")
    assert [row["original_name"] for row in layers_of(answers["digits"])].count("add_1") == 1
    assert {row["original_name"] for row in layers_of(answers["frozen"])} == set(layers)
    types = {name: row["type"] for name, row in layers.items()}
    assert types["Conv2D"] == "Conv2D"
    assert types["MaxPool2d"] == "MaxPool"
    assert types["transpose"] == "Transpose"


def test_shapes_memory_and_weights_of_digits(answers) -> None:
    layers = by_name(answers["digits"])
    second = layers["Conv2D_1"]
    assert second["shape_in"] == "1x8x8x16, 3x3x16x32, 32"
    assert second["shape_out"] == "1x8x8x32"
    assert second["param_bytes"] == (3 * 3 * 16 * 32 + 32) * 4
    assert second["alloc_bytes"] >= 8 * 8 * 32 * 4, "at least its output"
    assert (second["flops"], second["flops_source"]) == (2 * 8 * 8 * 32 * 3 * 3 * 16, "computed")
    assert layers["MatMul"]["flops"] == 2 * 256 * 64
    assert layers["MatMul_2"]["shape_in"] == "1x64, 64x10, 10"
    assert (layers["split"]["shape_out"], layers["split"]["param_bytes"]) == ("1x256, 1x256", 0)
    assert (layers["split"]["flops"], layers["split"]["flops_source"]) == (-1, "")


def test_each_query_has_the_shapes_of_its_own_batch(answers) -> None:
    sizes = {
        row["run"]: (row["shape_out"], row["flops"])
        for row in answers["frozen"]["layers"]
        if row["original_name"] == "Conv2D"
    }
    assert sizes == {0: ("1x8x8x16", 18432), 1: ("3x8x8x16", 3 * 18432), 2: ("1x8x8x16", 18432)}


def test_operations_of_other_layers(answers) -> None:
    layers = by_name(answers["parts"])
    expected = {
        "stem/depthwise": 2 * (2 * 8 * 8 * 8) * 9,
        "stem/grouped": 2 * (2 * 6 * 6 * 6) * 9 * 4,
        "stem/up": 2 * (2 * 6 * 6 * 6) * 9 * 5,
        "gram": 2 * (2 * 5 * 5) * 64,
        "sum/Einsum": 2 * (2 * 5 * 7) * 5,
        "volume": 2 * (2 * 4 * 6 * 1 * 3) * 4,
        "out": 2 * (2 * 2) * 3,
    }
    assert {name: layers[name]["flops"] for name in expected} == expected


def test_loops_and_functions_show_what_they_run(answers) -> None:
    found = layers_of(answers["parts"])
    assert [row["type"] for row in found if row["original_name"] == "loop/cell"] == ["MatMul"] * 4
    assert by_name(answers["parts"])["innen"]["type"] == "Softplus"
    assert not {"While", "PartitionedCall", "StatefulPartitionedCall"} & {row["type"] for row in found}


def test_what_is_no_layer_is_told(answers) -> None:
    facts = answers["resnet"]["facts"]
    assert facts["nodes"] > len(layers_of(answers["resnet"]))
    assert 0 < facts["share_of_nodes_that_are_no_layers"] < 1
    assert "TensorFlow 2." in facts["profiler"]


class Sizes:
    """The network as `forward` runs it, on shapes: each convolution's output, and its operations."""

    def __init__(self, weights: dict[str, tuple[int, ...]]) -> None:
        self.weights, self.found = weights, {}

    def convolve(self, name: str, value: Any, *, stride: int, padding: int) -> Any:
        out, *inner = self.weights[name + ".weight"]
        places = [(size + 2 * padding - inner[-1]) // stride + 1 for size in value[1:]]
        self.found[name] = ("x".join(map(str, (1, *places, out))), 2 * prod((*places, out, *inner)))
        return (out, *places)

    def normalise(self, _name: str, value: Any) -> Any:
        return value

    relu = normalise

    def max_pool(self, _name: str, value: Any) -> Any:
        return (value[0], *((size - 1) // 2 + 1 for size in value[1:]))

    def add(self, _name: str, value: Any, other: Any) -> Any:
        assert value == other
        return value

    def average(self, _name: str, value: Any) -> Any:
        return value[:1]

    def dense(self, name: str, value: Any) -> Any:
        self.found[name] = (
            "1x{}".format(self.weights[name + ".weight"][0]),
            2 * prod(self.weights[name + ".weight"]),
        )
        return value


def resnet_sizes(monkeypatch, **settings: int) -> dict[str, tuple[str, int]]:
    monkeypatch.syspath_prepend(str(ROOT / "manifests" / "generated" / "resnet50"))
    import network

    configuration = network.Configuration(**settings)
    sizes = Sizes(dict(network.shapes(configuration)))
    network.forward(sizes, (3, configuration.size, configuration.size))
    del sys.modules["network"]
    return sizes.found


def test_convolutions_of_resnet_are_those_of_the_network(answers, monkeypatch) -> None:
    expected = resnet_sizes(monkeypatch, width=8, size=64, classes=10)
    found = {
        row["original_name"]: (row["shape_out"], row["flops"])
        for row in layers_of(answers["resnet"])
        if row["type"] in {"Conv2D", "MatMul"}
    }
    assert found == {name.replace(".", "_"): sizes for name, sizes in expected.items()}
    assert len(found) == 53 + 1
    assert sum(row["type"] == "Conv2D" for row in layers_of(answers["resnet"])) == 53


def test_the_network_at_full_size_has_8_billion_operations(monkeypatch) -> None:
    assert sum(flops for _, flops in resnet_sizes(monkeypatch).values()) == 8_178_368_512


def test_asking_costs_no_more_than_the_frameworks_own_profiler(answers) -> None:
    ours_ms, theirs_ms = answers["cost"]
    assert ours_ms <= theirs_ms * 1.05


def test_a_report_that_is_torn_or_empty_is_said(answers) -> None:
    assert answers["bad"]["truncated"]["layers"] == []
    assert any("can't be read" in note for note in answers["bad"]["truncated"]["notes"])
    assert any("nothing was seen" in note for note in answers["bad"]["empty"]["notes"])


def test_a_damaged_report_leaves_what_is_sound(answers) -> None:
    """The script looks at where they lie; most of 150 can still be read in part."""
    assert answers["bad"]["damaged"] > 20


def test_a_clock_that_was_set_leaves_no_layers_and_a_note(answers) -> None:
    found = answers["bad"]["real_at_another_time"]
    assert found["layers"] == []
    assert any("was the clock set" in note for note in found["notes"])


def test_nodes_whose_times_make_no_sense_are_left_out(answers) -> None:
    found = answers["bad"]["negative"]
    assert [row["name"] for row in found["layers"]] == ["a"]
    assert any("make no sense" in note for note in found["notes"])


def test_layers_side_by_side_stay_and_are_said(answers) -> None:
    found = answers["bad"]["overlapping"]
    assert [(row["name"], row["duration_ns"]) for row in found["layers"]] == [("a", 50), ("b", 90), ("c", 10)]
    assert any("side by side" in note for note in found["notes"])


def test_what_reaches_out_of_a_query_is_cut(answers) -> None:
    found = answers["bad"]["outside"]
    assert [(row["name"], row["start_ns"], row["duration_ns"]) for row in found["layers"]] == [
        ("over", 10 * SECOND_NS, 30)
    ]
    assert any("2 layers ran outside" in note for note in found["notes"])


def test_names_of_any_length_and_script(answers) -> None:
    assert [len(name) for name in answers["bad"]["huge_name"]] == [1000, 1]
    assert answers["bad"]["scripts"] == ["層/Größe", "سلسلة", "a\ufffd\ufffdb"]


def test_a_label_that_says_nothing_leaves_the_name(answers) -> None:
    assert answers["bad"]["labels"] == ["a", "a", "Relu", "_MklRelu", "Relu"]


def test_many_nodes_bound_the_queries_and_are_read(answers) -> None:
    assert answers["bad"]["most_runs_of_many"] == 2_000_000 // 60_000
    assert answers["bad"]["many"] == 60_000
    assert answers["digits"]["most_runs"] > 1000


def test_streams_of_a_device_are_no_nodes(answers) -> None:
    assert answers["bad"]["streams"] == []


@pytest.mark.parametrize("case", ["kernels", "real_time"])
def test_kernels_and_copies_have_the_layer_that_launched_them(answers, case) -> None:
    """By the node that the profiler names, else by when the call was made."""
    copy, kernel, stray = answers["gpu"][case]["kernels"]
    assert (kernel["name"], kernel["kind"], kernel["layer_index"]) == ("sgemm_128x64", "kernel", 1)
    assert (kernel["stream"], kernel["device"], kernel["correlation"]) == (14, "gpu:0", 501)
    assert (kernel["start_ns"], kernel["duration_ns"]) == (10 * SECOND_NS + 60_000, 5_000)
    assert (kernel["grid"], kernel["block"], kernel["bytes"]) == ("16x2x1", "256x1x1", -1)
    assert (copy["name"], copy["kind"], copy["bytes"], copy["stream"]) == ("MemcpyH2D", "copy", 4096, 15)
    assert copy["layer_index"] == 2, "by its launch"
    assert stray["layer_index"] == -1
    notes = " ".join(answers["gpu"][case]["notes"])
    assert "1 kernels and copies are of no layer" in notes
    assert "1 kernels and copies ran outside of the queries" in notes
    assert "make no sense" in notes


def test_a_torn_file_of_the_profiler_leaves_the_layers(answers) -> None:
    for case in ("torn", "missing"):
        assert answers["gpu"][case]["kernels"] == []
        assert len(answers["gpu"][case]["layers"]) == 3
    assert any("can't be read" in note for note in answers["gpu"]["torn"]["notes"])


def test_the_profilers_times_are_those_of_the_real_time_clock(answers) -> None:
    clocks = answers["clocks"]
    assert (clocks["trouble"], clocks["notes"]) == ("", [])
    assert len(clocks["runs"]) == 5
    for (start, end), (began, ended) in zip(clocks["queries"], clocks["runs"], strict=True):
        assert start <= began < ended <= end


def test_a_profiler_that_refuses_leaves_the_layers(answers) -> None:
    found = answers["device-session"]
    assert len(layers_of(found)) == 13
    assert any("saw no GPU" in note for note in found["notes"])
    assert "Another profiler is running" in found["trouble"]


def test_nothing_is_left_in_the_scratch_folder(answers) -> None:
    assert all(answers[case]["left"] == [] for case in ("digits", "parts", "resnet", "device-session"))
