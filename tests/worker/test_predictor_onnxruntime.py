"""ONNX Runtime through its predictor, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from mlbundle.worker.errors import WorkerError
from mlbundle.worker.predictors.onnx_runtime import OnnxRuntimePredictor


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> str:
    """Two inputs, two outputs; `kept` has as many rows as the data decide."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Compress", ["a", "mask"], ["kept"], axis=0),
    ]
    inputs = [
        helper.make_tensor_value_info("a", TensorProto.FLOAT, ["N", 3]),
        helper.make_tensor_value_info("b", TensorProto.FLOAT, ["N", 3]),
        helper.make_tensor_value_info("mask", TensorProto.BOOL, ["N"]),
    ]
    outputs = [
        helper.make_tensor_value_info("sum", TensorProto.FLOAT, ["N", 3]),
        helper.make_tensor_value_info("kept", TensorProto.FLOAT, ["M", 3]),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "both", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    path = tmp_path_factory.mktemp("onnx") / "both.onnx"
    onnx.save(model, str(path))
    return str(path)


def feeds(**others: Any) -> dict[str, Any]:
    ones = np.ones((2, 3), np.float32)
    return {"a": ones, "b": 2 * ones, "mask": np.array([True, False]), **others}


def opened(graph: str, **options: Any) -> Any:
    predictor = OnnxRuntimePredictor()
    return predictor, predictor.open({"graph": graph}, {"threads": 2, "accelerator": "cpu", **options})


def test_inputs_go_by_name_and_facts_say_how_it_runs(graph) -> None:
    predictor, handle = opened(graph)
    outputs = predictor.predict(handle, predictor.prepare(handle, feeds()))
    assert dict(zip(handle.output_names, map(np.ndarray.tolist, outputs), strict=True)) == {
        "sum": [[3.0] * 3] * 2,
        "kept": [[1.0] * 3],
    }
    facts = dict(handle.facts)
    assert facts.pop("timed")
    assert facts == {
        "version": onnxruntime.__version__,
        "device": "cpu",
        "providers": ["CPUExecutionProvider"],
        "threads": 2,
        "inter_op_threads": 1,
    }


def write_compress(path: Path, rows: str) -> Path:
    """A graph that gives those rows of `points` whose first element is positive; the manifest calls them `rows`."""
    nodes = [
        helper.make_node("Gather", ["points", "zero"], ["first"], axis=1),
        helper.make_node("Greater", ["first", "limit"], ["mask"]),
        helper.make_node("Compress", ["points", "mask"], ["kept"], axis=0),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "compress",
        [info("points", TensorProto.FLOAT, ["N", 4])],
        [info("kept", TensorProto.FLOAT, [rows, 4])],
        [
            helper.make_tensor("zero", TensorProto.INT64, [], [0]),
            helper.make_tensor("limit", TensorProto.FLOAT, [], [0]),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def test_outputs_of_as_many_rows_as_the_data_decide_come_whole(tmp_path) -> None:
    predictor, handle = opened(str(write_compress(tmp_path / "compress.onnx", "K")))
    for positive in (2, 1, 3, 0):
        points = np.repeat(np.array([[1.0] if n < positive else [-1.0] for n in range(3)], "f"), 4, axis=1)
        (kept,) = predictor.predict(handle, predictor.prepare(handle, {"points": points}))
        assert kept.tolist() == [[1.0] * 4] * positive
    assert "nothing is bound before" in handle.facts["timed"]


def test_a_graph_that_is_wrong_about_its_rows_fails_with_words(tmp_path) -> None:
    """It says that there are as many rows as in the batch."""
    predictor, handle = opened(str(write_compress(tmp_path / "compress.onnx", "N")))
    predictor.prepare(handle, {"points": np.ones((2, 4), "f")})
    batch = predictor.prepare(handle, {"points": np.array([[1] * 4, [-1] * 4], "f")})
    with pytest.raises(WorkerError) as caught:
        predictor.predict(handle, batch)
    assert caught.value.reference == "inference-failed"


def write_external(folder: Path, location: str) -> dict[str, str]:
    """A graph whose matrix lies in another file."""
    matrix = helper.make_tensor("matrix", TensorProto.FLOAT, [40, 2], np.ones(80, "f").tobytes(), raw=True)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["points", "matrix"], ["scores"])],
        "external",
        [helper.make_tensor_value_info("points", TensorProto.FLOAT, ["N", 40])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 2])],
        [matrix],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    onnx.save(
        model,
        str(folder / "model.onnx"),
        save_as_external_data=True,
        location=location,
        size_threshold=0,
    )
    return {"graph": str(folder / "model.onnx"), "weights": str(folder / location)}


@pytest.mark.parametrize("location", ["weights.bin", "weights/" + "long" * 40 + ".bin"])
def test_weights_apart_are_those_that_the_graph_refers_to(tmp_path, location) -> None:
    predictor = OnnxRuntimePredictor()
    handle = predictor.open(write_external(tmp_path, location), {"threads": 1})
    batch = predictor.prepare(handle, {"points": np.ones((1, 40), "f")})
    assert predictor.predict(handle, batch)[0].tolist() == [[40.0, 40.0]]


@pytest.mark.parametrize("name", ["other.bin", "weights.bi", "../weights.bin", "model.onnx"])
def test_weights_that_the_graph_does_not_read_are_refused(tmp_path, name) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    named = {**write_external(folder, "weights.bin"), "weights": str(folder / name)}
    with pytest.raises(WorkerError) as caught:
        OnnxRuntimePredictor().open(named, {"threads": 1})
    assert (caught.value.reference, caught.value.fault) == ("model-not-loadable", "bundle")
    assert name in caught.value.message
    assert "weights_path" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"b": np.ones((2, 3))}, ["'b'", "float32", "float64"]),
        ({"mask": np.ones(2, np.int64)}, ["'mask'", "bool", "int64"]),
        ({"b": np.ones((2, 4), np.float32)}, ["'b'", "['any', 3]", "[2, 4]"]),
        ({"b": np.ones((2, 3, 1), np.float32)}, ["'b'", "[2, 3, 1]"]),
        ({"c": np.ones(2)}, ["'a', 'b', 'mask'", "'c'"]),
    ],
)
def test_a_feed_that_does_not_fit_is_the_bundles_fault(graph, wrong, words) -> None:
    predictor, handle = opened(graph)
    with pytest.raises(WorkerError) as caught:
        predictor.prepare(handle, feeds(**wrong))
    assert (caught.value.reference, caught.value.fault) == ("inputs-mismatch", "bundle")
    assert all(word in caught.value.message for word in words), caught.value.message


def test_a_file_that_is_no_graph_is_refused(tmp_path) -> None:
    (tmp_path / "garbage.onnx").write_bytes(b"this is no model" * 100)
    with pytest.raises(WorkerError) as caught:
        opened(str(tmp_path / "garbage.onnx"))
    assert (caught.value.reference, caught.value.fault) == ("model-not-loadable", "bundle")


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this build has CUDA"
)
@pytest.mark.parametrize("accelerator", ["gpu", "tpu"])
def test_an_accelerator_that_is_not_there_is_never_replaced_by_the_cpu(graph, accelerator) -> None:
    with pytest.raises(WorkerError) as caught:
        opened(graph, accelerator=accelerator)
    assert (caught.value.reference, caught.value.fault) == ("accelerator-missing", "environment")
    assert accelerator in caught.value.message
    if accelerator == "gpu":
        assert "CPUExecutionProvider" in caught.value.message, "it lists what there is"


@pytest.mark.filterwarnings("ignore:Specified provider 'CUDAExecutionProvider'")
def test_a_session_that_fell_back_to_the_cpu_is_refused(graph, monkeypatch) -> None:
    """A CUDA build on a machine without a driver opens a session all the same; here the claim alone is made up."""
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    with pytest.raises(WorkerError) as caught:
        opened(graph, accelerator="gpu")
    assert caught.value.reference == "accelerator-missing"
