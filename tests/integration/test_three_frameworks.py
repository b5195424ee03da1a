"""One bundle, three frameworks, two runtimes: the same weights give the same answers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from framework_pythons import framework_cache

QUICK = ("--duration", "300ms", "--warmup", "10ms")
FRAMEWORKS = ("onnxruntime", "torch", "tensorflow")
TOLERANCE = ("--rtol", "1e-5", "--atol", "1e-5")
FORMS = (*FRAMEWORKS, "torch-export", "torch-code", "tensorflow-frozen")

pytestmark = [pytest.mark.engine, pytest.mark.network]


@pytest.fixture(autouse=True)
def frameworks_home(all_images: Path, in_image_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home with all images; the environments of the frameworks are shared with other tests."""
    environments = in_image_home / "cache" / "envs"
    if not environments.exists():
        shared = framework_cache() / "envs"
        shared.mkdir(parents=True, exist_ok=True)
        environments.parent.mkdir(parents=True, exist_ok=True)
        environments.symlink_to(shared, target_is_directory=True)
    return in_image_home


@pytest.mark.parametrize("runtime", ["docker", "process"])
def test_every_form_of_the_model_says_the_same_in_every_framework_and_runtime(
    cli, frameworks_home: Path, runtime: str
) -> None:
    runs = []
    # The forms are the same bytes in both; one of each framework is enough for the second runtime.
    forms = FORMS if runtime == "docker" else FRAMEWORKS
    for form in forms:
        done = cli("run", "digits-cnn", "--framework", form, "--runtime", runtime, *QUICK, "--json")
        record = done.document()
        # A busy machine may make a result invalid: what is looked at here are answers.
        assert done.status == (0 if record["validity"]["valid"] else 1), done.stderr + done.stdout
        assert record["runtime"] == runtime
        assert record["isolation"] == {"docker": "pinned", "process": "hash-locked"}[runtime]
        assert record["framework"]["name"] == form.split("-")[0]
        assert record["framework"]["variant"] == form
        assert record["accuracy"]["passed"] is True
        assert record["accuracy"]["samples"] == 360
        assert record["environment"]["framework"]["threads"] == 1
        runs.append(record["run_id"])
    compared = cli("compare", *runs, *TOLERANCE, "--check", "--json")
    assert compared.status == 0, compared.stderr + compared.stdout
    rows = compared.document()["runs"]
    assert [row["differing_predictions"] for row in rows] == [0] * len(forms)
    assert all(row["tolerance_used"] <= 1 for row in rows)
    # Looked at once more, without our own comparison: what the issue is about must not hang on one function.
    outputs = [load(frameworks_home, run)["output_0"] for run in runs]
    assert all(array.shape == (360, 10) for array in outputs)
    for array in outputs[1:]:
        np.testing.assert_allclose(array, outputs[0], rtol=1e-5, atol=1e-5)


def test_one_table_holds_both_runtimes_and_all_frameworks(cli, frameworks_home: Path) -> None:
    done = cli("compare", "--model", "digits-cnn", *TOLERANCE, "--json")
    assert done.status == 0, done.stderr
    rows = done.document()["runs"]
    seen = {(row["runtime"], row["variant"]) for row in rows}
    assert seen >= {(runtime, framework) for runtime in ("docker", "process") for framework in FRAMEWORKS}
    assert all(row["same"] for row in rows)
    # What the manifest has at its top, in the pinned image: the same reference whatever was run last.
    assert (rows[0]["variant"], rows[0]["runtime"], rows[0]["reference"]) == ("onnxruntime", "docker", True)
    table = cli("compare", "--model", "digits-cnn", *TOLERANCE).stdout
    assert table.count("same 360") == table.count("within tolerance") == len(rows) - 1


def test_a_difference_is_said_and_fails_the_check(cli, frameworks_home: Path) -> None:
    run = cli("run", "digits-cnn", "--runtime", "docker", *QUICK, "--json").document()["run_id"]
    copy = cli("run", "digits-cnn", "--runtime", "docker", *QUICK, "--json").document()["run_id"]
    path = frameworks_home / "data" / "runs" / copy / "outputs.npz"
    arrays = dict(load(frameworks_home, copy))
    arrays["output_0"] = arrays["output_0"] + 0.01
    np.savez(path, **arrays)
    error = cli("compare", run, copy, "--check")
    assert error.status == 1
    assert "outputs-differ" in error.stderr
    assert "BEYOND tolerance" in error.stdout
    assert cli("compare", run, copy).status == 0


def test_an_unknown_framework_is_named_beside_the_forms_that_exist(cli) -> None:
    error = cli("run", "digits-cnn", "--framework", "mxnet", "--json").error(2, "reference-not-found")
    assert (
        error["hint"] == "one of: onnxruntime, torch, torch-export, torch-code, tensorflow, tensorflow-frozen"
    )


def load(home: Path, run: str) -> dict[str, np.ndarray]:
    with np.load(home / "data" / "runs" / run / "outputs.npz") as archive:
        return {name: archive[name] for name in archive.files}


def test_threads_are_told_to_every_framework_the_same_way(cli) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    for framework in FRAMEWORKS:
        done = cli(
            "run", "digits-cnn", "--framework", framework, "--runtime", "docker", "--threads", "2",
            "--cpus", "0,1", "--no-accuracy", *QUICK, "--json",
        )  # fmt: skip
        record = json.loads(done.stdout)
        assert record["environment"]["framework"]["threads"] == 2, framework
        assert record["environment"]["limits"]["threads"] == 2
