"""What a run's record says of the resources it used, seen from outside."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from support import Cli, make_bundle

from mlbundle.resources import load_schema

PROCESS = ("--runtime", "process", "--python", sys.executable)
SHORT = ("--duration", "1200ms", "--warmup", "10ms", "--trace", "none", "--concurrent", "--json")


def only_run(home: Path) -> tuple[dict[str, Any], Path]:
    (folder,) = (home / "data" / "runs").glob("2*")
    return json.loads((folder / "record.json").read_text()), folder


def test_a_record_says_what_the_worker_used(cli: Cli, home: Path, tmp_path: Path) -> None:
    cli("run", make_bundle(tmp_path / "mini"), *PROCESS, *SHORT)
    record, folder = only_run(home)
    jsonschema.validate(record, load_schema("run"))
    used = record["resources"]
    assert 0 < used["cpu_share_mean"] < 2
    assert 0 < used["measure"]["cpu_share_mean"] < 2
    assert used["memory_peak_bytes"] > 20 << 20
    assert used["memory_mean_bytes"] <= used["memory_peak_bytes"]
    assert used["processes_peak"] == 2, "the supervisor and the process that measures"
    assert used["sampling"]["cpu_share"] > 0, "how much it was is shown by benchmarks/harness.py"
    assert used["sampling"]["samples"] <= 10 * used["sampling"]["duration_s"] + 2
    assert record["files"]["samples"] == "samples.npz"
    with np.load(folder / "samples.npz", allow_pickle=False) as file:
        assert len(file["counter"]) == len(file["t_ns"]) == len(file["value"]) > 20
        times, names = file["t_ns"], file["strings"].tolist()
        assert {"cpu_time_s", "memory_bytes", "context_switches_voluntary"} <= set(names)
        assert file["counter"].max() < len(names)
        rows = file["counter"] == names.index("cpu_time_s")
        cpu_s, took_s = np.ptp(file["value"][rows]), np.ptp(times[rows]) / 1e9
        assert used["cpu_share_mean"] == pytest.approx(cpu_s / took_s, rel=1e-3)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    begun = next(event["t_ns"] for event in events if event.get("name") == "create")
    assert begun <= times.min() <= times.max() <= events[-1]["t_ns"], "one clock"
    counters = [event for event in events if event["kind"] == "counter"]
    assert {event["name"] for event in counters} == {"cpu", "memory"}
    assert {event["source"] for event in counters} == {"host"}
    most = 2 * (counters[-1]["t_ns"] - counters[0]["t_ns"]) / 1e9 + 1
    assert max(Counter(event["name"] for event in counters).values()) <= most


def test_a_run_that_fails_keeps_its_samples(cli: Cli, home: Path, tmp_path: Path) -> None:
    code = "import time\ntime.sleep(0.3)\nraise RuntimeError('no')"
    cli("run", make_bundle(tmp_path / "raises", preprocess=code), *PROCESS, "--trust", *SHORT).error(
        4, "worker-failed"
    )
    record, folder = only_run(home)
    assert record["resources"]["memory_peak_bytes"] > 0
    assert (folder / record["files"]["samples"]).is_file()
    assert record["seen"]["phase"] == "load"


@pytest.mark.engine
def test_a_container_is_seen_through_its_control_group(cli: Cli, in_image_home: Path) -> None:
    record = cli("run", "digits-cnn", "--runtime", "docker", *SHORT).document()
    used = record["resources"]
    assert used["processes_peak"] == 2
    assert used["cgroup_memory_peak_bytes"] > 20 << 20
    assert used["throttled_s"] >= 0
    assert 0 < used["measure"]["cpu_share_mean"] < 2
    assert used["sampling"]["cpu_share"] > 0, "how much it was is shown by benchmarks/harness.py"
