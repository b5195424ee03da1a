"""The runs made so far as a user sees them: listed, compared, told apart, removed. Records are written by hand."""

from __future__ import annotations

import copy
import csv
import fcntl
import io
import json
import os
import pty
import re
import sqlite3
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inprocess import InProcess
from support import ROOT, command_line

from mlbundle.runs.removal import finish_removals
from mlbundle.store.database import RunDatabase

GOLDEN = json.loads((ROOT / "tests" / "golden" / "record-docker.json").read_text())
LATER_COLUMNS = ("variant", "isolation", "headline", "headline_value", "headline_unit", "quick")
OUTPUTS = np.linspace(-1, 1, 40, dtype=np.float32).reshape(4, 10)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    monkeypatch.chdir(tmp_path)
    return InProcess(capsys)


class Runs:
    """Writes run folders as if runs had been made; each is a second later than the last."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "data" / "runs"
        self._count = 0

    def add(self, form: str = "onnxruntime", runtime: str = "docker", **changes: Any) -> str:
        self._count += 1
        run_id = f"20261121T0857{self._count:02}Z-{self._count:06x}"
        record = copy.deepcopy(GOLDEN)
        offset, mean_ns = changes.pop("offset", 0.0), changes.pop("mean_ns", 10_000.0)
        isolation = {"docker": "pinned", "process": "hash-locked"}[runtime]
        record |= {"run_id": run_id, "runtime": runtime, "isolation": isolation}
        record["bundle"] |= {"name": "digits-cnn", "manifest_digest": "sha256:" + "0" * 64}
        record["framework"] = {"name": form.split("-", maxsplit=1)[0], "version": "1.0", "variant": form}
        record["result"]["latency_ns"]["trimmed_mean"] = mean_ns
        record["environment"] |= changes.pop("environment", {})
        record |= changes
        path = self.folder / run_id
        path.mkdir(parents=True)
        (path / "record.json").write_text(json.dumps(record))
        (path / "owner.lock").touch()
        if record["status"] == "completed":
            np.savez(path / "outputs.npz", predictions=OUTPUTS.argmax(1), output_0=OUTPUTS + offset)
        return run_id


@pytest.fixture
def runs(home: Path) -> Runs:
    return Runs(home)


def table(text: str) -> list[str]:
    return text.split("\n\n", maxsplit=1)[0].splitlines()


def warned(reference: str) -> dict[str, Any]:
    return {"warnings": [{"reference": reference, "message": "busy", "hint": "wait"}]}


def test_the_reference_is_the_top_level_form_in_its_pinned_image(cli, runs) -> None:
    made = [
        runs.add("torch"),
        runs.add("onnxruntime", "process"),
        runs.add("tensorflow-frozen"),
        runs.add("onnxruntime"),
        runs.add("torch", "process"),
    ]
    found = cli("compare", "--model", "digits-cnn", "--json").document()["runs"]
    assert [row["run_id"] for row in found] == [made[3], made[1], made[0], made[4], made[2]]
    assert [row["reference"] for row in found] == [True, False, False, False, False]
    lines = table(cli("compare", "--model", "digits-cnn").stdout)
    assert lines[1].endswith("reference")
    assert all("within tolerance" in line for line in lines[2:])


def test_another_reference_is_named(cli, runs) -> None:
    first, second, third = (
        runs.add("onnxruntime"),
        runs.add("torch", mean_ns=20_000.0),
        runs.add("tensorflow"),
    )
    found = cli("compare", "--model", "digits-cnn", "--against", second, "--json").document()["runs"]
    assert found[0]["run_id"] == second
    assert found[0]["reference"]
    assert {row["run_id"] for row in found} == {first, second, third}
    assert [row["latency_ratio"] for row in found] == [1.0, 0.5, 0.5]
    assert [r["run_id"] for r in cli("compare", first, "--against", third, "--json").document()["runs"]] == [
        third,
        first,
    ]


def test_a_run_of_an_unknown_environment_stands_beside_the_locked_one(cli, runs) -> None:
    locked = runs.add("onnxruntime", "process")
    loose = runs.add("onnxruntime", "process", isolation="unpinned")
    lines = table(cli("compare", "--model", "digits-cnn").stdout)
    assert [line.split()[0] for line in lines[1:]] == [locked, loose]
    assert "process (unpinned)" not in lines[1]
    assert "process (unpinned)" in lines[2]
    assert "process (unpinned)" in next(
        line for line in cli("runs", "list").stdout.splitlines() if line.startswith(loose)
    )


def test_the_tolerance_stands_below_the_table(cli, runs) -> None:
    runs.add()
    assert cli("compare", "latest").stdout.splitlines()[-1].startswith("tolerance: |a - b| <= 1e-05 + 1e-05")
    assert "<= 0.5 + 0 *" in cli("compare", "latest", "--rtol", "0", "--atol", "0.5").stdout.splitlines()[-1]


def test_the_check_names_every_pair_that_differs(cli, runs) -> None:
    reference, same = runs.add("onnxruntime"), runs.add("onnxruntime", "process")
    far, further = runs.add("torch", offset=0.01), runs.add("tensorflow", offset=0.1)
    failed = cli("compare", "--model", "digits-cnn", "--check")
    assert failed.status == 1
    assert failed.stdout.count("BEYOND tolerance") == 2
    said = [line for line in failed.stderr.splitlines() if "differ by up to" in line]
    assert [far in said[0], further in said[1]] == [True, True]
    assert all(reference in line for line in said)
    assert same not in failed.stderr
    assert cli("compare", reference, same, "--check").status == 0


def test_warnings_and_failures_are_marked_and_explained(cli, runs) -> None:
    good = runs.add()
    loaded = runs.add("torch", environment=warned("machine-loaded"))
    failed = runs.add(
        "tensorflow",
        status="failed",
        result=None,
        accuracy=None,
        validity={"valid": False, "reasons": ["the run is failed"]},
        error={"reference": "worker-crashed", "message": "the worker ended", "where": None, "hint": None},
    )
    shown = cli("compare", good, loaded, failed).stdout
    lines = {line.split()[0]: line for line in table(shown)}
    assert " ok " in lines[good]
    assert "ok !" not in lines[good]
    assert "ok !" in lines[loaded]
    assert "FAILED" in lines[failed]
    assert f"! machine-loaded: {loaded}" in shown
    assert f"FAILED {failed}: [worker-crashed]" in shown


def loadgen_run(runs: Runs, name: str, **result: float) -> str:
    scenario = {"single-stream": "SingleStream", "server": "Server"}[name]
    found = {**GOLDEN["result"], "loadgen": {"scenario": scenario, "result": result}}
    found["latency_ns"] = {"p50": 1, "p99": 2, "trimmed_mean": None}
    return runs.add(result=found, scenario={"name": name, "options": {"quick": True}}, mean_ns=None)


def test_runs_of_different_loads_have_no_ratio_and_the_reason_is_told(cli, runs) -> None:
    online = runs.add()
    longer = runs.add(scenario={"name": "online", "options": {"duration_s": 9.0, "warmup": "auto"}})
    poisson = runs.add(scenario={"name": "poisson", "options": {"rate_per_s": 20.0}})
    faster = runs.add(scenario={"name": "poisson", "options": {"rate_per_s": 40.0}})
    shown = cli("compare", online, longer, poisson)
    assert f"no ratio for {poisson}: its scenario is poisson, that of the reference online" in shown.stdout
    assert table(shown.stdout)[0].split("  ")[0] == "run"
    assert "scenario" in table(shown.stdout)[0]
    found = cli("compare", online, longer, poisson, "--json").document()["runs"]
    assert [(row["ratio"], row["latency_ratio"]) for row in found] == [(1.0, 1.0), (1.0, 1.0), (None, None)]
    told = cli("compare", poisson, faster).stdout
    assert f"no ratio for {faster}: rate differs: 40.0 and 20.0 of the reference" in told


def test_runs_of_loadgen_are_listed_and_compared_by_what_loadgen_says(cli, runs) -> None:
    slow = loadgen_run(runs, "single-stream", early_stopping_latency_ss=20_000)
    fast = loadgen_run(runs, "single-stream", early_stopping_latency_ss=10_000)
    server = loadgen_run(runs, "server", result_scheduled_samples_per_sec=2000.0)
    lines = {line.split()[0]: line for line in table(cli("runs", "list").stdout)}
    assert "10.0 us p90, estimated" in lines[fast]
    assert "2,000 /s scheduled" in lines[server]
    assert " quick " in lines[server]
    assert all(row["quick"] for row in cli("runs", "list", "--json").document()["runs"])
    shown = cli("compare", slow, fast).stdout
    assert "x0.50" in shown
    assert shown.count(" quick ") == 2


def test_small_ratios_keep_two_digits(cli, runs) -> None:
    slow, fast = runs.add(mean_ns=124_000.0), runs.add("torch", mean_ns=8760.0)
    assert "x0.071" in cli("compare", slow, fast).stdout


@pytest.mark.parametrize("command", [("runs", "list"), ("compare", "--model", "digits-cnn")])
def test_programs_get_raw_numbers_with_units_in_the_names(cli, runs, command) -> None:
    runs.add(mean_ns=12_345.5)
    (row,) = csv.DictReader(io.StringIO(cli(*command, "--format", "csv").stdout))
    assert float(row["trimmed_mean_ns"]) == 12_345.5
    assert row["valid"] == "true"
    line = json.loads(cli(*command, "--format", "jsonl").stdout)
    assert line["trimmed_mean_ns"] == 12_345.5
    assert line["valid"] is True
    (in_document,) = cli(*command, "--json").document()["runs"]
    assert in_document == line


def test_runs_are_listed_by_framework_or_form(cli, runs) -> None:
    runs.add("onnxruntime")
    torch, export = runs.add("torch"), runs.add("torch-export")

    def found(name: str) -> list[str]:
        rows = cli("runs", "list", "--framework", name, "--json").document()["runs"]
        return [row["run_id"] for row in rows]

    assert found("torch") == [export, torch]
    assert found("Torch-Export") == [export]
    assert found("mxnet") == []
    assert "torch-export (torch) 1.0" in cli("runs", "list").stdout


def test_runs_are_searched_sorted_and_paged(cli, runs) -> None:
    slow = runs.add("torch", mean_ns=30_000.0)
    fast = runs.add("torch", mean_ns=10_000.0, validity={"valid": False, "reasons": ["x"]})
    middle = runs.add("onnxruntime", mean_ns=20_000.0)

    def found(*arguments: str) -> tuple[list[str], int]:
        document = cli("runs", "list", *arguments, "--json").document()
        return [row["run_id"] for row in document["runs"]], document["total"]

    assert found("--filter", "torch digits") == ([fast, slow], 2)
    assert found("--filter", "status:invalid") == ([fast], 1)
    assert found("--filter", "status:invalid", "--framework", "onnxruntime") == ([], 0)
    assert found("--sort", "headline") == ([fast, middle, slow], 3)
    assert found("--sort", "headline", "--reverse") == ([slow, middle, fast], 3)
    assert found("--reverse") == ([slow, fast, middle], 3)
    assert found("--offset", "1", "--limit", "1") == ([fast], 3)
    assert "no runs like that" in cli("runs", "list", "--filter", "nowhere").stderr
    cli("runs", "list", "--sort", "colour", "--json").error(2, "usage")


def test_an_index_of_the_first_version_is_filled_from_its_records(cli, runs, home: Path) -> None:
    run_id = runs.add("torch-export", "process", isolation="unpinned")
    path = home / "data" / "runs.sqlite"
    cli("runs", "list")
    with sqlite3.connect(path) as connection:
        connection.executescript(
            "DROP INDEX runs_listed;"
            + ";".join(f"ALTER TABLE runs DROP COLUMN {name}" for name in LATER_COLUMNS)
            + "; PRAGMA user_version = 1"
        )
    connection.close()
    (row,) = RunDatabase(path).rows()
    assert (row["run_id"], row["variant"], row["isolation"]) == (run_id, "torch-export", "unpinned")
    assert (row["headline"], row["headline_value"], row["quick"]) == ("trimmed mean", 10_000.0, False)


def test_a_removed_run_is_gone_from_the_disk_and_the_lists(cli, runs) -> None:
    keep, go = runs.add(), runs.add()
    planned = cli("runs", "rm", go, "--dry-run", "--json").document()
    assert (planned["removed"], planned["runs"]) == (False, [go])
    assert planned["size_bytes"] > 0
    assert (runs.folder / go).is_dir()
    done = cli("runs", "rm", go[:-2], "--yes")
    assert (done.status, done.stdout) == (0, f"removed {go}\n")
    assert [path.name for path in runs.folder.iterdir()] == [keep]
    assert [row["run_id"] for row in cli("runs", "list", "--json").document()["runs"]] == [keep]
    cli("runs", "show", go, "--json").error(2, "reference-not-found")


def test_nothing_is_removed_without_an_answer(cli, runs) -> None:
    run_id = runs.add()
    refused = cli("runs", "rm", run_id, "--json").error(2, "usage")
    assert refused["context"] == [run_id]
    assert "--yes" in refused["hint"]
    assert (runs.folder / run_id / "record.json").is_file()


def test_a_run_that_goes_on_is_not_removed(cli, runs) -> None:
    run_id = runs.add()
    (runs.folder / run_id / "record.json").unlink()
    with (runs.folder / run_id / "owner.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error = cli("runs", "rm", run_id, "--yes", "--json").error(2, "usage")
    assert "goes on" in error["message"]
    assert (runs.folder / run_id).is_dir()


def test_a_removal_that_was_cut_short_is_finished(cli, runs, home: Path) -> None:
    run_id = runs.add()
    assert run_id in cli("runs", "list").stdout
    (runs.folder / run_id).rename(runs.folder / f".{run_id}.removed")
    assert run_id not in cli("runs", "list").stdout
    assert list(runs.folder.iterdir()) == []
    finish_removals(home / "nothing", RunDatabase(home / "data" / "runs.sqlite"))


def test_distributions_of_one_side_are_folded(cli, runs) -> None:
    left = runs.add(environment={"distributions": {"numpy": "1", "onnxruntime": "1"}})
    many = {f"package{number}": "1" for number in range(20)}
    right = runs.add("torch", environment={"distributions": {"numpy": "2", **many}})
    lines = cli("runs", "diff", left, right).stdout.splitlines()
    said = [line.split(None, 1)[1] for line in lines if line.startswith("distributions")]
    assert [text.split("  ")[0] for text in said] == ["numpy", "only on the left", "only on the right"]
    assert "20 (--all lists them)" in said[2]
    assert all(len(line) <= 100 for line in lines)
    assert "package7" in cli("runs", "diff", left, right, "--all").stdout
    places = [change["place"] for change in cli("runs", "diff", left, right, "--json").document()["changes"]]
    assert "/environment/distributions/package7" in places


def test_differences_are_told_in_words_and_units(cli, runs) -> None:
    left, right = runs.add(mean_ns=10_000.0), runs.add(mean_ns=25_000.0)
    lines = cli("runs", "diff", left, right).stdout.splitlines()
    assert re.split(r" {2,}", lines[-1]) == ["result", "latency trimmed mean", "10.0 us", "25.0 us", "x2.50"]


def test_a_terminal_of_80_columns_breaks_no_word(runs, home: Path) -> None:
    runs.add("onnxruntime", mean_ns=1234.0)
    reasons = ["the rate could not be held: 20,000 /s came, 9,000 /s were answered, and 700 still waited"]
    runs.add("torch-export", "process", isolation="unpinned", validity={"valid": False, "reasons": reasons})
    for command in (("runs", "list"), ("compare", "--model", "digits-cnn"), ("list",)):
        shown = in_terminal(*command)
        assert all(len(line) <= 80 for line in shown.splitlines()), shown
        assert "onnxruntime" in shown, shown
    for line in in_terminal("runs", "show", "latest").splitlines():
        # A path is one word and stays whole.
        assert len(line) <= 80 or len(line.split()) <= 2, line
    assert "environments are made from hash-locked" in in_terminal("doctor")


def in_terminal(*arguments: str) -> str:
    """What a command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    environment = {"COLUMNS": "80", "NO_COLOR": "1"}
    process = subprocess.Popen(
        ["env", *(f"{name}={value}" for name, value in environment.items()), *command_line(*arguments)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    text = b""
    # The end of a terminal that nobody writes to any more is an error, EIO.
    with suppress(OSError):
        while piece := os.read(ours, 1 << 16):
            text += piece
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return text.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(("answer", "status", "left"), [("y", 0, 0), ("n", 130, 1)])
def test_a_person_is_asked_before_runs_go(runs, answer: str, status: int, left: int) -> None:
    run_id = runs.add()
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    done = subprocess.run(
        command_line("runs", "rm", run_id), stdin=theirs, capture_output=True, text=True, timeout=60
    )
    os.close(theirs)
    os.close(ours)
    assert done.returncode == status, done.stderr
    assert "for good?" in done.stderr
    assert len(list(runs.folder.iterdir())) == left
