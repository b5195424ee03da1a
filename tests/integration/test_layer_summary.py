"""What `trace summary`, `runs show` and the exports say of layers, and of a run that was stopped while it profiled."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from judge import TraceJudge
from support import ROOT, Cli, command_line
from traced_run import TracedRun

EXAMPLE = ROOT / "docs" / "examples" / "systolic"
HERE = ("--python", sys.executable, "--trust", "--concurrent", "--no-accuracy", "--duration", "200ms")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    """One run of the example with layers and kernels."""
    home = tmp_path_factory.mktemp("profiled")
    done = subprocess.run(
        command_line("run", EXAMPLE, *HERE, "--trace", "system", "--json"),
        capture_output=True,
        text=True,
        env={**os.environ, "MLBUNDLE_HOME": str(home)},
    )
    return TracedRun(home, json.loads(done.stdout)["run_id"])


def test_passes_have_names_and_layers_have_shares(cli: Cli, profiled: TracedRun) -> None:
    document = cli("trace", "summary", "--json", env=profiled.env).document()
    assert {"measure", "profile: framework", "profile: system"} == {row["pass"] for row in document["rows"]}
    assert document["profile"]["pass"] == "profile: framework"
    layers = document["layers"]
    assert len(layers) == 2
    assert [layer["p50_ns"] for layer in layers] == sorted((one["p50_ns"] for one in layers), reverse=True)
    query_ns = document["profile"]["query_p50_ns"]
    assert all(layer["share"] == pytest.approx(layer["p50_ns"] / query_ns) for layer in layers)
    (kind,) = document["types"]
    assert (kind["layers"], kind["p50_ns"]) == (2, sum(layer["p50_ns"] for layer in layers))
    steps = {(row["pass"], row["step"]): row for row in document["rows"]}
    assert steps["profile: framework", "query"]["p50_ns"] == query_ns


def test_tables_of_layers(cli: Cli, profiled: TracedRun) -> None:
    layers = cli("trace", "summary", "--json", env=profiled.env).document()["layers"]
    slowest = layers[0]["original_name"] or layers[0]["name"]
    text = cli("trace", "summary", "--layers", "1", env=profiled.env).stdout
    assert slowest in text
    assert "the 1 slowest of 2 layers, in the pass `profile: framework`" in text
    rows = csv.DictReader(
        io.StringIO(cli("trace", "summary", "--by", "name", "--format", "csv", env=profiled.env).stdout)
    )
    assert [row["p50_ns"] for row in rows] == [str(layer["p50_ns"]) for layer in layers]
    by_type = cli("trace", "summary", "--by", "type", env=profiled.env).stdout.splitlines()
    assert by_type[0].split() == ["type", "layers", "p50", "share"]
    assert len(by_type) == 2
    shown = cli("runs", "show", env=profiled.env).stdout
    assert f"layer {slowest} " in next(line for line in shown.splitlines() if line.startswith("slowest"))


def test_a_run_without_layers_says_how_to_see_them(cli: Cli, traced: TracedRun) -> None:
    done = cli("trace", "summary", "--by", "name", env=traced.env)
    assert (done.status, done.stdout) == (0, "")
    assert "--trace framework" in done.stderr
    assert cli("trace", "summary", "--json", env=traced.env).document()["layers"] == []


def test_a_run_stopped_while_it_profiles_tells_what_it_measured(cli: Cli, home: Path) -> None:
    for attempt in range(1, 6):
        process = subprocess.Popen(
            command_line("run", EXAMPLE, *HERE, "--trace", "framework"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            told = [path.read_text() for path in sorted((home / "data" / "runs").glob("2*/events.jsonl"))]
            if len(told) == attempt and '"profile"' in told[-1]:
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        if process.returncode:
            break  # or we stood still while it profiled, and it came to its end
    assert process.returncode == 130
    record = cli("runs", "show", "latest", "--json").document()
    assert (record["status"], record["result"]) == ("cancelled", None)
    assert record["run_id"] in stderr
    measured = record["seen"]["measured"]
    assert measured["queries"] == record["seen"]["queries"]
    assert 0 < measured["p50_ns"] <= measured["p99_ns"]
    shown = cli("runs", "show", "latest").stdout
    assert "measured" in shown
    assert "the run is cancelled" not in shown
    summary = cli("trace", "summary").stdout
    assert [line.split()[:2] for line in summary.splitlines()][1:4:2] == [
        ["measure", "prepare"],
        ["measure", "predict"],
    ]
    assert "did not come to its end: cancelled in phase profile" in summary
    files = cli("trace", "export", "latest", "--format", "csv", "-o", "tables", "--json").document()["files"]
    assert "spans.csv" in {Path(file["path"]).name for file in files}


def test_the_queries_of_the_guide_answer(profiled: TracedRun) -> None:
    guide = (ROOT / "docs" / "tracing.md").read_text()
    questions = re.findall(r"```sql\n(.*?)```", guide, re.DOTALL)
    record = json.loads((profiled.folder / "record.json").read_text())
    profiles = {one["level"]: one for one in record["profiles"]}
    with TraceJudge(profiled.folder / "trace.pftrace.gz") as trace:
        operators, slowest, layers, types, kernels, levels, facts = (trace.query(sql) for sql in questions)
    assert {row["operator"]: row["n"] for row in operators}["query"] == record["result"]["queries"]
    assert len(slowest) == 10
    assert {row["query"] for row in slowest} <= set(range(record["result"]["queries"]))
    assert sum(row["calls"] for row in layers) == profiles["framework"]["layers"]
    assert sum(row["percent"] for row in layers) == pytest.approx(100)
    assert [row["layers"] for row in types] == [2]
    assert sum(row["calls"] for row in kernels) == profiles["system"]["kernels"]
    found = {row["level"]: (row["queries"], row["median_us"]) for row in levels}
    assert found["measured"][0] == record["result"]["queries"]
    for (level, profile), folder in zip(
        profiles.items(), sorted(profiled.folder.glob("passes/*-profile")), strict=True
    ):
        latencies_ns = np.load(folder / "latencies.npy")
        assert found[level] == (profile["queries"], pytest.approx(np.median(latencies_ns) / 1e3))
        # The record compares the first queries only: the same ones, in whole rounds, as without the profiler.
        assert profile["profiled_p50_ns"] in latencies_ns[: profile["compared_queries"]]
    assert {row["fact"]: row["value"] for row in facts}["run_id"] == profiled.run_id
