"""Every scenario on the digits model in a real container, from the command line, with one JSON document each."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from mlbundle.resources import load_schema
from mlbundle.wire.scenarios import SCENARIOS

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("in_image_home")]

SHORT = {
    "online": ("--duration", "300ms"),
    "batched": ("--duration", "100ms", "--batch-sizes", "1,4,16"),
    "poisson": ("--rate", "200", "--duration", "1s"),
    "pipeline": ("--duration", "500ms"),
    "cold-start": ("--repeats", "2"),
    "server": ("--quick", "--rate", "200"),
}
# The part of a result that a scenario adds, and LoadGen's name of those that are LoadGen's.
PART = {"batched": "batches", "poisson": "poisson", "pipeline": "pipeline", "cold-start": "cold_start"}


@pytest.mark.parametrize("spec", SCENARIOS, ids=lambda spec: spec.name)
def test_every_scenario_runs_in_a_container(cli, spec) -> None:
    options = SHORT.get(spec.name, ("--quick",))
    done = cli("run", "digits-cnn", "--runtime", "docker", "--scenario", spec.name, *options, "--json")
    # 0 or 1: a busy machine may make a result invalid, and then it says why.
    assert done.status in {0, 1}, done.stderr + done.stdout
    record = json.loads(done.stdout)
    assert list(Draft202012Validator(load_schema("run")).iter_errors(record)) == []
    assert record["status"] == "completed"
    assert record["runtime"] == "docker"
    assert record["scenario"]["name"] == spec.name
    assert record["accuracy"]["passed"] is True
    assert record["validity"]["valid"] or record["validity"]["reasons"]
    result = record["result"]
    assert result["throughput_per_s"] > 0
    assert result["latency_ns"]["p50"] > 0
    if spec.name in PART:
        assert result[PART[spec.name]]
    if spec.loadgen is not None:
        assert result["loadgen"]["scenario"] == spec.loadgen
        assert result["loadgen"]["submission_valid"] is False, "quick is never valid for a submission"
