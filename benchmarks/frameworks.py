"""The worker against a raw loop of each framework, and a container against a process.

    python benchmarks/frameworks.py [--rounds 15] [--framework NAME ...] [--no-docker] [--json]

First table, in one process for each framework (with the Python of its hash-locked environment): the loop that one
writes by hand, with the framework's own call and two time stamps around it, against the loop of the `online` scenario
with our predictor, in turns, on batches of the digits network that take about 1 ms. The figure is the median over the
rounds of ours / raw. Claim: at most x1.02.

Second table: `mlbundle run` of a small ResNet in a container and as a process, in turns; the figure is the median over
the rounds of p50 in the container / p50 in the process. Claim: at most x1.02. It needs the images of the frameworks
(`mlbundle images build NAME`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CLAIM = 1.02
FRAMEWORKS = ("onnxruntime", "torch", "tensorflow")
ROOT = Path(__file__).resolve().parent.parent
SMALL = ("--set", "size=64", "--set", "width=16")


def environment_python(framework: str) -> Path:
    """Return the Python of a framework's hash-locked environment, made now if need be."""
    from mlbundle.config import load_settings
    from mlbundle.manifest.select import select_lock
    from mlbundle.platforms import this_architecture
    from mlbundle.resources import resource_folder
    from mlbundle.runtime.environments import ensure_environment
    from mlbundle.runtime.images import built_in_framework

    lock = resource_folder("containers").parent / select_lock(
        built_in_framework(framework), this_architecture(), "cpu"
    )
    return ensure_environment(load_settings().cache_dir, framework, lock).python


def loops(framework: str, rounds: int) -> dict[str, Any]:
    """Measure raw loop and ours in the framework's own Python."""
    done = subprocess.run(
        [str(environment_python(framework)), "-s", __file__, "--inner", framework, "--rounds", str(rounds)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "ORT_DISABLE_TELEMETRY": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def inner(framework: str, rounds: int) -> dict[str, Any]:
    """Run in the framework's Python: find a batch of about 1 ms, then both loops in turns."""
    import time

    import numpy as np

    from mlbundle.worker.scenarios.loop import closed_loop, quiet_interpreter

    folder = ROOT / "manifests" / "models" / "digits-cnn"
    images = np.load(folder / "dataset" / "digits.npz")["images"].astype(np.float32)
    predictor, handle, raw_call = OPENERS[framework](folder)

    def batch_of(size: int) -> Any:
        return np.ascontiguousarray(np.resize(images, (size, *images.shape[1:])))

    size = 1
    while size < 4096:
        feed = batch_of(size)
        call = raw_call(feed)
        call()
        times = []
        for _ in range(9):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
        if statistics.median(times) >= 1_000_000:
            break
        size = size * 5 // 4 + 1
    queries = 200
    bound = predictor.prepare(handle, {"input": feed})
    bound_order = [bound] * queries

    def raw() -> float:
        clock = time.monotonic_ns
        latencies = []
        begun = clock()
        for _ in range(queries):
            start = clock()
            call()
            latencies.append(clock() - start)
        return (clock() - begun) / queries

    def ours() -> float:
        return closed_loop(lambda batch: predictor.predict(handle, batch), bound_order, [], []) / queries

    rows = []
    with quiet_interpreter():
        raw(), ours()
        for number in range(rounds):
            functions = (raw, ours) if number % 2 else (ours, raw)
            rows.append({function.__name__: function() for function in functions})
    return {
        "framework": framework,
        "version": handle.facts["version"],
        "batch": size,
        "raw_us": round(statistics.median(row["raw"] for row in rows) / 1e3, 1),
        "ratio": round(statistics.median(row["ours"] / row["raw"] for row in rows), 4),
    }


def options(**more: Any) -> dict[str, Any]:
    inputs = [{"layer_name": "input", "element_type": "float32", "shape": ["N", 1, 8, 8]}]
    outputs = [{"layer_name": "logits", "element_type": "float32", "shape": ["N", 10]}]
    return {
        "threads": 1, "accelerator": "cpu", "trace_level": "none", "scratch": tempfile.gettempdir(),
        "inputs": inputs, "outputs": outputs, **more,
    }  # fmt: skip


def open_onnxruntime(folder: Path) -> tuple[Any, Any, Any]:
    from mlbundle.worker.predictors.onnx_runtime import OnnxRuntimePredictor

    predictor = OnnxRuntimePredictor()
    handle = predictor.open({"graph": str(folder / "model.onnx")}, options())
    session = handle.session

    def raw_call(batch: Any) -> Any:
        feeds = {"input": batch}
        return lambda: session.run(None, feeds)

    return predictor, handle, raw_call


def open_torch(folder: Path) -> tuple[Any, Any, Any]:
    import torch

    from mlbundle.worker.predictors.torch_ import TorchPredictor

    predictor = TorchPredictor()
    graph = str(folder / "torch" / "model.pt")
    handle = predictor.open({"graph": graph}, options())
    module = torch.jit.load(graph).eval()

    def raw_call(batch: Any) -> Any:
        tensor = torch.from_numpy(batch)

        def call() -> Any:
            with torch.inference_mode():
                return module(tensor).numpy()

        return call

    return predictor, handle, raw_call


def open_tensorflow(folder: Path) -> tuple[Any, Any, Any]:
    import tensorflow as tf

    from mlbundle.worker.predictors.tensorflow_ import TensorFlowPredictor

    predictor = TensorFlowPredictor()
    graph = str(folder / "tensorflow" / "saved_model")
    handle = predictor.open({"graph": graph}, options())
    # A session of its own with the same threads: what one writes who does not use eager signatures.
    v1 = tf.compat.v1
    config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=-1)
    session = v1.Session(graph=tf.Graph(), config=config)
    with session.graph.as_default():
        meta = v1.saved_model.loader.load(session, ["serve"], graph)
    signature = meta.signature_def["serving_default"]
    (fed,) = signature.inputs.values()
    (fetched,) = signature.outputs.values()
    function = session.make_callable([fetched.name], [fed.name])

    def raw_call(batch: Any) -> Any:
        return lambda: function(batch)

    return predictor, handle, raw_call


OPENERS = {"onnxruntime": open_onnxruntime, "torch": open_torch, "tensorflow": open_tensorflow}


def runtimes(framework: str, model: Path, rounds: int) -> dict[str, Any]:
    """Run a model in a container and as a process, in turns."""
    rows = []
    for number in range(rounds):
        row = {}
        for runtime in ("docker", "process") if number % 2 else ("process", "docker"):
            done = subprocess.run(
                [
                    sys.executable, "-m", "mlbundle.cli.main", "run", str(model), "--framework", framework,
                    "--runtime", runtime, "--trust", "--no-accuracy", "--trace", "none", "--duration", "2s",
                    "--cpus", "0", "--json",
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=False,
            )  # fmt: skip
            record = json.loads(done.stdout)
            if not record.get("result"):
                raise SystemExit(record.get("message"))
            row[runtime] = record["result"]["latency_ns"]["p50"]
        rows.append(row)
    return {
        "framework": framework,
        "process_us": round(statistics.median(row["process"] for row in rows) / 1e3, 1),
        "ratio": round(statistics.median(row["docker"] / row["process"] for row in rows), 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--runs", type=int, default=5, help="rounds of the second table")
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS)
    parser.add_argument("--no-docker", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inner", choices=FRAMEWORKS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inner:
        print(json.dumps(inner(arguments.inner, arguments.rounds)))
        return 0
    from mlbundle.platforms import machine_facts

    chosen = arguments.framework or FRAMEWORKS
    first = [loops(framework, arguments.rounds) for framework in chosen]
    second = []
    if not arguments.no_docker:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "resnet"
            subprocess.run(
                [sys.executable, "-m", "mlbundle.cli.main", "generate", "resnet50", "-o", str(model), *SMALL],
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            second = [runtimes(framework, model, arguments.runs) for framework in chosen]
    facts = machine_facts()
    holds = all(row["ratio"] <= CLAIM for row in (*first, *second))
    result = {
        "benchmark": "frameworks", "claim": CLAIM, "holds": holds, "loops": first, "runtimes": second,
        "machine": f"{facts.cpu_model}, {facts.cpu_usable} CPUs",
    }  # fmt: skip
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0 if holds else 1
    print(f"machine  {result['machine']}")
    for row in first:
        print(
            f"{row['framework']:<12} {row['version']:<12} batch {row['batch']:<5} raw {row['raw_us']:>8} us   "
            f"online / raw x{row['ratio']:.3f}"
        )
    for row in second:
        print(
            f"{row['framework']:<12} process {row['process_us']:>8} us   docker / process x{row['ratio']:.3f}"
        )
    print(f"claim: <= x{CLAIM}: {'holds' if holds else 'DOES NOT HOLD'}")
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
