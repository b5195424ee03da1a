"""The trace of a real run, asked of Perfetto's own trace processor: what the worker saw is what comes back."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
from judge import TraceJudge

HERE = ("--runtime", "process", "--python", sys.executable)


def test_the_trace_of_a_run_holds_every_span_phase_flow_and_counter(cli, home) -> None:
    record = cli("run", "digits-png", *HERE, "--duration", "1200ms", "--json").document()
    folder = home / "data" / "runs" / record["run_id"]
    put_in: Counter[str] = Counter()
    for path in folder.glob("passes/*/spans.npz"):
        with np.load(path, allow_pickle=False) as spans:
            put_in.update(str(spans["strings"][i]) for i in spans["name"])
    latencies = np.load(folder / "passes/01-measure/latencies.npy")

    with TraceJudge(folder / record["files"]["trace"]) as trace:
        assert trace.losses() == {}
        slices = trace.slices()
        came_out = Counter(s.name for s in slices if s.category == "model")
        assert came_out == put_in
        assert {"decode", "resize", "normalize", "predict", "argsort"} <= set(came_out)
        queries = [s for s in slices if s.name == "query"]
        assert [s.dur for s in queries] == list(latencies[: len(queries)]), "a query's slice is its latency"
        inner = {s.parent: s for s in slices if s.name == "predict" and s.depth > 0}
        assert all(inner[q.id].ts == q.ts for q in queries)
        phases = {s.name for s in slices if s.category == "phase"}
        assert {
            "plan",
            "environment",
            "create",
            "start",
            "load",
            "warm-up",
            "measure",
            "accuracy",
            "collect",
        } <= phases
        assert all(s.dur >= 0 for s in slices), "no slice is left open"
        (run,) = [s for s in slices if s.name == "run"]
        assert run.args["manifest_digest"] == record["bundle"]["manifest_digest"]
        (flows,) = trace.query("select count(*) as n from flow")
        # Each traced query is tied to its predict, each sample of the accuracy pass to its next operator.
        assert flows["n"] >= len(queries) + 360 * 5
        counters = trace.query("select distinct t.name from counter c join track t on c.track_id = t.id")
        assert {"throughput", "p50", "p99"} <= {row["name"] for row in counters}
        # One clock: every span of the worker lies inside the run, every query inside the phase that measured it.
        (measure,) = [s for s in slices if s.name == "measure"]
        assert all(measure.ts <= q.ts and q.ts + q.dur <= measure.ts + measure.dur for q in queries)
        assert all(run.ts <= s.ts for s in slices)


def test_the_summary_says_where_the_time_went(cli) -> None:
    record = cli("run", "digits-png", *HERE, "--duration", "200ms", "--json").document()
    rows = cli("trace", "summary", "--json").document()["rows"]
    steps = {(row["pass"], row["step"]): row for row in rows}
    assert steps["accuracy", "decode"]["count"] == 360
    assert steps["accuracy", "argsort"]["p50_ns"] > 0
    assert steps["measure", "query"]["count"] == min(20_000, record["result"]["queries"])
    assert "decode" in cli("trace", "summary", record["run_id"]).stdout


def test_a_run_without_a_trace_has_no_summary(cli) -> None:
    cli("run", "digits-cnn", *HERE, "--duration", "200ms", "--trace", "none")
    error = cli("trace", "summary", "--json").error(2, "reference-not-found")
    assert "--trace model" in error["hint"]
