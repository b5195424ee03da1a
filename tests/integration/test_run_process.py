"""`mlbundle run` in the process runtime, end to end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from support import make_bundle

HERE = ("--runtime", "process", "--python", sys.executable)
QUICK = ("--duration", "300ms", "--warmup", "10ms")


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "mini")


def test_a_run_answers_with_its_record_and_leaves_a_complete_folder(cli, mini, home) -> None:
    record = cli("run", mini, *HERE, *QUICK, "--json").document()
    assert record["schema"] == "mlbundle/run/v1"
    assert record["status"] == "completed"
    assert record["validity"] == {"valid": True, "reasons": []}
    assert record["bundle"]["name"] == "mini"
    assert record["accuracy"]["value"] == 1.0
    assert record["accuracy"]["passed"] is True
    assert record["accuracy"]["samples"] == 24
    assert record["isolation"] == "unpinned"
    latency = record["result"]["latency_ns"]
    assert 0 < latency["min"] <= latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert record["result"]["duration_s"] >= 0.3

    folder = home / "data" / "runs" / record["run_id"]
    assert json.loads((folder / "record.json").read_text()) == record
    latencies = np.load(folder / "passes/01-measure/latencies.npy")
    assert latencies.dtype == np.int64
    assert len(latencies) == record["result"]["queries"]
    assert latencies.max() == latency["max"]
    ordered = np.sort(latencies)
    cut = int(0.2 * len(ordered))
    assert latency["trimmed_mean"] == pytest.approx(ordered[cut : len(ordered) - cut].mean())
    assert len(np.load(folder / "outputs.npz")["predictions"]) == 24
    for name in ("job.json", "events.jsonl", "trace.pftrace.gz", "worker.log", "spans.npz"):
        assert (folder / name).is_file(), name
    assert not list(folder.rglob("*.part"))


def test_events_are_numbered_typed_and_in_the_order_of_the_phases(cli, mini) -> None:
    outcome = cli("run", mini, *HERE, *QUICK, "--format", "jsonl")
    assert outcome.status == 0, outcome.stderr
    events = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert [e["seq"] for e in events] == list(range(len(events)))
    assert {e["source"] for e in events} == {"host", "worker"}
    begun = [e["name"] for e in events if e["kind"] == "phase" and e["state"] == "begun"]
    assert begun == [
        "plan",
        "environment",
        "create",
        "start",
        "load",
        "warm-up",
        "measure",
        "accuracy",
        "collect",
        "verify",
    ]
    assert events[-1]["kind"] == "end"
    assert events[-1]["status"] == "completed"


def test_the_table_says_what_a_person_wants_to_know(cli, mini) -> None:
    outcome = cli("run", mini, *HERE, *QUICK)
    assert outcome.status == 0, outcome.stderr
    for word in (
        "accuracy",
        "as claimed",
        "trimmed mean",
        "p50",
        "p90",
        "p99",
        "throughput",
        "isolation",
        "trace.pftrace.gz",
    ):
        assert word in outcome.stdout, word


def test_runs_are_listed_and_shown(cli, mini) -> None:
    first = cli("run", mini, *HERE, *QUICK, "--json").document()
    second = cli("run", mini, *HERE, *QUICK, "--json", "--no-accuracy").document()
    listed = cli("runs", "list", "--json").document()["runs"]
    assert [r["run_id"] for r in listed] == sorted([first["run_id"], second["run_id"]], reverse=True)
    assert cli("runs", "show", first["run_id"], "--json").document() == first
    assert cli("runs", "show", first["run_id"]).stdout.count("mini:1.0.0") == 1
    cli("runs", "show", "1999", "--json").error(2, "reference-not-found")


def test_the_index_is_rebuilt_from_the_folders(cli, mini, home) -> None:
    record = cli("run", mini, *HERE, *QUICK, "--json").document()
    for path in (home / "data").glob("runs.sqlite*"):
        path.unlink()
    assert [r["run_id"] for r in cli("runs", "list", "--json").document()["runs"]] == [record["run_id"]]


def test_a_claim_that_is_not_met_exits_1_and_says_so(cli, tmp_path) -> None:
    bundle = make_bundle(tmp_path / "wrong", accuracy=0.5)
    outcome = cli("run", bundle, *HERE, *QUICK)
    assert outcome.status == 1
    assert "NOT AS CLAIMED" in outcome.stdout
    assert "error[claim-not-met]" in outcome.stderr


def test_too_few_queries_are_not_valid_and_exit_1(cli, mini) -> None:
    outcome = cli("run", mini, *HERE, "--queries", "10", "--warmup", "1ms")
    assert outcome.status == 1
    assert "INVALID" in outcome.stdout
    assert "10 queries" in outcome.stdout


def test_without_a_trace_there_is_none(cli, mini, home) -> None:
    record = cli("run", mini, *HERE, *QUICK, "--trace", "none", "--json").document()
    assert "trace" not in record["files"]
    assert not (home / "data" / "runs" / record["run_id"] / "trace.pftrace.gz").exists()


def test_the_seed_changes_the_order_and_not_the_predictions(cli, mini) -> None:
    one, two = (cli("run", mini, *HERE, *QUICK, "--seed", s, "--json").document() for s in ("1", "2"))
    assert one["accuracy"]["predictions_sha256"] == two["accuracy"]["predictions_sha256"]


def test_a_dry_run_runs_nothing_and_shows_the_job(cli, mini, home) -> None:
    plan = cli("run", mini, *HERE, "--dry-run", "--json").document()
    assert plan["job"]["schema"] == "mlbundle/job/v1"
    assert plan["job"]["scenario"]["name"] == "online"
    assert not (home / "data" / "runs").exists()


def test_a_packed_bundle_runs_like_its_folder(cli, mini, tmp_path) -> None:
    packed = cli("pack", mini, "-o", tmp_path / "mini.mlb", "--json").document()
    record = cli("run", tmp_path / "mini.mlb", *HERE, *QUICK, "--json").document()
    assert record["bundle"]["manifest_digest"] == packed["manifest_digest"]
    assert cli("run", mini, *HERE, *QUICK, "--json").document()["bundle"] == record["bundle"]


def test_code_needs_trust_outside_a_container(cli, tmp_path) -> None:
    bundle = make_bundle(tmp_path / "code", preprocess="return data")
    error = cli("run", bundle, *HERE, *QUICK, "--json").error(3, "trust-required")
    assert "--trust" in error["hint"]
    assert cli("run", bundle, *HERE, *QUICK, "--trust", "--json").document()["accuracy"]["value"] == 1.0


def test_the_built_in_code_is_trusted_and_a_changed_copy_is_not(cli, tmp_path) -> None:
    import shutil

    from mlbundle.resources import built_in_models

    ours = built_in_models()["digits-code"]
    assert cli("run", "digits-code", *HERE, *QUICK, "--json").document()["accuracy"]["passed"] is True
    copy = tmp_path / "digits-code"
    shutil.copytree(ours, copy)
    manifest = copy / "model.yml"
    manifest.write_text(manifest.read_text() + "\n# changed\n")
    cli("run", copy, *HERE, *QUICK, "--json").error(3, "trust-required")


@pytest.mark.parametrize("name", ["digits-cnn", "digits-png", "digits-code"])
def test_built_in_bundles_reach_what_they_claim(cli, name) -> None:
    record = cli("run", name, *HERE, *QUICK, "--json").document()
    assert record["accuracy"]["passed"] is True
    assert record["accuracy"]["samples"] == 360


def test_the_three_ways_to_the_same_model_predict_the_same(cli) -> None:
    digests = {
        cli("run", name, *HERE, *QUICK, "--json").document()["accuracy"]["predictions_sha256"]
        for name in ("digits-cnn", "digits-png", "digits-code")
    }
    assert len(digests) == 1


def test_an_unknown_name_says_what_was_meant(cli) -> None:
    error = cli("run", "digits-cn", "--json").error(2, "reference-not-found")
    assert "digits-cnn" in error["hint"]


def test_no_engine_is_said_with_a_hint(cli, mini, tmp_path) -> None:
    away = {"DOCKER_HOST": f"unix://{tmp_path}/no.sock"}
    error = cli("run", mini, "--runtime", "docker", "--json", env=away).error(3, "engine-unavailable")
    assert error["hint"]


def test_two_runs_do_not_measure_at_the_same_time(cli, mini, home) -> None:
    import subprocess

    from support import command_line

    command = command_line("run", mini, *HERE, "--duration", "1s", "--warmup", "10ms", "--json")
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(2)]
    records = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    spans = []
    for record in records:
        lines = (home / "data" / "runs" / record["run_id"] / "events.jsonl").read_text().splitlines()
        times = [e["t_ns"] for e in map(json.loads, lines) if e["kind"] == "phase" and e["name"] == "measure"]
        spans.append((times[0], times[1]))
    (_, first_end), (second_begin, _) = sorted(spans)
    assert first_end <= second_begin


def test_under_json_a_claim_that_is_not_met_still_prints_exactly_the_record(cli, tmp_path) -> None:
    outcome = cli("run", make_bundle(tmp_path / "wrong", accuracy=0.5), *HERE, *QUICK, "--json")
    assert outcome.status == 1
    assert outcome.document()["accuracy"]["passed"] is False
    assert "claim-not-met" in outcome.stderr


def test_a_damaged_file_is_noticed_even_when_its_files_are_here_already(cli, mini, tmp_path) -> None:
    path = tmp_path / "mini.mlb"
    cli("pack", mini, "-o", path)
    assert cli("run", path, *HERE, *QUICK, "--json").status == 0
    content = bytearray(path.read_bytes())
    content[-1500] ^= 1
    path.write_bytes(content)
    assert cli("run", path, *HERE, *QUICK, "--json").status == 5


def test_outputs_are_found_by_name_and_a_wrong_name_is_refused(cli, mini) -> None:
    manifest = mini / "model.yml"
    manifest.write_text(manifest.read_text().replace("layer_name: scores", "layer_name: scoers"))
    error = cli("run", mini, *HERE, *QUICK, "--json").error(4, "worker-failed")
    assert error["where"] == "outputs-mismatch"
    assert "scores" in error["hint"]


def test_a_container_was_asked_for_and_a_python_given(cli, mini) -> None:
    cli("run", mini, "--runtime", "docker", "--python", sys.executable, "--json").error(2, "usage")


def test_a_claim_that_is_not_checked_is_said(cli, mini) -> None:
    manifest = mini / "model.yml"
    claim = "accuracy: {metric: top1, value: 1.0, tolerance: 0.0}"
    text = manifest.read_text()
    assert claim in text
    performance = "performance: [{machine: another, scenario: online, p99_ns: 1}]"
    manifest.write_text(text.replace(claim, f"{claim}, {performance}"))
    outcome = cli("run", mini, *HERE, *QUICK)
    assert outcome.status == 0, outcome.stderr
    assert "/expected/performance is not checked" in outcome.stderr


def test_postprocess_without_a_return_is_the_bundles_fault(cli, mini) -> None:
    manifest = mini / "model.yml"
    manifest.write_text(
        manifest.read_text() + "postprocess: |\n  def postprocess(env, data):\n      data[0].argmax()\n"
    )
    error = cli("run", mini, *HERE, *QUICK, "--trust", "--json").error(4, "worker-failed")
    assert "return" in error["hint"]


def test_a_failed_run_can_be_read_later(cli, mini) -> None:
    cli("run", mini, *HERE, *QUICK, "--trust", "--cpus", "999")
    shown = cli("runs", "show", "latest").stdout
    assert "[worker-failed]" in shown


def test_a_full_stdout_is_an_error_in_words(mini) -> None:
    import subprocess

    from support import command_line

    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command_line("list", "--json"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr
