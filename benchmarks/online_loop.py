"""The `online` loop against a raw `session.run` loop, interleaved in one process on the digits model.

    python benchmarks/online_loop.py [--rounds 21] [--queries 4000]

The raw loop is what one would write by hand: it takes its own two time stamps around `session.run(None, feeds)` and
keeps them. Ours is the loop of the `online` scenario with the predictor's prepared batches. Each round runs both, in
alternating order; the figure is the median over the rounds of ours / raw (wall time a query). A third column is ours
around the same unbound `session.run`, which shows what the loop alone costs. The claim: at most x1.02.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime

from mlbundle.platforms import machine_facts
from mlbundle.resources import resource_folder
from mlbundle.worker.predictors.onnx_runtime import OnnxRuntimePredictor
from mlbundle.worker.scenarios.loop import closed_loop, loop_overhead_ns, quiet_interpreter

CLAIM = 1.02


def raw_loop(session: onnxruntime.InferenceSession, feeds: list[dict[str, np.ndarray]]) -> float:
    """Wall time a query in ns of the loop one writes by hand."""
    clock = time.monotonic_ns
    latencies = []
    begun = clock()
    for feed in feeds:
        start = clock()
        session.run(None, feed)
        latencies.append(clock() - start)
    return (clock() - begun) / len(feeds)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--queries", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    folder = resource_folder("manifests") / "models" / "digits-cnn"
    images = np.load(folder / "dataset" / "digits.npz")["images"].astype(np.float32)
    predictor = OnnxRuntimePredictor()
    handle = predictor.open({"graph": str(folder / "model.onnx")}, {"threads": 1})
    singles = [np.ascontiguousarray(images[i : i + 1]) for i in range(len(images))]
    feeds = [{handle.input_names[0]: single} for single in singles]
    bound = [predictor.prepare(handle, feed) for feed in feeds]
    order = [i % len(feeds) for i in range(arguments.queries)]
    feed_order, bound_order = [feeds[i] for i in order], [bound[i] for i in order]
    session = handle.session

    def ours() -> float:
        return closed_loop(lambda batch: predictor.predict(handle, batch), bound_order, [], []) / len(order)

    def ours_unbound() -> float:
        return closed_loop(lambda feed: session.run(None, feed), feed_order, [], []) / len(order)

    def raw() -> float:
        return raw_loop(session, feed_order)

    rows = []
    with quiet_interpreter():
        for function in (raw, ours, ours_unbound):
            function()
        for round_number in range(arguments.rounds):
            functions = [raw, ours, ours_unbound]
            if round_number % 2:
                functions.reverse()
            times = {function.__name__: function() for function in functions}
            rows.append(times)
    ratio = statistics.median(row["ours"] / row["raw"] for row in rows)
    unbound_ratio = statistics.median(row["ours_unbound"] / row["raw"] for row in rows)
    raw_ns = statistics.median(row["raw"] for row in rows)
    facts = machine_facts()
    result = {
        "benchmark": "online_loop",
        "ratio": round(ratio, 4),
        "ratio_unbound": round(unbound_ratio, 4),
        "raw_ns": round(raw_ns),
        "loop_overhead_ns": round(loop_overhead_ns()),
        "claim": CLAIM,
        "holds": ratio <= CLAIM,
        "rounds": arguments.rounds,
        "queries": arguments.queries,
        "machine": f"{facts.cpu_model}, {facts.cpu_usable} CPUs, Python {platform.python_version()}, "
        f"onnxruntime {onnxruntime.__version__}",
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        print(f"machine            {result['machine']}")
        print(f"raw session.run    {raw_ns / 1e3:.2f} us a query (median of {arguments.rounds} rounds)")
        print(f"online / raw       x{ratio:.3f}  (claim: <= x{CLAIM})")
        print(f"  unbound          x{unbound_ratio:.3f}  (the same loop around session.run itself)")
        print(f"loop alone         {result['loop_overhead_ns']} ns a query")
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
