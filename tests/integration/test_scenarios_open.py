"""`mlbundle run --scenario poisson` in the process runtime, end to end: drawn, replayed, overloaded, searched for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from support import ROOT, make_bundle

HERE = ("--runtime", "process", "--python", sys.executable, "--no-accuracy", "--trace", "none")
POISSON = ("--scenario", "poisson", "--warmup", "10ms", "--json")


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "mini")


def test_latencies_count_from_arrivals_and_repeats_have_an_interval(cli, mini, home) -> None:
    record = cli(
        *("run", mini, *HERE, *POISSON, "--rate", "1500", "--duration", "600ms", "--repeats", "2"),
        *("--target-latency", "60s"),
    ).document()
    jsonschema.validate(record, json.loads((ROOT / "schemas/run.schema.json").read_text()))
    result = record["result"]
    found = result["poisson"]
    assert found["offered_rate_per_s"] == pytest.approx(1500, rel=0.2)
    assert found["kept"] is True
    assert found["goodput_per_s"] == pytest.approx(result["throughput_per_s"])
    assert result["repeats"]["processes"] == 2
    assert result["percentiles"]["p90_ns"] >= result["latency_ns"]["p90"]

    folder = home / "data" / "runs" / record["run_id"]
    due = np.load(folder / "passes/01-measure/scheduled.npy")
    again = np.load(folder / "passes/03-repeat/scheduled.npy")
    assert len(due) == result["queries"]
    assert (np.diff(due) >= 0).all()
    assert not np.array_equal(np.diff(due)[:50], np.diff(again)[:50]), "a repeat has arrivals of its own"


def test_a_trace_is_replayed_as_it_is(cli, mini, home, tmp_path) -> None:
    trace = tmp_path / "arrivals.txt"
    trace.write_text("0\n0.001\n0.001\n0.0505\n")
    outcome = cli("run", mini, *HERE, *POISSON, "--arrivals", trace)
    assert outcome.status == 1, "four queries are too few for a result"
    record = json.loads(outcome.stdout)
    assert any("at least 662 are needed" in reason for reason in record["validity"]["reasons"])
    due = np.load(home / "data" / "runs" / record["run_id"] / "passes/01-measure/scheduled.npy")
    assert (due - due[0]).tolist() == [0, 1_000_000, 1_000_000, 50_500_000]
    assert record["result"]["poisson"]["arrivals"] == "replayed"


def test_a_rate_that_can_not_be_held_and_a_target_below_the_floor_are_not_valid(cli, mini) -> None:
    outcome = cli(
        *("run", mini, *HERE, *POISSON, "--rate", "2000000", "--queries", "100000"),
        *("--target-latency", "1us"),
    )
    assert outcome.status == 1
    reasons = "; ".join(json.loads(outcome.stdout)["validity"]["reasons"])
    assert "the rate could not be held" in reasons
    assert "no rate can keep to 1.00 us" in reasons


def test_a_peak_is_below_what_the_model_can_at_all(cli, mini) -> None:
    outcome = cli(
        *("run", mini, *HERE, *POISSON, "--find-peak", "--target-latency", "500ms", "--percentile", "90"),
        *("--duration", "200ms"),
    )
    result = json.loads(outcome.stdout)["result"]
    assert result["peak"]["trials"]
    if result["peak"]["rate_per_s"] is not None:
        assert result["poisson"]["kept"] is True
        assert result["peak"]["rate_per_s"] < 1e9 / result["poisson"]["floor_ns"] * 1.5
