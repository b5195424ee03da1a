"""LoadGen's latencies of tokens and its search for the peak, with the real LoadGen, read from its logs by their form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from framework_pythons import framework_python
from support import ROOT, make_bundle

SHORT = ("--duration", "300ms", "--concurrent", "--json", "--trust")
BESIDE = "another measurement may have run beside this one (--concurrent)"
US = 1_000
# Four tokens after a wait of 200 us each, which is 0.8 ms an answer at least.
PREDICTOR = """
import os, time
import numpy as np

class Predictor:
    def open(self, model, options):
        return np.load(os.path.join(os.path.dirname(model["graph"]), "data.npz"))["weights"]

    def predict(self, handle, batch):
        return [batch["points"] @ handle]

    def generate(self, handle, batch):
        for _ in range({tokens}):
            until = time.monotonic_ns() + 400_000
            while time.monotonic_ns() < until:
                pass
            yield
        return self.predict(handle, batch)

    def close(self, handle):
        pass
"""


@pytest.fixture(scope="session")
def python() -> Path:
    return framework_python("onnxruntime")


@pytest.fixture
def run(cli, python, tmp_path) -> Any:
    def run(scenario: str, *arguments: str, tokens: int = 4) -> Any:
        folder = make_bundle(tmp_path / f"mini{len(list(tmp_path.iterdir()))}")
        data = dict(np.load(folder / "data.npz"))
        weights = np.random.default_rng(3).integers(-4, 5, size=(6, 4)).astype(np.float32)
        points = data["points"].round(1).astype(np.float32)
        labels = (points @ weights).argmax(axis=1)
        np.savez(folder / "data.npz", points=points, labels=labels, weights=weights)
        (folder / "predictor.py").write_text(PREDICTOR.format(tokens=tokens))
        with (folder / "model.yml").open("a") as manifest:
            manifest.write("predictor: predictor.py\n")
        return cli("run", folder, "--python", python, "--scenario", scenario, *SHORT, *arguments)

    return run


def logged(home: Path, run_id: str, test: str = "performance") -> list[tuple[str, Any]]:
    """The entries of a detail log, found by their form alone."""
    path = home / "data/runs" / run_id / "loadgen" / test / "mlperf_log_detail.txt"
    pairs = re.findall(
        r'^:::MLLOG \{"key": "([^"]+)", "value": (.*?), "time_ms"', path.read_text(), re.MULTILINE
    )
    return [(key, json.loads(value)) for key, value in pairs]


def validated(record: dict[str, Any]) -> dict[str, Any]:
    jsonschema.validate(record, json.loads((ROOT / "schemas/run.schema.json").read_text()))
    return record


def test_tokens_are_those_that_loadgen_wrote(run, home) -> None:
    limits = ("--ttft-latency", "60s", "--tpot-latency", "50s", "--rate", "200", "--queries", "500")
    record = validated(run("server", *limits).document())
    log = dict(logged(home, record["run_id"]))
    found, tokens = record["result"]["loadgen"], record["result"]["tokens"]
    assert log["requested_use_token_latencies"] is True
    assert log["result_validity"] == "VALID", log
    assert record["validity"]["reasons"] == [BESIDE]
    assert found["result"] == {k: v for k, v in log.items() if k.startswith(("result_", "early_stopping_"))}
    assert found["token_limits_ns"] == {"ttft": 60_000_000 * US, "tpot": 50_000_000 * US}
    assert (log["requested_server_ttft_latency"], log["requested_server_tpot_latency"]) == (
        60_000_000 * US,
        50_000_000 * US,
    )
    assert tokens["tokens_per_s"] == log["result_completed_tokens_per_second"]
    for name, key in (("p50", "50.00"), ("p90", "90.00"), ("p99", "99.00")):
        assert tokens["ttft_ns"][name] == log[f"result_first_token_{key}_percentile_latency_ns"]
        assert tokens["tpot_ns"][name] == log[f"result_time_per_output_token_{key}_percentile_ns"]
    assert tokens["ttft_ns"]["min"] >= 200 * US
    assert tokens["tpot_ns"]["min"] >= 200 * US
    assert record["result"]["latency_ns"]["min"] >= 800 * US, "latencies are of whole answers"
    # Of n answers LoadGen counts n - 1 for its rate, and all tokens; it writes rates with two or three decimals.
    answers = log["result_query_count"]
    answers_per_s = log["result_completed_samples_per_sec"] * answers / (answers - 1)
    assert tokens["tokens_per_s"] == pytest.approx(4 * answers_per_s, abs=0.05)
    assert record["accuracy"]["value"] == 1.0, "answers come through the log of LoadGen as well"


def test_an_answer_of_one_token_is_refused_before_loadgen_sees_it(run) -> None:
    error = run("single-stream", tokens=1).error(4, "worker-failed")
    assert "LoadGen takes none of fewer than two" in error["message"]


def test_the_peak_is_what_loadgen_found_and_a_test_of_its_own_confirmed(run, home) -> None:
    for _ in range(3):
        outcome = run("server", "--find-peak", "--ttft-latency", "400ms", "--rate", "50", "--no-accuracy")
        record = validated(outcome.document())
        peak, reasons = record["result"]["loadgen"]["peak"], record["validity"]["reasons"]
        if peak["trials"][0]["kept"]:
            break  # or the machine stood still when the first rate was tried
    messages = [text for key, text in logged(home, record["run_id"], "peak-0") if key == "generic_message"]
    tried = {float(number) for text in messages for number in re.findall(r"\d+\.\d+", text)}
    assert {trial["rate_per_s"] for trial in peak["trials"]} == tried
    kept = [trial["rate_per_s"] for trial in peak["trials"] if trial["kept"]]
    missed = [trial["rate_per_s"] for trial in peak["trials"] if not trial["kept"]]
    assert kept[0] == 50
    assert messages[-1].endswith(f" {peak['found_per_s']:.6f}")
    assert peak["found_per_s"] == max(kept) < min(missed) <= max(kept) * 1.02 + 1
    log = dict(logged(home, record["run_id"]))
    assert log["effective_test_mode"] == "PerformanceOnly"
    lowered = len(peak["unconfirmed_per_s"])
    assert log["effective_target_qps"] == pytest.approx(peak["found_per_s"] * 0.9**lowered, rel=1e-4)
    if log["result_validity"] == "VALID":
        assert peak["rate_per_s"] == log["effective_target_qps"]
        assert reasons == [BESIDE]
    else:
        assert peak["rate_per_s"] is None
        assert lowered == 2, "it was given up too early"
        assert any("was not confirmed" in reason for reason in reasons)


def test_a_search_whose_first_rate_is_missed_finds_nothing_and_says_so(run, home) -> None:
    outcome = run(
        "server",
        "--find-peak",
        "--ttft-latency",
        "300us",
        "--rate",
        "500",
        "--no-accuracy",
        "--queries",
        "20",
    )
    record = validated(outcome.document())
    peak = record["result"]["loadgen"]["peak"]
    assert outcome.status == 1
    assert peak["rate_per_s"] is peak["found_per_s"] is None
    assert peak["trials"] == [{"rate_per_s": 500.0, "kept": False}], "a user's rate is not lowered"
    assert any("500 a second did not; choose a lower --rate" in r for r in record["validity"]["reasons"])


def test_options_that_exclude_each_other_are_refused(run) -> None:
    both = run("server", "--ttft-latency", "1s", "--target-latency", "1s")
    assert "LoadGen looks at no whole answers" in both.error(2, "usage")["message"]
