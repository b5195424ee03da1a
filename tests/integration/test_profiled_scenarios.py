"""Each family of scenarios can be profiled: in passes of their own, after what is measured, with as many samples."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from judge import TraceJudge
from support import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "systolic"
HERE = ("--python", sys.executable, "--trust", "--concurrent", "--no-accuracy", "--trace", "framework")


@pytest.mark.parametrize(
    ("scenario", "options", "size", "measured"),
    [
        ("batched", ("--batch-sizes", "1,8", "--queries", "20"), 8, ["batch", "batch"]),
        ("pipeline", ("--samples", "80", "--batch-size", "4"), 4, ["measure"]),
        ("cold-start", ("--repeats", "2"), 1, ["cold-start", "cold-start"]),
        ("poisson", ("--rate", "2000", "--queries", "50", "--warmup", "10ms"), 1, ["warm-up", "measure"]),
    ],
)
def test_layers_of_queries_as_the_scenario_has_them(cli, home, scenario, options, size, measured) -> None:
    record = cli("run", EXAMPLE, *HERE, "--scenario", scenario, *options, "--json").document()
    assert record["status"] == "completed"
    assert [found["kind"] for found in record["passes"]] == [*measured, "profile"]
    (profile,) = record["profiles"]
    assert (profile["batch_size"], profile["notes"]) == (size, [])
    assert profile["layers"] == 2 * profile["queries"]
    folder = home / "data" / "runs" / record["run_id"]
    with np.load(folder / "layers.npz", allow_pickle=False) as layers:
        shapes = {str(layers["strings"][row]) for row in layers["shape_out"]}
    assert shapes == {f"{size}x32", f"{size}x10"}
    with TraceJudge(folder / record["files"]["trace"]) as trace:
        assert trace.losses() == {}
        slices = {s.id: s for s in trace.slices()}
        inner = [s for s in slices.values() if s.category == "framework"]
        assert len(inner) == profile["layers"]
        assert {slices[s.parent].name for s in inner} == {"predict"}
        (phase,) = [s for s in slices.values() if s.name == "profile"]
        assert all(phase.ts <= s.ts and s.ts + s.dur <= phase.ts + phase.dur for s in inner)
