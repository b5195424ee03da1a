"""The worked example of a model that generates: a bundle whose answers come token by token."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import numpy as np
import pytest
from support import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "characters"
HERE = ("--python", sys.executable, "--trust", "--concurrent", "--warmup", "10ms", "--json")
LONGEST, END = 32, 10


@pytest.mark.parametrize(
    ("scenario", "arguments"),
    [("online", ("--queries", "340")), ("poisson", ("--rate", "2000", "--queries", "340", "--no-accuracy"))],
)
def test_the_example_runs_as_its_readme_says(cli, home, scenario, arguments) -> None:
    record = cli("run", EXAMPLE, *HERE, "--scenario", scenario, *arguments).document()
    jsonschema.validate(record, json.loads((ROOT / "schemas/run.schema.json").read_text()))
    assert record["status"] == "completed"
    (folder,) = (home / "data/runs" / record["run_id"]).glob("passes/*-measure")
    first, counts, latencies = (
        np.load(folder / f"{name}.npy") for name in ("first_tokens", "tokens", "latencies")
    )
    result, tokens = record["result"], record["result"]["tokens"]
    # Each of 34 samples ten times, in whatever order: lines of their own length, as the table writes them.
    assert sorted(counts.tolist()) == sorted(10 * lengths())
    assert tokens["tokens"] == counts.sum()
    assert tokens["tokens_per_s"] == pytest.approx(counts.sum() / result["duration_s"])
    assert (first >= 0).all()
    assert (first <= latencies).all()
    assert tokens["ttft_ns"]["p99"] == np.sort(first)[-(-99 * 340 // 100) - 1]
    assert tokens["tpot_ns"]["mean"] == pytest.approx(((latencies - first) / (counts - 1)).mean())
    assert result["latency_ns"]["max"] == latencies.max(), "latencies are of whole answers"
    if scenario == "online":
        assert record["accuracy"]["passed"] is True


def lengths() -> list[int]:
    """How many characters the table writes for each prompt, by a way of its own."""
    table = {bytes(row[:3].tolist()): int(row[3]) for row in np.load(EXAMPLE / "table.npy")}
    found = []
    for prompt in np.load(EXAMPLE / "dataset.npz")["prompts"]:
        text = bytes(prompt.tolist())
        while len(text) < 6 + LONGEST and not text.endswith(b"\n"):
            text += bytes([table.get(text[-3:], END)])
        found.append(len(text) - 6)
    return found


def test_the_table_is_the_one_that_its_script_makes(tmp_path) -> None:
    for name in ("train.py", "text.txt"):
        (tmp_path / name).write_bytes((EXAMPLE / name).read_bytes())
    subprocess.run([sys.executable, tmp_path / "train.py"], check=True, capture_output=True)
    assert (tmp_path / "table.npy").read_bytes() == (EXAMPLE / "table.npy").read_bytes()
    again = np.load(tmp_path / "dataset.npz")
    assert all((again[name] == array).all() for name, array in np.load(EXAMPLE / "dataset.npz").items())
