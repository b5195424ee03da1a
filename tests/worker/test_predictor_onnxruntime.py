"""ONNX Runtime through its predictor, in this process."""

from __future__ import annotations

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
