"""LoadGen's scenarios from the command line, with the real LoadGen, on a model whose speed and faults we choose."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from framework_pythons import framework_python
from support import ROOT, make_bundle

SHORT = ("--duration", "300ms", "--concurrent", "--json")
BESIDE = "another measurement may have run beside this one (--concurrent)"
PREDICTOR = """
import os, time
import numpy as np

class Handle:
    calls = 0

class Predictor:
    def open(self, model, options):
        # LoadGen would take this from the working folder if it were let.
        with open("audit.config", "w") as stream:
            stream.write("*.*.mode = 1\\n*.*.min_duration = 1\\n*.*.sample_index_rng_seed = 7\\n")
        handle = Handle()
        handle.weights = np.load(os.path.join(os.path.dirname(model["graph"]), "data.npz"))["weights"]
        return handle

    def predict(self, handle, batch):
        handle.calls += 1
        {body}
        return [batch["points"] @ handle.weights]

    def close(self, handle):
        pass
"""
BUSY = """until = time.monotonic_ns() + {us} * 1000
        while time.monotonic_ns() < until:
            pass"""
# The pilot is over and LoadGen asks.
UNDER_WAY = "os.path.exists('loadgen/performance/mlperf_log_detail.txt')"


@pytest.fixture(scope="session")
def python() -> Path:
    return framework_python("onnxruntime")


def bundle(folder: Path, body: str) -> Path:
    """The small classifier with a predictor of its own that does `body` at each call."""
    make_bundle(folder)
    data = dict(np.load(folder / "data.npz"))
    weights = np.random.default_rng(3).integers(-4, 5, size=(6, 4)).astype(np.float32)
    data["points"] = data["points"].round(1).astype(np.float32)
    np.savez(
        folder / "data.npz", **{**data, "labels": (data["points"] @ weights).argmax(axis=1)}, weights=weights
    )
    (folder / "predictor.py").write_text(PREDICTOR.format(body=body))
    with (folder / "model.yml").open("a") as manifest:
        manifest.write("predictor: predictor.py\n")
    return folder


@pytest.fixture
def run(cli, python, tmp_path) -> Any:
    def run(body: str, scenario: str, *arguments: str, beside: tuple[str, ...] = SHORT) -> Any:
        folder = bundle(tmp_path / "mini", body)
        return cli("run", folder, "--trust", "--python", python, "--scenario", scenario, *beside, *arguments)

    return run


def logged(home: Path, run_id: str, test: str = "performance") -> dict[str, Any]:
    """Key -> value of a detail log, found by its form alone."""
    path = home / "data/runs" / run_id / "loadgen" / test / "mlperf_log_detail.txt"
    pairs = re.findall(
        r'^:::MLLOG \{"key": "([^"]+)", "value": (.*?), "time_ms"', path.read_text(), re.MULTILINE
    )
    return {key: json.loads(value) for key, value in pairs}


HEADLINES = {
    "single-stream": ("SingleStream", "result_90.00_percentile_latency_ns"),
    "multi-stream": ("MultiStream", "result_99.00_percentile_per_query_latency_ns"),
    "server": ("Server", "result_scheduled_samples_per_sec"),
    "offline": ("Offline", "result_samples_per_second"),
}


@pytest.mark.parametrize("scenario", HEADLINES)
def test_results_are_what_loadgen_wrote(run, home, scenario) -> None:
    # LoadGen wants some 460 queries to be sure of a 99th percentile, however slow the machine.
    target = () if scenario == "offline" else ("--queries", "700")
    if scenario == "server":
        target = (*target, "--target-latency", "60s")
    record = run(BUSY.format(us=50), scenario, "--no-accuracy", *target).document()
    jsonschema.validate(record, json.loads((ROOT / "schemas/run.schema.json").read_text()))
    found, log = record["result"]["loadgen"], logged(home, record["run_id"])
    name, headline = HEADLINES[scenario]
    assert log["result_validity"] == "VALID", log
    assert found["valid"] is True
    assert record["validity"]["reasons"] == [BESIDE]
    assert found["scenario"] == log["effective_scenario"] == name
    assert log["effective_test_mode"] == "PerformanceOnly", "audit.config of the working folder had an effect"
    assert log["effective_min_duration_ms"] == 300
    assert found["result"] == {k: v for k, v in log.items() if k.startswith(("result_", "early_stopping_"))}
    assert found["result"][headline] == log[headline] > 0
    assert found["settings"]["min_duration_ms"] == 300
    assert not found["errors"]
    assert found["submission_valid"] is False
    latency = record["result"]["latency_ns"]
    assert latency["p99"] == log["result_99.00_percentile_latency_ns"]
    assert latency["min"] == log["result_min_latency_ns"] >= 50_000
    assert "trimmed_mean" not in latency
    samples = log["result_query_count"] * log["effective_samples_per_query"]
    assert record["result"]["samples"] == samples
    assert record["result"]["duration_s"] >= 0.299
    assert found.get("issue") in ({"in line", "worker thread"} if scenario == "server" else {None})
    if scenario == "multi-stream":
        assert log["effective_samples_per_query"] == 8
        assert latency["min"] < 8 * 50_000, "eight samples are one batch"


def test_accuracy_is_counted_from_the_log_of_loadgen(run, home, tmp_path) -> None:
    record = run("pass", "offline").document()
    data = np.load(tmp_path / "mini/data.npz")
    scores = data["points"] @ data["weights"]
    assert record["accuracy"]["value"] == 1.0
    assert record["accuracy"]["samples"] == 24
    assert record["accuracy"]["outputs_sha256"] == hashlib.sha256(scores.tobytes()).hexdigest()
    predictions = scores.argmax(axis=1).astype("<i8")
    assert record["accuracy"]["predictions_sha256"] == hashlib.sha256(predictions.tobytes()).hexdigest()
    folder = home / "data/runs" / record["run_id"]
    entries = json.loads((folder / "loadgen/accuracy/mlperf_log_accuracy.json").read_text())
    assert {e["qsl_idx"]: bytes.fromhex(e["data"]) for e in entries} == {
        number: row.tobytes() for number, row in enumerate(scores)
    }
    assert (np.load(folder / "outputs.npz")["output_0"] == scores).all()


def test_a_rate_that_cannot_be_held_is_invalid_in_the_words_of_loadgen(run, home) -> None:
    outcome = run(
        BUSY.format(us=100), "server", "--rate", "15000", "--target-latency", "1ms", "--no-accuracy"
    )
    record = outcome.document()
    assert outcome.status == 1
    assert record["validity"]["valid"] is False
    log = logged(home, record["run_id"])
    assert log["result_validity"] == "INVALID"
    assert f"LoadGen says INVALID: {log['result_invalid_reason'].strip()}" in record["validity"]["reasons"]
    assert record["result"]["loadgen"]["valid"] is False


def test_a_target_below_the_time_of_a_sample_is_told_at_once(run) -> None:
    outcome = run(
        BUSY.format(us=500), "server", "--target-latency", "100us", "--duration", "60s", "--no-accuracy"
    )
    record = outcome.document()
    assert outcome.status == 1
    # The fixture's runs wait for nobody, and say so.
    (reason,) = [text for text in record["validity"]["reasons"] if "--concurrent" not in text]
    assert reason.startswith("no rate can keep to 100 us: a sample alone takes ")
    assert record["result"]["duration_s"] < 30


def test_a_server_may_answer_in_a_worker_thread(run, home) -> None:
    record = run(
        BUSY.format(us=50), "server", "--rate", "3000", "--issue", "thread", "--target-latency", "60s"
    ).document()
    jsonschema.validate(record, json.loads((ROOT / "schemas/run.schema.json").read_text()))
    assert record["result"]["loadgen"]["issue"] == "worker thread"
    assert record["result"]["loadgen"]["valid"] is True
    assert record["accuracy"]["value"] == 1.0
    assert record["result"]["duration_s"] >= 0.299


def test_a_worker_that_waits_for_the_next_query_is_not_taken_for_one_that_hangs(run, home) -> None:
    outcome = run(
        "pass",
        "server",
        *("--rate", "0.4", "--queries", "2", "--no-accuracy", "--issue", "in-line"),
    )
    record = outcome.document()
    assert record["result"]["queries"] == 2
    assert record["result"]["duration_s"] > 4, "nothing was waited for"
    events = (home / "data/runs" / record["run_id"] / "events.jsonl").read_text().splitlines()
    told = [event["done"] for event in map(json.loads, events) if event.get("phase") == "measure"]
    assert len(told) >= 2, "a worker that says nothing is taken for one that hangs"
    assert told == sorted(told)


def test_quick_is_marked(run) -> None:
    found = run(
        BUSY.format(us=200), "single-stream", "--quick", "--no-accuracy", beside=("--concurrent", "--json")
    ).document()["result"]["loadgen"]
    assert found["quick"] is True
    assert found["submission_reasons"] == [
        "quick: not valid for a submission",
        "there is no accuracy run",
        BESIDE,
    ]
    assert found["settings"]["min_duration_ms"] == 2000


def test_compliance_tests_find_answers_that_are_not_those_of_the_accuracy_run(run, home) -> None:
    body = "batch = {'points': batch['points'] + (np.float32(0.5) if handle.calls > 600 else np.float32(0))}"
    record = run(
        body, "server", "--rate", "3000", "--target-latency", "60s", "--compliance", "TEST01,TEST04"
    ).document()
    found = record["result"]["loadgen"]["compliance"]
    assert record["accuracy"]["value"] == 1.0
    assert found["TEST01"]["passed"] is False
    assert re.search(r"\d+ of \d+ answers are not those of the accuracy run", found["TEST01"]["why"])
    # What the machine did in the performance run may make this one look faster.
    assert found["TEST04"]["passed"] is (found["TEST04"]["speed"] <= 1.1), found["TEST04"]
    assert logged(home, record["run_id"], "TEST04")["effective_performance_issue_same"] is True
    assert any(reason.startswith("TEST01 failed") for reason in record["validity"]["reasons"])


def test_memory_for_queries_made_beforehand_is_refused_by_its_amount(run) -> None:
    outcome = run(BUSY.format(us=20), "server", "--rate", "100000", "--duration", "1m", "--memory", "1GiB")
    error = outcome.document()
    assert outcome.status == 3
    assert re.search(r"LoadGen makes its queries beforehand: 2\.\d GiB for 60 s", error["message"])
    assert "let it have 3 GiB or more (--memory)" in error["hint"]
    assert "a lower --rate" in error["hint"]


def test_a_model_that_raises_in_the_middle_ends_the_run_at_once(run, home) -> None:
    body = f"{BUSY.format(us=200)}\n        if handle.calls % 100 == 0 and {UNDER_WAY}: raise ArithmeticError('a wire came loose')"
    outcome = run(body, "single-stream", "--duration", "1m")
    error = outcome.error(4, "worker-failed")
    assert "a wire came loose" in error["message"]
    (folder,) = (home / "data/runs").glob("*Z-*")
    assert json.loads((folder / "record.json").read_text())["status"] == "failed"
    log = (folder / "loadgen/performance/mlperf_log_detail.txt").read_text()
    assert "loaded_qsl_set" in log, "it did not fail in the middle"


def test_a_model_that_stops_answering_is_ended_and_what_was_seen_is_kept(run, home) -> None:
    body = f"if {UNDER_WAY}: handle.calls += 1000\n        time.sleep(600 if handle.calls > 60_000 else 0.02)"
    outcome = run(body, "single-stream", "--duration", "5s", "--timeout", "8s", "--no-accuracy")
    outcome.error(4, "worker-hung")
    (folder,) = (home / "data/runs").glob("*Z-*")
    record = json.loads((folder / "record.json").read_text())
    assert record["status"] == "failed"
    assert record["validity"]["valid"] is False
    told = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert any(event["kind"] == "progress" and event["phase"] == "measure" for event in told)


def test_an_environment_without_loadgen_says_so(cli, tmp_path) -> None:
    if importlib.util.find_spec("mlperf_loadgen"):
        pytest.skip("LoadGen is in this environment")
    folder = bundle(tmp_path / "mini", "pass")
    outcome = cli("run", folder, "--trust", "--python", sys.executable, "--scenario", "offline", *SHORT)
    assert outcome.status == 3
    assert "mlcommons-loadgen is not in this environment" in outcome.document()["message"]
    assert "no wheel for Linux on arm64" in outcome.document()["hint"].replace("\n", " ")
