"""What a run says of its environment, on this machine and in a real container, and how two runs are compared."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support import make_bundle

from mlbundle.platforms import usable_cpus

SHORT = ("--duration", "300ms", "--warmup", "10ms")
HERE = ("--runtime", "process", "--python", sys.executable, *SHORT)


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """A home with two runs of one bundle that differ in their threads; the command line for it."""
    import subprocess

    from support import Outcome, command_line

    folder = tmp_path_factory.mktemp("two-runs")
    variables = {
        "MLBUNDLE_HOME": str(folder / "home"),
        "LD_LIBRARY_PATH": f"{Path.home()}/lib",
        "OMP_NUM_THREADS": "64",
        "OMP_SECRET": "hunter2",
    }

    def run(*arguments):
        done = subprocess.run(
            command_line(*arguments), capture_output=True, text=True, env={**os.environ, **variables}
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    bundle = make_bundle(folder / "mini")
    records = [run("run", bundle, *HERE, "--threads", n, "--json").document() for n in ("1", "2")]
    return run, records


def test_a_record_tells_on_what_it_ran(two_runs) -> None:
    environment = two_runs[1][0]["environment"]
    machine, worker = environment["machine"], environment["worker"]
    assert machine["cpu"]["flags"]
    assert machine["gpus"] is None
    assert worker["variables"]["OMP_NUM_THREADS"] == "1"
    assert worker["variables"]["LD_LIBRARY_PATH"] == "~/lib"
    assert environment["emulated"] is False
    assert environment["engine"] is None
    assert environment["cpus_used"]["count"] == len(usable_cpus())
    assert set(environment["state"]) == {"before", "after"}
    assert environment["framework"], "the predictor says what it took"
    for notice in environment["warnings"]:
        assert notice["reference"]
        assert notice["hint"]
    assert "hunter2" not in json.dumps(two_runs[1])


def test_a_record_stays_small(two_runs) -> None:
    assert len(json.dumps(two_runs[1][0])) < 100_000


def test_the_environment_is_shown(two_runs) -> None:
    run, (record, _) = two_runs
    shown = run("runs", "show", record["run_id"], "--environment")
    assert shown.status == 0
    assert record["environment"]["machine"]["cpu_model"] in shown.stdout
    assert "numpy" in shown.stdout
    document = run("runs", "show", record["run_id"], "--environment", "--json").document()
    assert document["schema"] == "mlbundle/run-environment/v1"
    assert document["environment"] == record["environment"]


def test_two_runs_are_compared(two_runs) -> None:
    run, (one, two) = two_runs
    outcome = run("runs", "diff", one["run_id"], two["run_id"], "--json")
    assert outcome.status == 1
    document = outcome.document()
    assert document["same_conditions"] is False
    found = {change["place"]: change for change in document["changes"]}
    threads = found["/environment/limits/threads"]
    assert (threads["left"], threads["right"], threads["ratio"]) == (1, 2, 2.0)
    sections = [change["section"] for change in document["changes"]]
    assert sections.index("limits") < sections.index("result")
    assert "/started_at" not in found
    everything = run("runs", "diff", one["run_id"], two["run_id"], "--all", "--json").document()
    assert "/started_at" in {change["place"] for change in everything["changes"]}
    table = run("runs", "diff", one["run_id"], two["run_id"]).stdout
    assert table.splitlines()[0].split() == ["section", "what", one["run_id"], two["run_id"], "ratio"]


def test_a_run_and_itself_do_not_differ(two_runs) -> None:
    run, (one, _) = two_runs
    outcome = run("runs", "diff", one["run_id"], one["run_id"])
    assert (outcome.status, outcome.stdout.strip()) == (0, "no difference")


def test_a_run_that_is_not_there_can_not_be_compared(cli) -> None:
    cli("runs", "diff", "nothing", "nowhere", "--json").error(2, "reference-not-found")


def test_too_many_threads_are_warned_of_and_recorded(cli, home, tmp_path) -> None:
    many = str(len(usable_cpus()) + 1)
    outcome = cli("run", make_bundle(tmp_path / "mini"), *HERE, "--no-accuracy", "--threads", many, "--json")
    record = outcome.document()
    assert "more-threads-than-cpus" in {w["reference"] for w in record["environment"]["warnings"]}
    assert f"{many} threads are asked for" in outcome.stderr
    events = (home / "data" / "runs" / record["run_id"] / "events.jsonl").read_text().splitlines()
    kinds = [(event["kind"], event.get("reference"), event.get("name")) for event in map(json.loads, events)]
    # The machine is looked at before the worker is there: not while it measures.
    assert kinds.index(("warning", "more-threads-than-cpus", None)) < kinds.index(("phase", None, "create"))


@pytest.mark.engine
def test_a_container_s_limits_are_told_as_it_sees_them(cli, in_image_home, tmp_path) -> None:
    cpu = str(usable_cpus()[0])
    options = ("--runtime", "docker", "--memory", "640MiB", "--cpus", cpu, "--no-accuracy", *SHORT)
    record = cli("run", make_bundle(tmp_path / "mini"), *options, "--json").document()
    environment = record["environment"]
    seen = environment["worker"]["cgroup"]
    assert seen["memory_bytes"] == 640 << 20 == environment["limits"]["memory_bytes"]
    assert seen["pids"] == environment["limits"]["pids"]
    assert seen["cpus"] == environment["worker"]["cpus"] == cpu == environment["cpus_used"]["list"]
    assert environment["engine"]["kind"] in {"docker", "podman"}
    assert environment["engine"]["version"]


def test_the_doctor_tells_facts_and_labels(cli) -> None:
    document = cli("doctor", "--json").document()
    labels = document["labels"]
    assert labels["mlbundle.io/arch"] == document["machine"]["architecture"]
    assert labels["mlbundle.io/accel"] == ("gpu" if document["machine"]["gpus"] else "cpu")
    assert {row["name"] for row in document["frameworks"]} >= {"onnxruntime", "torch", "tensorflow"}
    for check in document["checks"]:
        assert check["state"] == "ok" or check["hint"], check
