"""`batched`, `pipeline` and `cold-start` from the command line to the record, in a process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from inprocess import InProcess
from support import ROOT, make_bundle

HERE = ("--runtime", "process", "--python", sys.executable)
SCHEMA = json.loads((ROOT / "schemas" / "run.schema.json").read_text())
BATCHED = ("--scenario", "batched", "--duration", "60ms", "--warmup", "10ms")


@pytest.fixture
def cli(capsys):
    return InProcess(capsys)


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "mini")


@pytest.fixture
def record_of(cli):
    def run(*arguments) -> dict:
        outcome = cli("run", *arguments, *HERE, "--json")
        record = outcome.document()
        assert record.get("status") == "completed", outcome.stderr + outcome.stdout
        jsonschema.validate(record, SCHEMA)
        return record

    return run


def replace_graph(folder: Path, batch: int | str, *, flat: bool = False) -> None:
    """Give the bundle a graph whose batch axis is fixed, or (`flat`) one that takes any and answers one row."""
    import onnx
    from onnx import TensorProto, helper

    weights = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["points", "weights"], ["all" if flat else "scores"])]
    if flat:
        nodes.append(helper.make_node("ReduceMax", ["all"], ["scores"], axes=[0], keepdims=1))
    graph = helper.make_graph(
        nodes,
        "mini",
        [helper.make_tensor_value_info("points", TensorProto.FLOAT, [batch, 6])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1 if flat else batch, 4])],
        [helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "model.onnx"))


def test_batched_measures_each_size_and_names_the_best(record_of, mini, home) -> None:
    record = record_of(mini, *BATCHED, "--batch-sizes", "1,8,32")
    result = record["result"]
    assert [batch["batch_size"] for batch in result["batches"]] == [1, 8, 32]
    best = max(result["batches"], key=lambda batch: batch["throughput_per_s"])
    assert result["optimal"]["batch_size"] == best["batch_size"]
    assert result["throughput_per_s"] == best["throughput_per_s"]
    assert result["latency_ns"] == best["latency_ns"]
    assert result["samples"] == result["queries"] * best["batch_size"]
    assert record["accuracy"]["value"] == 1.0
    kinds = [part["kind"] for part in record["passes"]]
    assert kinds == ["batch", "batch", "batch", "accuracy"]
    folder = home / "data" / "runs" / record["run_id"]
    for number, batch in enumerate(result["batches"]):
        latencies = np.load(folder / f"passes/{number:02}-batch" / "latencies.npy")
        assert len(latencies) == batch["queries"]


@pytest.mark.parametrize("flat", [False, True])
def test_a_model_of_single_samples_is_measured_with_those_and_it_is_said(cli, mini, flat) -> None:
    replace_graph(mini, "N" if flat else 1, flat=flat)
    outcome = cli("run", mini, *HERE, *BATCHED, "--no-accuracy", "--json")
    result = outcome.document()["result"]
    assert [batch["batch_size"] for batch in result["batches"]] == [1]
    assert (result["search"]["ended"], result["search"]["batch_size"]) == ("refused", 2)
    assert "batches of 2 and more were left out" in outcome.stderr
    refused = cli("run", mini, *HERE, *BATCHED, "--no-accuracy", "--batch-sizes", "4,8", "--json")
    error = refused.error(4, "worker-failed")
    assert (error["where"], error["fault"]) == ("batch-size-refused", "bundle")
    assert "--batch-sizes 1" in error["hint"]


def test_a_batch_beyond_the_memory_is_left_out(cli, tmp_path) -> None:
    bundle = make_bundle(tmp_path / "wide")
    # The graph makes of six numbers more than a million: 4.8 MB a sample.
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [
            helper.make_node("Tile", ["points", "repeats"], ["wide"]),
            helper.make_node("ReduceMax", ["wide"], ["most"], axes=[1], keepdims=1),
            helper.make_node("Expand", ["most", "four"], ["scores"]),
        ],
        "wide",
        [helper.make_tensor_value_info("points", TensorProto.FLOAT, ["N", 6])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 4])],
        [
            helper.make_tensor("repeats", TensorProto.INT64, [2], [1, 200_000]),
            helper.make_tensor("four", TensorProto.INT64, [2], [1, 4]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(bundle / "model.onnx"))
    few = ("--scenario", "batched", "--queries", "2", "--warmup", "10ms")
    options = (*HERE, *few, "--no-accuracy", "--memory", "700MiB", "--json")
    outcome = cli("run", bundle, *options, "--batch-sizes", "1,8,512")
    result = outcome.document()["result"]
    assert [batch["batch_size"] for batch in result["batches"]] == [1, 8], outcome.stderr
    assert (result["search"]["ended"], result["search"]["batch_size"]) == ("memory", 512)
    alone = cli("run", bundle, *options, "--batch-sizes", "512").error(4, "worker-failed")
    assert alone["where"] == "out-of-memory"
    assert "a batch of 512" in alone["message"]


@pytest.mark.parametrize("wrong", ["0", "-1", "1,x", "1.5", "70000", ""])
def test_sizes_that_are_none_are_usage_errors(cli, mini, wrong) -> None:
    error = cli("run", mini, *HERE, "--scenario", "batched", "--batch-sizes", wrong, "--json")
    assert "--batch-sizes" in error.error(2, "usage")["message"]


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_pipeline_tells_how_busy_each_operator_is(record_of, mini, batch_size) -> None:
    record = record_of(mini, "--scenario", "pipeline", "--samples", "200", "--batch-size", str(batch_size))
    result = record["result"]
    assert result["samples"] == result["queries"] == 200
    names = [stage["name"] for stage in result["pipeline"]["stages"]]
    batching = [("predict",), ("batch", "predict", "unbatch")][batch_size > 1]
    assert names == ["load", "tensor", *batching, "answer"]
    items = {stage["name"]: stage["items"] for stage in result["pipeline"]["stages"]}
    assert (items["load"], items["predict"], items["answer"]) == (200, 200 // batch_size, 200)
    assert result["throughput_per_s"] == pytest.approx(result["pipeline"]["samples_per_s"])


def test_a_pipeline_runs_the_code_of_the_bundle_and_blames_it(cli, record_of, tmp_path) -> None:
    pipeline = ("--scenario", "pipeline", "--samples", "100", "--trust", "--no-accuracy")
    good = make_bundle(tmp_path / "good", preprocess="return data * 1")
    stages = record_of(good, *pipeline)["result"]["pipeline"]["stages"]
    assert [stage["name"] for stage in stages][:2] == ["load", "preprocess"]
    # Everything is prepared once before; the pipeline itself meets the trouble later.
    later = "global n\nn = globals().get('n', 0) + 1\nif n > 60: raise RuntimeError('enough')\nreturn data"
    bad = make_bundle(tmp_path / "bad", preprocess=later)
    error = cli("run", bad, *HERE, *pipeline, "--json").error(4, "worker-failed")
    assert (error["where"], error["fault"]) == ("custom-code-failed", "bundle")
    assert "enough" in error["message"]


def test_one_sample_is_enough_for_all_three(record_of, mini) -> None:
    data = np.load(mini / "data.npz")
    np.savez(mini / "data.npz", points=data["points"][:1], labels=data["labels"][:1])
    manifest = mini / "model.yml"
    manifest.write_text(manifest.read_text().replace("samples: 24", "samples: 1"))
    assert record_of(mini, *BATCHED, "--batch-sizes", "1,4")["result"]["optimal"]
    assert record_of(mini, "--scenario", "pipeline", "--samples", "70")["result"]["samples"] == 70
    assert record_of(mini, "--scenario", "cold-start", "--repeats", "1")["result"]["queries"] == 1


def test_cold_starts_are_told_by_phase(record_of, cli, mini, home) -> None:
    record = record_of(mini, "--scenario", "cold-start", "--repeats", "3")
    assert record["validity"] == {"valid": True, "reasons": []}, (
        "three starts are no percentile and are enough"
    )
    cold = record["result"]["cold_start"]
    assert len(cold["starts"]) == 3
    for start in cold["starts"]:
        assert set(start["phases"]) == {"interpreter", "import", "load", "prepare", "answer"}
        assert sum(start["phases"].values()) == start["total_ns"]
        assert start["phases"]["interpreter"] > 5_000_000, "from before Python began"
        assert start["phases"]["import"] > 1_000_000
    assert [part["kind"] for part in record["passes"]] == ["cold-start"] * 3 + ["accuracy"]
    assert record["accuracy"]["value"] == 1.0
    folder = home / "data" / "runs" / record["run_id"]
    spans = np.load(folder / "passes/00-cold-start/spans.npz")
    assert {"interpreter", "import", "answer"} <= set(spans["strings"].tolist())
    assert int(spans["duration_ns"].sum()) == cold["starts"][0]["total_ns"]
