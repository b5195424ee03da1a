"""What tracing costs: the level `model` on what is measured, and profiled passes beside the framework's own profiler.

    python benchmarks/tracing.py [--rounds 7] [--framework NAME ...] [--model digits|resnet ...] [--json]

First table: `mlbundle run` of a model that spins for 50 us, online, with `--trace none` and `--trace model` in turns.
The figures are medians over the rounds: p50 with the trace / p50 without it, and time a query (from the throughput of
the measured pass, so with all that lies between queries) likewise. Claim: both at most x1.01.

Second table: the queries of `profile:framework` (`mlbundle run --trace framework`) against a loop that one writes by
hand, in the same hash-locked environment, on the same CPU, with the framework's own profiler on: ONNX Runtime's
`enable_profiling`, `torch.profiler`, `RunOptions.SOFTWARE_TRACE` with a `RunMetadata` for each call. The figure is the
median over the rounds of ours p50 / by hand p50. Claim: at most x1.05. `profiled` is how much slower ours is for being
profiled at all, as every run prints it. The models are the digits network and ResNet-50 at 64 x 64 with width 16.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from frameworks import FRAMEWORKS, ROOT, SMALL, environment_python
from harness import make_model

if TYPE_CHECKING:
    from collections.abc import Callable

SPIN_US, SPIN_QUERIES = 50, 20_000
MODEL_CLAIM, PROFILE_CLAIM = 1.01, 1.05
CPU = 0
SHAPES = {"digits": (1, 1, 8, 8), "resnet": (1, 3, 64, 64)}
GRAPHS = {
    "digits": {
        "onnxruntime": "model.onnx",
        "torch": "torch/model.pt",
        "tensorflow": "tensorflow/saved_model",
    },
    "resnet": {
        "onnxruntime": "onnx/model.onnx",
        "torch": "torch/model.pt",
        "tensorflow": "tensorflow/saved_model",
    },
}
# As a profiled pass does it (mlbundle/worker/profiling.py).
WARM_UP_S, LEAST_RUNS, MOST_RUNS, BUDGET_S = 0.3, 5, 100, 1.0
BATCHES = 16


def mlbundle(*arguments: str) -> dict[str, Any]:
    """Run the command and return its record."""
    done = subprocess.run(
        [sys.executable, "-m", "mlbundle.cli.main", *arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    record: dict[str, Any] = json.loads(done.stdout)
    if not record.get("result"):
        raise SystemExit(record.get("message") or f"mlbundle {' '.join(arguments)} failed")
    return record


def run(model: Path, *options: str) -> dict[str, Any]:
    common = ("--runtime", "process", "--trust", "--no-accuracy", "--cpus", str(CPU))
    return mlbundle("run", str(model), *common, *options)


def at_model_level(model: Path, rounds: int) -> dict[str, Any]:
    """Run with and without a trace in turns."""
    rows = []
    for number in range(rounds):
        row = {}
        for level in ("none", "model") if number % 2 else ("model", "none"):
            result = run(model, "--queries", str(SPIN_QUERIES), "--trace", level)["result"]
            row[level] = {"p50": result["latency_ns"]["p50"], "each": 1 / result["throughput_per_s"]}
        rows.append({key: row["model"][key] / row["none"][key] for key in ("p50", "each")})
    return {key: round(statistics.median(row[key] for row in rows), 4) for key in ("p50", "each")} | {
        "rounds": [{key: round(value, 4) for key, value in row.items()} for row in rows]
    }


def at_framework_level(folder: Path, model: str, framework: str, rounds: int) -> dict[str, Any]:
    """Run ours and the loop by hand in turns."""
    ours, raw = [], []
    for number in range(rounds):
        for is_ours in (True, False) if number % 2 else (False, True):
            if is_ours:
                ours.append(profiled_pass(folder, framework))
            else:
                raw.append(by_hand(folder / GRAPHS[model][framework], model, framework))
    ratios = [one["profiled"] / other for one, other in zip(ours, raw, strict=True)]
    return {
        "framework": framework,
        "model": model,
        "raw_us": round(statistics.median(raw) / 1e3, 1),
        "ratio": round(statistics.median(ratios), 4),
        "profiled": round(statistics.median(one["profiled"] / one["unprofiled"] for one in ours), 3),
        "rounds": [round(ratio, 4) for ratio in ratios],
    }


def profiled_pass(folder: Path, framework: str) -> dict[str, float]:
    """Return the medians in ns of the queries of `profile:framework`, with the profiler and without it."""
    from mlbundle.config import load_settings

    record = run(folder, "--framework", framework, "--trace", "framework", "--queries", "50")
    (place,) = (load_settings().runs_dir / record["run_id"] / "passes").glob("*-profile")
    return {
        "profiled": float(np.median(np.load(place / "latencies.npy"))),
        "unprofiled": float(np.median(np.load(place / "unprofiled.npy"))),
    }


def by_hand(graph: Path, model: str, framework: str) -> float:
    """Return the median in ns of a loop in the framework's own Python, with its profiler on."""
    done = subprocess.run(
        [str(environment_python(framework)), "-s", __file__, "--inner", framework, str(graph), model],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{framework} by hand failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.splitlines()[-1])


def inner(framework: str, graph: str, model: str) -> float:
    """Run in the framework's Python: warm up, begin to profile, time queries."""
    os.sched_setaffinity(0, {CPU})
    draw = np.random.default_rng(0)
    batches = [draw.random(SHAPES[model], np.float32) for _ in range(BATCHES)]
    with tempfile.TemporaryDirectory() as folder:
        call, begin, end = LOOPS[framework](graph, Path(folder) / "events")
        order = itertools.cycle(batches)
        took: list[int] = []
        until = time.monotonic() + WARM_UP_S
        while len(took) < LEAST_RUNS or time.monotonic() < until:
            took.append(timed(call, next(order)))
        each_s = statistics.median(took[len(took) // 2 :]) / 1e9
        begin()
        found = [
            timed(call, next(order)) for _ in range(int(max(LEAST_RUNS, min(MOST_RUNS, BUDGET_S / each_s))))
        ]
        end()
    return statistics.median(found)


def timed(call: Callable[[Any], Any], batch: Any) -> int:
    begun = time.monotonic_ns()
    call(batch)
    return time.monotonic_ns() - begun


_Loop = tuple["Callable[[Any], Any]", "Callable[[], Any]", "Callable[[], Any]"]


def onnxruntime_loop(graph: str, events: Path) -> _Loop:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(events)
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda batch: session.run(None, {name: batch}), lambda: None, session.end_profiling


def torch_loop(graph: str, _: Path) -> _Loop:
    import torch

    torch.set_num_threads(1)
    module = torch.jit.load(graph).eval()

    def call(batch: Any) -> Any:
        with torch.inference_mode():
            return module(torch.from_numpy(batch)).numpy()

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        pass  # the first one is slow to begin
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    return call, profiler.__enter__, lambda: profiler.__exit__(None, None, None)


def tensorflow_loop(graph: str, _: Path) -> _Loop:
    import tensorflow as tf

    v1 = tf.compat.v1
    config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=-1)
    session = v1.Session(graph=tf.Graph(), config=config)
    with session.graph.as_default():
        meta = v1.saved_model.loader.load(session, ["serve"], graph)
    signature = meta.signature_def["serving_default"]
    (fed,), (fetched,) = signature.inputs.values(), signature.outputs.values()
    function = session.make_callable([fetched.name], [fed.name], accept_options=True)
    options = v1.RunOptions(trace_level=v1.RunOptions.SOFTWARE_TRACE)
    kept = []

    def call(batch: Any) -> Any:
        kept.append(v1.RunMetadata())
        return function(batch, options=options, run_metadata=kept[-1])

    return call, kept.clear, lambda: None


LOOPS: dict[str, Callable[[str, Path], _Loop]] = {
    "onnxruntime": onnxruntime_loop,
    "torch": torch_loop,
    "tensorflow": tensorflow_loop,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS)
    parser.add_argument("--model", action="append", choices=tuple(SHAPES))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inner", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inner:
        print(inner(*arguments.inner))
        return 0
    from mlbundle.platforms import machine_facts

    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as scratch:
        spins, resnet = Path(scratch) / "spins", Path(scratch) / "resnet"
        make_model(spins, SPIN_US)
        folders = {"digits": ROOT / "manifests" / "models" / "digits-cnn", "resnet": resnet}
        chosen = arguments.model or tuple(SHAPES)
        if "resnet" in chosen:
            generate = [sys.executable, "-m", "mlbundle.cli.main", "generate", "resnet50", "-o", str(resnet)]
            subprocess.run([*generate, *SMALL], check=True, capture_output=True)
        first = at_model_level(spins, arguments.rounds)
        second = []
        for model in chosen:
            for framework in arguments.framework or FRAMEWORKS:
                second.append(at_framework_level(folders[model], model, framework, arguments.rounds))
                loads.append(os.getloadavg()[0])
    facts = machine_facts()
    holds = max(first["p50"], first["each"]) <= MODEL_CLAIM and all(
        row["ratio"] <= PROFILE_CLAIM for row in second
    )
    machine = f"{facts.cpu_model}, {facts.cpu_usable} CPUs, load {min(loads):.1f} to {max(loads):.1f}"
    if arguments.json:
        found = {
            "benchmark": "tracing",
            "machine": machine,
            "holds": holds,
            "model": first,
            "framework": second,
        }
        print(json.dumps(found, indent=2))
        return 0 if holds else 1
    print(f"machine  {machine}")
    print(
        f"online, {SPIN_US} us a query: --trace model / none: p50 x{first['p50']:.4f}, "
        f"time a query x{first['each']:.4f}   claim: <= x{MODEL_CLAIM}"
    )
    for row in second:
        print(
            f"{row['framework']:<12} {row['model']:<8} by hand, profiled {row['raw_us']:>9,} us   "
            f"profile:framework / by hand x{row['ratio']:.3f}   claim: <= x{PROFILE_CLAIM}   "
            f"profiled / not x{row['profiled']:.2f}"
        )
        print(f"{'':<12} rounds {row['rounds']}")
    print("all claims hold" if holds else "NOT ALL CLAIMS HOLD")
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
