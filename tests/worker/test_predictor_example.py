"""The worked example in the documentation: a bundle with a predictor of its own."""

from __future__ import annotations

import sys

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
    assert len((EXAMPLE / "predictor.py").read_text().splitlines()) < 100
