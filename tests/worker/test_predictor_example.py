"""The worked example in the documentation: a bundle with a predictor of its own."""

from __future__ import annotations

import sys

import numpy as np
from judge import TraceJudge
from support import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "systolic"
HERE = ("--python", sys.executable, "--queries", "500", "--warmup", "10ms")
CYCLES, CLOCK_HZ = 480, 10_000_000


def test_the_example_runs_as_its_readme_says(cli) -> None:
    record = cli("run", EXAMPLE, *HERE, "--trust", "--json").document()
    assert record["status"] == "completed"
    assert record["framework"]["name"] == "systolic"
    assert record["accuracy"]["passed"] is True
    assert record["accuracy"]["value"] == 115 / 120
    assert record["profiles"] == [], "no profiler runs where none was asked for"
    facts = record["environment"]["framework"]
    assert facts["device"] == "systolic array 16 x 16 at 10 MHz (simulated)"
    assert facts["cycles_for_one_sample"] == CYCLES
    assert record["result"]["latency_ns"]["min"] >= CYCLES / CLOCK_HZ * 1e9, "no faster than the array"


def test_it_is_a_program_and_wants_trust(cli) -> None:
    cli("run", EXAMPLE, *HERE, "--json").error(3, "trust-required")


def test_an_accelerator_it_does_not_have_is_told_in_its_own_words(cli) -> None:
    outcome = cli("run", EXAMPLE, *HERE, "--trust", "--accelerator", "gpu", "--json")
    assert "simulated on the CPU" in outcome.stdout
    assert outcome.status == 3, outcome.stdout


def test_it_is_short() -> None:
    predictor, _, profiler = (EXAMPLE / "predictor.py").read_text().partition("class Profiler(")
    assert len(predictor.splitlines()) < 115
    assert len(profiler.splitlines()) < 80


def columns(path) -> dict[str, list]:
    """The columns of a table, texts as texts."""
    with np.load(path, allow_pickle=False) as table:
        strings = table["strings"].tolist()
        texts = {"name", "original_name", "type", "kind", "device", "shape_in", "shape_out", "grid"}
        return {
            name: [strings[i] for i in table[name]] if name in texts else table[name].tolist()
            for name in table.files
            if name != "strings"
        }


def test_its_profiler_shows_layers_and_what_the_array_did_for_them(cli, home) -> None:
    options = (*HERE, "--trust", "--concurrent", "--no-accuracy", "--trace", "full", "--json")
    record = cli("run", EXAMPLE, *options).document()
    profiles = {found["level"]: found for found in record["profiles"]}
    assert {level: found["kernels"] for level, found in profiles.items()} == {
        "framework": 0,
        "system": 20 * profiles["system"]["queries"],
    }
    assert all(found["notes"] == [] for found in profiles.values())
    folder = home / "data" / "runs" / record["run_id"]
    layers, kernels = columns(folder / "layers.npz"), columns(folder / "kernels.npz")
    queries = sum(found["queries"] for found in profiles.values())
    assert layers["name"] == ["product_0", "product_1"] * queries
    assert layers["shape_in"][:2] == ["1x64, 64x32", "1x32, 32x10"]
    assert layers["flops"][:2] == [2 * 64 * 32, 2 * 32 * 10]
    assert sum(layers["duration_ns"][:2]) == CYCLES / CLOCK_HZ * 1e9
    assert sum(kernels["duration_ns"][:20]) == CYCLES / CLOCK_HZ * 1e9
    assert kernels["layer_index"][:20] == [0] * 16 + [1] * 4
    with TraceJudge(folder / record["files"]["trace"]) as trace:
        assert trace.losses() == {}
        (linked,) = trace.query(
            "select count(*) as n from flow join slice a on a.id = slice_out join slice b on b.id = slice_in "
            "where a.category = 'framework' and b.category = 'system' and a.ts <= b.ts "
            "and b.ts + b.dur <= a.ts + a.dur"
        )
        assert linked["n"] == len(kernels["name"]), "each kernel has an arrow from the layer that it ran for"
        streams = trace.query(
            "select distinct t.name from slice s join track t on s.track_id = t.id where s.category = 'system'"
        )
        assert {row["name"] for row in streams} == {"array stream 0", "array stream 1"}
