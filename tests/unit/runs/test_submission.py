"""Trees of results for MLPerf Inference: what they hold, which runs are refused, what the check finds."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.cli.main import main
from mlbundle.resources import load_schema
from mlbundle.runs.submission_benchmarks import model_of
from mlbundle.runs.submission_check import check_submission
from mlbundle.runs.submission_logs import DetailLog, distinct_samples, read_detail, shortened
from mlbundle.runs.submission_rules import why_not
from mlbundle.runs.submission_system import SYSTEM_FIELDS, describe_system

SEEDS = {
    "qsl_rng_seed": 2085463073848966840,
    "sample_index_rng_seed": 2747215439041700203,
    "schedule_rng_seed": 16159082839903944936,
}
SAMPLES = 360
TIMES_MS = {"generated_query_count": 100.0, "power_begin": 600_150.0}


def detail(scenario: str, **values: Any) -> str:
    """A detail log in LoadGen's format; `errors` is a list of texts."""
    errors = values.pop("errors", [])
    known = {
        "loadgen_version": "6.0.17 @ d6147c7eb7",
        "qsl_reported_total_count": SAMPLES,
        "requested_scenario": scenario,
        "requested_min_duration_ms": 600_000,
        "requested_single_stream_expected_latency_ns": 50_000,
        "effective_scenario": scenario,
        "effective_test_mode": "PerformanceOnly",
        "effective_samples_per_query": {"Offline": 30_000, "MultiStream": 8}.get(scenario, 1),
        "effective_min_query_count": {"Offline": 1, "MultiStream": 662}.get(scenario, 100),
        "effective_performance_issue_same": False,
        "generated_query_count": 30_000,
        "result_query_count": 1 if scenario == "Offline" else 12_000,
        "result_qps_with_loadgen_overhead": 20,
        "result_completed_samples_per_sec": 20,
        "result_samples_per_second": 50,
        "early_stopping_latency_ss": 50_000_000,
        "early_stopping_latency_ms": 50_000_000,
        "effective_min_duration_ms": 600_000,
        "effective_accuracy_sample_count": SAMPLES,
        **{f"effective_{name}": seed for name, seed in SEEDS.items()},
        "loaded_qsl_set": [1, 2, 3],
        "effective_target_latency_ns": 10_000_000,
        "effective_performance_sample_count": SAMPLES,
        "power_begin": "11-21-2026 23:55:00.000",
        "power_end": "11-22-2026 00:05:00.250",
        "result_validity": "VALID",
        "early_stopping_met": True,
        **values,
    }
    rows = [(key, value, False) for key, value in known.items()] + [
        ("error_runtime", text, True) for text in errors
    ]
    lines = [
        json.dumps({"key": key, "value": value, "time_ms": TIMES_MS.get(key, 0.5), "namespace": "mlperf::logging",
                    "event_type": "POINT_IN_TIME", "metadata": {"is_error": bad, "is_warning": False}})
        for key, value, bad in rows
    ]  # fmt: skip
    return "".join(f":::MLLOG {line}\n" for line in lines)


def accuracy_log(samples: int = SAMPLES) -> str:
    rows = [f'{{ "seq_id" : {n}, "qsl_idx" : {n}, "data" : "00000000" }}' for n in range(samples)]
    return "[\n" + ",\n".join(rows) + "\n]\n"


MACHINE = {
    "system": "Linux",
    "kernel": "6.1.0",
    "cpu_model": "Some CPU",
    "cpu_count": 8,
    "memory_bytes": 64 << 30,
    "cpu": {
        "sockets": 1,
        "cores": 4,
        "max_khz": 3_500_000,
        "caches": [{"level": 2, "type": "unified", "size_bytes": 1 << 20, "shared_by": 1}],
        "virtual": False,
    },
}
NAMES = {
    "SingleStream": "single-stream",
    "MultiStream": "multi-stream",
    "Server": "server",
    "Offline": "offline",
}


def record_of(run_id: str, scenario: str, options: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "schema": "mlbundle/run/v1",
        "run_id": run_id,
        "status": "completed",
        "validity": {"valid": True, "reasons": []},
        "bundle": {"name": "Digits CNN", "version": "1.0.0", "manifest_digest": "sha256:aa", "set_digest": "sha256:bb"},
        "framework": {"name": "onnxruntime", "version": "1.31.1", "variant": "onnxruntime"},
        "accelerator": "cpu",
        "runtime": "docker",
        "isolation": "pinned",
        "image": {"ref": "mlbundle/onnxruntime:1", "index_digest": None, "manifest_digest": None, "config_digest": "sha256:cc"},
        "worker": {"version": "0.1.0", "sha256": "dd"},
        "environment": {"machine": MACHINE, "worker": {"python": "3.11.2"}, "engine": {"kind": "docker", "version": "20.10"}},
        "scenario": {"name": NAMES.get(scenario, scenario), "options": options},
        "trace_level": "none",
        "result": None,
        "accuracy": {"metric": "top1", "value": 0.975, "samples": SAMPLES},
        "resources": {},
        "passes": [],
        "phases_s": {},
        "files": {},
        "error": None,
        "command": "mlbundle run digits-cnn --scenario single-stream",
        "started_at": "2026-11-21T23:54:00.000Z",
        "finished_at": "2026-11-22T00:06:00.000Z",
        "mlbundle_version": "0.1.0",
        **changes,
    }  # fmt: skip


class Runs:
    """Makes up runs in a data folder."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "data" / "runs"
        self._count = 0

    def add(self, scenario: str = "SingleStream", *, log: dict[str, Any] | None = None, answers: int = SAMPLES,
            tests: tuple[str, ...] = (), test_log: dict[str, Any] | None = None, options: dict[str, Any] | None = None, **changes: Any) -> str:  # fmt: skip
        self._count += 1
        run_id = f"20261121T23540{self._count}Z-00000{self._count}"
        folder = self.folder / run_id
        for kind in ("performance", "accuracy", *tests):
            logs = folder / "loadgen" / kind
            logs.mkdir(parents=True)
            (logs / "mlperf_log_summary.txt").write_text("MLPerf Results Summary\n")
            (logs / "mlperf_log_trace.json").touch()
            mode = {"effective_test_mode": "AccuracyOnly"} if kind == "accuracy" else (log or {})
            if kind in tests:
                same = {"effective_performance_issue_same": kind == "TEST04"}
                mode = {**same, **(test_log or {})}
                (logs / "mlperf_log_accuracy.json").write_text(accuracy_log(9) if kind == "TEST01" else "[]")
                (logs / "audit.config").write_text("*.*.mode = 2\n")
            (logs / "mlperf_log_detail.txt").write_text(detail(scenario, **mode))
        (folder / "loadgen/accuracy/mlperf_log_accuracy.json").write_text(accuracy_log(answers))
        (folder / "loadgen/performance/mlperf_log_accuracy.json").write_text("[]")
        job = {"model": {"files": {"graph": "assets/model.onnx"}, "inputs": [{"element_type": "float32"}]}}
        (folder / "job.json").write_text(json.dumps(job))
        (folder / "record.json").write_text(json.dumps(record_of(run_id, scenario, options or {}, **changes)))
        return run_id


@pytest.fixture
def runs(home: Path) -> Runs:
    return Runs(home)


@pytest.fixture
def submit(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run `mlbundle submission …`; returns the status and the document on stdout."""

    def run(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["submission", *map(str, arguments), "--json"])
        return int(ended.value.code or 0), json.loads(capsys.readouterr().out)

    return run


# A model of MLPerf's of whose sizes the check says nothing.
WHO = ("--submitter", "acme", "--system-name", "box", "--benchmark", "Digits CNN=whisper")


@pytest.fixture
def tree(runs: Runs, submit, tmp_path: Path) -> Path:
    """A tree without an error of two scenarios."""
    out = tmp_path / "tree"
    status, found = submit(runs.add("SingleStream", tests=("TEST01",)), runs.add("Offline"), "-o", out, *WHO)
    assert (status, found["valid"]) == (0, True), found
    return out


def errors(tree: Path) -> dict[str, str]:
    return {found.place: found.message for found in check_submission(tree) if found.severity == "error"}


def test_the_tree_is_the_one_that_the_rules_describe(tree: Path) -> None:
    root = tree / "open" / "acme"
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    results = {name for name in files if name.startswith("results/")}
    offline = {
        name.removeprefix("results/box/digits-cnn/Offline/") for name in results if "/Offline/" in name
    }
    assert offline == {
        "performance/run_1/mlperf_log_summary.txt",
        "performance/run_1/mlperf_log_detail.txt",
        "performance/run_1/mlperf_log_accuracy.json",
        "accuracy/mlperf_log_summary.txt",
        "accuracy/mlperf_log_detail.txt",
        "accuracy/mlperf_log_accuracy.json",
        "accuracy/accuracy.txt",
        "measurements.json",
        "user.conf",
        "README.md",
    }
    assert "results/box/digits-cnn/SingleStream/TEST01/performance/run_1/mlperf_log_detail.txt" in results
    assert {
        "systems/box.json",
        "src/digits-cnn/README.md",
        "documentation/box/digits-cnn/Offline/record.json",
    } <= files
    assert not [path for path in tree.parent.iterdir() if path.name.startswith(".")]


def test_a_compliance_test_lies_as_mlcommons_scripts_lay_it(runs: Runs, submit, tmp_path: Path) -> None:
    slow = {"early_stopping_latency_ss": 100_000_000}
    tests = {"tests": ("TEST01", "TEST04")}
    submit(runs.add(**tests), "-o", tmp_path / "good", *WHO)
    submit(runs.add(**tests, test_log=slow), "-o", tmp_path / "bad", *WHO, "--allow-invalid")
    good, bad = (
        tmp_path / name / "open/acme/results/box/digits-cnn/SingleStream" for name in ("good", "bad")
    )
    files = {str(path.relative_to(good)) for path in good.glob("TEST*/**/*") if path.is_file()}
    logs = {"mlperf_log_summary.txt", "mlperf_log_detail.txt", "mlperf_log_accuracy.json"}
    both = {"audit.config", "verify_performance.txt", *(f"performance/run_1/{name}" for name in logs)}
    assert files == {
        *(f"{test}/{name}" for test in ("TEST01", "TEST04") for name in both),
        "TEST01/verify_accuracy.txt",
        "TEST01/accuracy/accuracy.txt",
        "TEST01/accuracy/mlperf_log_accuracy.json",
    }
    verdicts = [(tree / "TEST01" / f"verify_{what}.txt").read_text().splitlines()
                for tree in (good, bad) for what in ("performance", "accuracy")]  # fmt: skip
    assert [lines[-1] for lines in verdicts] == ["TEST PASS", "TEST PASS", "TEST FAIL", "TEST PASS"]
    assert verdicts[0][0] == "early_stopping_latency_ss: 50000000 in the performance test, 50000000 in TEST01"
    assert verdicts[2][1] == "was slower than the performance test, 0.500 of its speed"
    logged = (good / "TEST01/performance/run_1/mlperf_log_accuracy.json").read_bytes()
    digest = (good / "TEST01/accuracy/accuracy.txt").read_text()
    assert digest == f"hash={hashlib.sha256(logged).hexdigest()}\n"


def test_the_tree_names_models_as_the_checker_does(runs: Runs, submit, tmp_path: Path) -> None:
    run, who = runs.add("Server", log={"effective_target_latency_ns": 20_000_000}), WHO[:4]
    status, found = submit(run, "-o", tmp_path / "none", *who)
    assert status == 1
    assert errors(tmp_path / "none") == {
        "open/acme/results/box/digits-cnn": "stands for none of MLPerf's models: no name of theirs, and nothing in "
        "model_mapping.json"
    }
    status, found = submit(run, "-o", tmp_path / "tree", *who, "--benchmark", "resnet50")
    assert json.loads((tmp_path / "tree/open/acme/model_mapping.json").read_text()) == {
        "digits-cnn": "resnet"
    }
    assert status == 1, "the model is not on ImageNet"
    wrong = [problem["message"] for problem in found["problems"] if problem["severity"] == "error"]
    assert wrong == [
        "the data set has 360 samples, that of resnet has 50000",
        "360 samples are loaded at once, for resnet it is at least 1024",
        "the target latency is 20 ms, for resnet it is at most 15 ms",
    ]
    mapping = tmp_path / "none/open/acme/model_mapping.json"
    mapping.write_text(json.dumps({"digits-cnn": "newest-1b", "mine": "resnet50", "mobilenet": "bert-99"}))
    found = [(problem.severity, problem.message) for problem in check_submission(tmp_path / "none")
             if problem.place.endswith("mapping.json")]  # fmt: skip
    assert found == [
        ("error", "mobilenet is MLPerf's own name of resnet: that it stands for bert-99 is not heeded"),
        ("error", "resnet50 has to be called resnet here"),
        ("warning", "newest-1b is no model of MLPerf that is known here"),
    ]
    assert len(errors(tmp_path / "none")) == 1, "a new model of MLPerf's may be meant"


@pytest.mark.parametrize(
    ("folder", "mapping", "model"),
    [("resnet", {}, "resnet"), ("resnet50", {"resnet50": "retinanet"}, "resnet"), ("my-resnet50-v2", {}, "resnet"),
     ("bert-99.9-small", {}, "bert-99.9"), ("digits", {"digits": "yolo-99"}, "yolo-99"), ("digits", {}, None),
     ("resnet-50", {}, None)],
)  # fmt: skip
def test_a_folders_name_says_the_model(folder: str, mapping: dict[str, str], model: str | None) -> None:
    assert model_of(folder, mapping) == model


def test_a_log_that_the_checker_can_not_read_is_damaged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for text, problem in {
        "hello\n" + detail("Offline"): "line 1 is none of LoadGen's, and the first has to be",
        detail("Offline") + ":::MLLOG {\n": f"line {detail('Offline').count(chr(10)) + 1} is no JSON",
        ':::MLLOG {"value": 1}\n': "line 1 has no key",
        ':::MLLOG {"key": "\udcff"}\n': "line 1 is no UTF-8",
        detail("Server", effective_scenario=None): "says nothing of effective_scenario",
        ':::MLLOG {"key": "a", "value": 1}\n': "line 1 does not say whether it is an error",
        detail("Offline") + detail("Offline"): None,
        detail("Offline")
        + detail("Server"): "says something else of effective_scenario than a line before it",
    }.items():
        log.write_text(text, errors="surrogateescape")
        found = read_detail(log).damage
        assert (problem is None and not found) or any(str(problem) in line for line in found), (
            problem,
            found,
        )
    log.write_text(detail("Server") + ':::MLLOG {"key": "x"\n')
    assert [reason for reason in why_not(read_detail(log)) if "damaged" in reason]


def test_loadgens_logs_are_as_it_wrote_them(tree: Path, runs: Runs) -> None:
    run = next(path for path in runs.folder.iterdir() if (path / "loadgen" / "TEST01").is_dir())
    result = tree / "open/acme/results/box/digits-cnn/SingleStream"
    for name in ("mlperf_log_detail.txt", "mlperf_log_summary.txt"):
        for ours, theirs in (("performance", "performance/run_1"), ("accuracy", "accuracy")):
            assert (result / theirs / name).read_bytes() == (run / "loadgen" / ours / name).read_bytes()
    whole = (run / "loadgen/accuracy/mlperf_log_accuracy.json").read_bytes()
    short = (result / "accuracy/mlperf_log_accuracy.json").read_bytes()
    assert len(whole) > 10 << 10 >= len(short)
    assert whole.startswith(short.partition(b"\n\n...\n")[0])
    text = (result / "accuracy/accuracy.txt").read_text()
    # The patterns by which MLCommons' checker finds both.
    assert re.match(r"^accuracy=([\d\.]+).*", text.splitlines()[0])[1] == "97.500"  # type: ignore[index]
    assert re.search(r"^hash=([\w\d]+)$", text, re.M)[1] == hashlib.sha256(whole).hexdigest()  # type: ignore[index]


def test_the_descriptions_have_all_their_fields(tree: Path) -> None:
    system = json.loads((tree / "open/acme/systems/box.json").read_text())
    assert system.keys() == SYSTEM_FIELDS.keys()
    assert len(system) == 35
    assert all(isinstance(value, str) for value in system.values()), (
        "a number 0 says nothing to the official checker"
    )
    assert (system["accelerators_per_node"], system["accelerator_model_name"]) == ("0", "N/A")
    assert system["host_memory_capacity"] == "64.0 GiB"
    assert system["framework"] == "onnxruntime 1.31.1"
    measured = json.loads((tree / "open/acme/results/box/digits-cnn/Offline/measurements.json").read_text())
    assert measured["input_data_types"] == "float32"
    assert measured["starting_weights_filename"] == "model.onnx"
    conf = (tree / "open/acme/results/box/digits-cnn/SingleStream/user.conf").read_text()
    assert "digits-cnn.SingleStream.min_duration = 600000\n" in conf
    assert "digits-cnn.SingleStream.target_latency = 0.05\n" in conf


def test_what_nobody_stated_is_a_warning_until_somebody_states_it(runs: Runs, submit, tmp_path: Path) -> None:
    run = runs.add()
    status, found = submit(run, "-o", tmp_path / "one", *WHO)
    jsonschema.validate(found, load_schema("submission"))
    warned = {problem["message"] for problem in found["problems"]}
    assert status == 0
    assert "the field cooling is not stated" in warned
    assert "the field retraining is not stated" in warned
    names = [message.split()[2] for message in warned]
    details = tmp_path / "details.yml"
    details.write_text("".join(f"{name}: no\n" for name in names))
    status, found = submit(run, "-o", tmp_path / "two", *WHO, "--details", details)
    assert (status, found["problems"]) == (0, [])
    assert json.loads((tmp_path / "two/open/acme/systems/box.json").read_text())["cooling"] == "no"


BAD_LOGS: dict[str, tuple[dict[str, Any], str]] = {
    "invalid": ({"result_validity": "INVALID", "result_invalid_reason": "too slow"}, "LoadGen says INVALID: too slow"),
    "error": ({"errors": ["Ran out of queries"]}, "LoadGen reports an error: Ran out of queries"),
    "quick": ({"effective_min_duration_ms": 2000}, "the minimum duration was 2 s, not 600 s"),
    "short": ({"result_qps_with_loadgen_overhead": 15_000}, "the test took 0.8 s, less than its minimum of 600 s"),
    "early": ({"early_stopping_met": False}, "the condition for stopping early was not met"),
    "few asked": ({"effective_min_query_count": 1}, "the minimum of queries was 1, not 100"),
    "few": ({"result_query_count": 3, "result_qps_with_loadgen_overhead": 0.005}, "3 queries, not at least 100"),
    "mode": ({"effective_test_mode": "SubmissionRun"}, "LoadGen ran in the mode SubmissionRun"),
    "loaded": (
        {"effective_performance_sample_count": 0},
        "the log does not say how many samples were loaded",
    ),
    "no result": ({"early_stopping_latency_ss": 0}, "the log has no early_stopping_latency_ss"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_LOGS)
def test_runs_that_are_no_results_are_refused(runs: Runs, submit, tmp_path: Path, name: str) -> None:
    values, reason = BAD_LOGS[name]
    good, bad = runs.add("Offline"), runs.add("SingleStream", log=values)
    status, error = submit(good, bad, "-o", tmp_path / "tree", *WHO)
    assert (status, error["reference"]) == (1, "check-failed")
    assert error["context"] == [f"{bad}: {reason}"]
    assert not (tmp_path / "tree").exists()
    status, found = submit(good, bad, "-o", tmp_path / "tree", *WHO, "--allow-invalid")
    assert (status, found["draft"], found["valid"]) == (0, True, False)
    found_now = errors(tmp_path / "tree")
    assert "draft" in found_now["open/acme/DRAFT.md"]
    assert (
        found_now["open/acme/results/box/digits-cnn/SingleStream/performance/run_1/mlperf_log_detail.txt"]
        == reason
    )
    assert reason in (tmp_path / "tree/open/acme/results/box/digits-cnn/SingleStream/README.md").read_text()


BAD_RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "failed": ({"status": "failed"}, "the run is failed"),
    "quick": ({"options": {"quick": True}}, "it was a quick run"),
    "busy": ({"validity": {"valid": False, "reasons": ["others measured"]}}, "others measured"),
    "no accuracy": ({"accuracy": None}, "its accuracy is not known"),
    "answers": ({"answers": 359}, "the accuracy test answered 359 samples of 360"),
    "accuracy": (
        {"accuracy": {"metric": "top1", "value": 0.1, "samples": SAMPLES, "expected": 0.97, "passed": False}},
        "its accuracy is 0.1, the bundle claims 0.97",
    ),
    "said of LoadGen": (
        {"validity": {"valid": False, "reasons": ["TEST01 failed: LoadGen says: INVALID"]}},
        "TEST01 failed: LoadGen says: INVALID",
    ),
    "said without a reason": (
        {"validity": {"valid": False, "reasons": []}},
        "the record says that it is not valid",
    ),
    "said of compliance": (
        {"result": {"loadgen": {"compliance": {"TEST04": {"passed": False, "why": "faster"}}}}},
        "TEST04 failed: faster",
    ),
    "none to hand in": (
        {"result": {"loadgen": {"submission_valid": False, "submission_reasons": ["a reason"]}}},
        "a reason",
    ),
    "lost": ({"options": {"compliance": ["TEST01"]}}, "TEST01: there is no log of it"),
    "compliance": (
        {"tests": ("TEST04",), "test_log": {"result_validity": "INVALID"}},
        "TEST04: LoadGen says INVALID",
    ),
    "another test": (
        {"tests": ("TEST04",), "test_log": {"effective_performance_issue_same": False}},
        "TEST04: is a log of another test than TEST04",
    ),
    "slow": (
        {"tests": ("TEST01",), "test_log": {"early_stopping_latency_ss": 100_000_000}},
        "TEST01: was slower than the performance test, 0.500 of its speed",
    ),
    "kept": (
        {"tests": ("TEST04",), "test_log": {"early_stopping_latency_ss": 25_000_000}},
        "TEST04: was faster than the performance test, 2.000 of its speed: answers may be kept",
    ),
    "too fast": (
        {"tests": ("TEST01",), "test_log": {"early_stopping_latency_ss": 25_000_000}},
        "TEST01: was faster than the performance test, 2.000 of its speed",
    ),
    "other latency": (
        {"scenario": "Server", "tests": ("TEST01",), "test_log": {"effective_target_latency_ns": 20_000_000}},
        "TEST01: had another target latency than the performance test",
    ),
    "short compliance": (
        {"tests": ("TEST01",), "test_log": {"effective_min_duration_ms": 2000}},
        "TEST01: the minimum duration was 2 s, not 600 s",
    ),
    "eight": (
        {"scenario": "MultiStream", "log": {"effective_samples_per_query": 2}},
        "a query has 2 samples, not 8",
    ),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_what_the_record_knows_counts_too(runs: Runs, submit, tmp_path: Path, name: str) -> None:
    changes, reason = BAD_RECORDS[name]
    status, error = submit(runs.add(**changes), "-o", tmp_path / "tree", *WHO)
    assert status == 1
    assert [line.partition(": ")[2] for line in error["context"]] == [reason]


@pytest.mark.parametrize("scenario", ["MultiStream", "Server"])
def test_every_scenario_can_become_a_result(runs: Runs, submit, tmp_path: Path, scenario: str) -> None:
    status, found = submit(runs.add(scenario, tests=("TEST01", "TEST04")), "-o", tmp_path / "tree", *WHO)
    assert (status, found["valid"]) == (0, True), found
    system = json.loads((tmp_path / "tree/open/acme/systems/box.json").read_text())
    assert system["system_type"] == {"Server": "datacenter"}.get(scenario, "edge")


def test_the_clock_on_the_wall_does_not_decide(runs: Runs, submit, tmp_path: Path) -> None:
    back = {"power_end": "11-21-2026 23:50:00.000"}
    for number, scenario in enumerate(NAMES):
        status, found = submit(runs.add(scenario, log=back), "-o", tmp_path / str(number), *WHO)
        assert status == 0, found
    short = {"result_qps_with_loadgen_overhead": None, "generated_query_count": None, "power_end": "?"}
    status, found = submit(runs.add(log=short), "-o", tmp_path / "tree", *WHO)
    assert status == 1
    assert "the log does not say how long the test took" in found["context"][0]


def test_answers_that_differ_or_end_in_the_middle_are_found(runs: Runs, submit, tmp_path: Path) -> None:
    other, cut, none = (runs.add(tests=("TEST01",)) for _ in range(3))
    path = runs.folder / other / "loadgen/TEST01/mlperf_log_accuracy.json"
    path.write_text(path.read_text().replace("00000000", "00000001", 2))
    path = runs.folder / cut / "loadgen/accuracy/mlperf_log_accuracy.json"
    path.write_text(path.read_text()[:-20])
    (runs.folder / none / "loadgen/TEST01/mlperf_log_accuracy.json").unlink()
    wanted = {
        other: "TEST01: 2 of 9 answers are not those of the accuracy test",
        cut: "the accuracy log begins or ends in the middle: it is not what LoadGen wrote to its end",
        none: "TEST01: has logged no answer",
    }
    for run, reason in wanted.items():
        status, error = submit(run, "-o", tmp_path / "tree", *WHO)
        assert (status, error["context"]) == (1, [f"{run}: {reason}"])


def test_the_suite_is_one_that_has_the_scenarios(runs: Runs, submit, tmp_path: Path) -> None:
    server, single, offline = runs.add("Server"), runs.add("SingleStream"), runs.add("Offline")
    status, error = submit(server, "-o", tmp_path / "tree", *WHO, "--system-type", "edge")
    assert status == 2
    assert error["message"] == "--system-type edge: that suite has no Server"
    assert error["hint"] == "--system-type datacenter"
    for chosen, expected in (
        ((server, single, offline), "datacenter,edge"),
        ((server, offline), "datacenter"),
        ((offline,), "edge"),
    ):
        out = tmp_path / expected
        assert submit(*chosen, "-o", out, *WHO)[0] == 0
        described = out / "open/acme/systems/box.json"
        assert json.loads(described.read_text())["system_type"] == expected
    described = tmp_path / "datacenter/open/acme/systems/box.json"
    change(described, system_type="edge")
    assert errors(tmp_path / "datacenter") == {
        "open/acme/systems/box.json": "the field system_type is 'edge', and there is Server"
    }


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"runtime": "process"}, "the runtime"),
        ({"image": None}, "the image"),
        ({"environment": {"machine": MACHINE, "limits": {"threads": 4}}}, "the threads"),
        ({"environment": {"machine": MACHINE, "limits": {"memory_bytes": 1 << 30}}}, "the memory"),
    ],
)
def test_runs_that_were_not_run_alike_are_not_of_one_system(
    runs: Runs, submit, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    status, error = submit(runs.add(), runs.add("Offline", **changes), "-o", tmp_path / "tree", *WHO)
    assert status == 2
    assert error["message"].endswith(f"are not of one system: they differ in {named}")


def test_the_check_judges_compliance_tests(tree: Path) -> None:
    test = tree / "open/acme/results/box/digits-cnn/SingleStream/TEST01"
    log = detail("SingleStream", result_validity="INVALID", errors=["Ran out"])
    (test / "performance/run_1/mlperf_log_detail.txt").write_text(log)
    found = [f.message for f in check_submission(tree) if f.severity == "error"]
    assert found == ["LoadGen reports an error: Ran out", "LoadGen says INVALID"]


def test_the_check_sees_that_an_accuracy_log_is_not_whole(tree: Path) -> None:
    accuracy = tree / "open/acme/results/box/digits-cnn/SingleStream/accuracy"
    path = accuracy / "mlperf_log_accuracy.json"
    path.write_text(path.read_text()[:-3])
    text = (accuracy / "accuracy.txt").read_text()
    (accuracy / "accuracy.txt").write_text(text.replace("total=360", "total=12"))
    found = sorted(errors(tree).values())
    assert found == [
        "begins or ends in the middle: it is not what LoadGen wrote to its end",
        "is of 12 samples, not of 360",
    ]


def test_runs_that_can_not_become_a_tree_are_usage_errors(runs: Runs, submit, tmp_path: Path) -> None:
    first, second = runs.add(), runs.add()
    online = runs.add("online")
    lost = runs.add("Server")
    shutil.rmtree(runs.folder / lost / "loadgen" / "accuracy")
    mixed = runs.add("Offline", log={"effective_scenario": "Server"})
    other = runs.add("Server", environment={"machine": {**MACHINE, "cpu_count": 4}})
    out = ("-o", tmp_path / "tree")
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").touch()
    cases = [
        ((online, *out, *WHO), "only LoadGen's results"),
        ((lost, *out, *WHO), "has no loadgen/accuracy"),
        ((mixed, *out, *WHO), "is of Server, not Offline"),
        ((first, second, *out, *WHO), "are both SingleStream"),
        ((first, other, *out, *WHO), "not of one system"),
        ((first, *out, "--submitter", "../x", "--system-name", "box"), "can't be the name of a folder"),
        ((first, *out, *WHO, "--benchmark", "other=resnet"), "none of the runs is of 'other'"),
        ((first, *out, *WHO, "--benchmark", "x="), "names nothing"),
        ((first, "-o", full, *WHO), "there is something already"),
    ]
    for arguments, message in cases:
        status, error = submit(*arguments)
        assert (status, error["schema"]) == (2, "mlbundle/error/v1"), error
        assert message in error["message"], error
    assert not (tmp_path / "tree").exists()
    assert [path.name for path in full.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("colour: red", "no such field: colour"), ("submitter: me", "no such field"), ("- a", "fields with values"),
     ("cooling: [air]", "a text or a number"), ("a: b: c", "can't be read")],
)  # fmt: skip
def test_details_that_make_no_sense_are_refused(
    runs: Runs, submit, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "details.yml").write_text(text)
    status, error = submit(runs.add(), "-o", tmp_path / "t", *WHO, "--details", tmp_path / "details.yml")
    assert (status, message in error["message"]) == (2, True), error


def change(path: Path, **fields: Any) -> None:
    document = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))


def test_the_check_finds_every_problem_at_once(tree: Path, submit) -> None:
    root = tree / "open/acme"
    offline, single = (root / "results/box/digits-cnn" / name for name in ("Offline", "SingleStream"))
    change(
        root / "systems/box.json",
        cooling=None,
        number_of_nodes=0,
        submitter="other",
        status="soon",
        system_type="x",
    )
    change(offline / "measurements.json", retraining="", weight_data_types=None)
    shutil.rmtree(root / "src")
    (offline / "user.conf").write_text("")
    (offline / "performance/run_1/mlperf_log_summary.txt").unlink()
    (single / "README.md").unlink()
    (single / "README.md").symlink_to("/etc/hostname")
    (single / "accuracy/mlperf_log_accuracy.json").write_text(accuracy_log(SAMPLES - 1))
    (single / "accuracy/mlperf_log_detail.txt").write_text(
        detail("Server", effective_test_mode="PerformanceOnly")
    )
    (single / "TEST01/performance/run_1/mlperf_log_detail.txt").unlink()
    other = detail("Offline", effective_samples_per_query=359, effective_qsl_rng_seed=1)
    (offline / "performance/run_1/mlperf_log_detail.txt").write_text(other)
    (offline / "accuracy/accuracy.txt").write_text("good")
    shutil.copytree(offline, offline.with_name("offline"))
    (tree / "closed").mkdir()
    (root / "systems/gone.json").write_text("{}")
    (root / "model_mapping.json").write_text("[]")
    status, found = submit("check", tree)
    jsonschema.validate(found, load_schema("submission"))
    assert (status, found["valid"]) == (1, False)
    messages = {f"{p['place'].removeprefix('open/acme/')}: {p['message']}" for p in found["problems"]}
    accuracy = "results/box/digits-cnn/SingleStream/accuracy"
    wanted = {
        "closed: only the open division is checked",
        "src: is missing",
        "model_mapping.json: is no JSON object from names to models of MLPerf",
        "systems/gone.json: is a system without a result",
        "systems/box.json: the field cooling is missing",
        "systems/box.json: the field number_of_nodes says nothing",
        "systems/box.json: the field submitter is 'other', not acme",
        "systems/box.json: the field status is 'soon', not available or preview or rdi",
        "results/box/digits-cnn/Offline/user.conf: is missing or empty",
        "results/box/digits-cnn/Offline/measurements.json: the field retraining is missing or says nothing",
        "results/box/digits-cnn/Offline/measurements.json: the field weight_data_types is missing or says nothing",
        "results/box/digits-cnn/Offline/performance/run_1/mlperf_log_summary.txt: is missing",
        "results/box/digits-cnn/Offline/performance/run_1/mlperf_log_detail.txt: 359 samples, not at least 360",
        "results/box/digits-cnn/Offline/accuracy/accuracy.txt: holds no accuracy",
        "results/box/digits-cnn/offline: is no scenario; scenarios are SingleStream, MultiStream, Server, Offline",
        "results/box/digits-cnn/SingleStream/README.md: is neither a file nor a folder",
        "results/box/digits-cnn/SingleStream/TEST01: has no performance/run_1/mlperf_log_detail.txt",
        f"{accuracy}/mlperf_log_accuracy.json: is not shortened: more than 10 KiB",
        f"{accuracy}/mlperf_log_accuracy.json: does not have the digest that accuracy.txt says",
        f"{accuracy}/mlperf_log_accuracy.json: has answers to 359 samples of 360",
        f"{accuracy}/mlperf_log_detail.txt: LoadGen ran in the mode PerformanceOnly",
        f"{accuracy}/mlperf_log_detail.txt: is a log of the scenario Server, not SingleStream",
    }
    assert wanted <= messages, wanted - messages
    assert any("has other seeds" in message for message in messages)


def test_the_check_minds_what_a_repository_of_results_does(tree: Path, capsys) -> None:
    root = tree / "open/acme"
    box, offline = root / "systems/box.json", root / "results/box/digits-cnn/Offline"
    change(box, system_type="Edge", number_of_nodes="two", status=1, sw_notes=["fast"], is_network=False)
    (tree / "summary.csv").touch()
    (tree / "README.md").touch()
    (tree / "open/notes.md").touch()
    (root / "results/.cache").mkdir()
    (offline / "my notes.txt").touch()
    (offline / "accuracy/more.txt").touch()
    (offline / "performance/run_1/mlperf_log_trace.json").touch()
    found = {(f.place.removeprefix("open/acme/"), f.message, f.severity) for f in check_submission(tree)}
    stated = {problem for problem in found if not problem[1].endswith("is not stated")}
    name = "can't be called that: no blank, no dot at the beginning, no __pycache__"
    outside = "is outside of the submitter's folder"
    types = "edge or datacenter or datacenter,edge or edge,datacenter"
    assert stated == {
        ("systems/box.json", f"the field system_type is 'Edge', not {types}", "error"),
        ("systems/box.json", "the field number_of_nodes is 'two', no whole number", "error"),
        ("systems/box.json", "the field status is 1, not available or preview or rdi", "error"),
        ("systems/box.json", "the field sw_notes is no text", "error"),
        ("systems/box.json", "the field is_network is of the network division", "error"),
        ("summary.csv", outside, "error"),
        ("open/notes.md", outside, "error"),
        ("results/.cache", name, "error"),
        ("results/box/digits-cnn/Offline/my notes.txt", name, "error"),
        ("results/box/digits-cnn/Offline/accuracy/more.txt", "does not belong there", "warning"),
    }  # fmt: skip
    (root / "results/.cache").rename(root / "results/empty")
    assert errors(tree)["open/acme/results/empty"]


def test_what_only_we_could_read_is_found(tree: Path) -> None:
    root = tree / "open/acme"
    offline, box = root / "results/box/digits-cnn/Offline", root / "systems/box.json"
    box.write_bytes(b"\xef\xbb\xbf" + box.read_bytes())
    (offline / "accuracy/accuracy.txt").write_bytes(
        (offline / "accuracy/accuracy.txt").read_bytes() + b"\xff"
    )
    log = detail("Offline", effective_test_mode="AccuracyOnly", effective_accuracy_sample_count="all")
    (offline / "accuracy/mlperf_log_detail.txt").write_text(log)
    (offline / "performance/run_1/mlperf_log_detail.txt").write_text(
        detail("Offline", effective_min_query_count=0)
    )
    assert {place.removeprefix("open/acme/"): message for place, message in errors(tree).items()} == {
        "systems/box.json": "is no JSON object",
        "results/box/digits-cnn/Offline/accuracy/accuracy.txt": "is no UTF-8 text",
        "results/box/digits-cnn/Offline/accuracy/mlperf_log_detail.txt": "the log does not say how many samples "
        "were answered",
        "results/box/digits-cnn/Offline/performance/run_1/mlperf_log_detail.txt": "the minimum of queries was 0, not 1",
    }


def test_seeds_tell_the_round(runs: Runs, submit, tree: Path, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["submission", "check", str(tree)])
    assert "2 results, for MLPerf Inference v6.1, valid" in capsys.readouterr().err
    for path in tree.rglob("mlperf_log_detail.txt"):
        path.write_text(path.read_text().replace(str(SEEDS["qsl_rng_seed"]), "7"))
    found = [f.message for f in check_submission(tree) if "seeds" in f.message]
    assert found == ["has the seeds of no round that is known here (v5.1, v6.0, v6.1)"]
    assert not errors(tree)


def test_short_queries_may_differ_by_more(runs: Runs, submit, tmp_path: Path) -> None:
    short = {"early_stopping_latency_ss": 100_000}
    for latency_ns, status in ((85_000, 0), (115_000, 0), (130_000, 1)):
        run = runs.add(log=short, tests=("TEST01",), test_log={"early_stopping_latency_ss": latency_ns})
        assert submit(run, "-o", tmp_path / str(latency_ns), *WHO)[0] == status


def test_a_folder_that_is_no_tree_is_told(submit, tmp_path: Path) -> None:
    assert submit("check", tmp_path / "gone")[0] == 2
    status, found = submit("check", tmp_path)
    assert status == 1
    assert "there is no result" in found["problems"][0]["message"]


def test_gpus_are_described_where_the_run_was_on_them() -> None:
    gpu = {"name": "Big GPU", "memory_bytes": 80 << 30, "max_sm_mhz": 1980, "driver": "570.1"}
    environment = {"machine": {**MACHINE, "gpus": [gpu, gpu]}}
    record = record_of("r", "Offline", {}, accelerator="gpu", environment=environment)
    found = describe_system(record, {}, {})
    assert (found["accelerators_per_node"], found["accelerator_model_name"]) == ("2", "Big GPU")
    assert found["accelerator_memory_capacity"] == "80.0 GiB"
    assert found["accelerator_interconnect"] == "not stated"
    assert "NVIDIA driver 570.1" in found["other_software_stack"]


@given(st.binary(max_size=300))
def test_any_bytes_are_a_log_that_says_nothing_or_something(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(b":::MLLOG " + content + b'\n:::MLLOG {"key": "a", "value": 7, "metadata": {}}\n')
        log = read_detail(path)
        assert isinstance(log, DetailLog)
        assert all(isinstance(value, str | int | float) for value in log.values.values())
        if b"\n" not in content:
            assert log.number("a") == 7


@given(st.integers(0, 3000), st.integers(0, 2**39))
def test_samples_are_counted_across_the_pieces_of_a_file(count: int, first: int) -> None:
    import tempfile

    from mlbundle.runs import submission_logs

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(submission_logs, "_PIECE_BYTES", 97)
        path = Path(folder) / "log"
        count = min(count, 40)
        path.write_text(
            "".join(f'{{ "qsl_idx" : {first + n}, "data" : "" }}\n' for n in [*range(count), *range(count)])
        )
        assert distinct_samples(path) == count
        assert shortened(path) == path.read_bytes()
