"""TensorFlow through its predictor: SavedModels and frozen graphs, in one process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def answers(tensorflow_python, tmp_path_factory) -> dict[str, Any]:
    """What the predictor answered, by case."""
    done = subprocess.run(
        [tensorflow_python, "-s", HERE / "tensorflow_cases.py", tmp_path_factory.mktemp("tensorflow")],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def close(found: Any, expected: Any) -> bool:
    return len(found) == len(expected) and all(
        np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(found, expected, strict=True)
    )


def refused(answer: Any, reference: str, *words: str, fault: str = "bundle") -> None:
    assert isinstance(answer, dict), answer
    assert answer.get("reference") == reference, answer
    assert answer["fault"] == fault
    said = answer["message"] + " " + (answer["hint"] or "")
    assert all(word in said for word in words), said


def test_the_outputs_of_a_signature_come_by_name(answers) -> None:
    assert answers["saved-names"]["outputs"] == ["one", "two"]
    assert answers["saved-names"]["inputs"] == ["extra", "points"]
    assert close(answers["saved"], answers["expected"])


def test_the_only_signature_is_taken_whatever_its_name(answers) -> None:
    assert close(answers["only-signature"], [-np.array(answers["expected"][0])])


def test_a_frozen_graph_is_run_by_the_names_of_its_tensors(answers) -> None:
    """Its operators want a GPU; the CPU takes them."""
    one = np.array(answers["expected"][0])
    assert close(answers["frozen"], [np.maximum(one, 0), one])
    assert close(answers["frozen-ports"], [one])
    assert answers["frozen-two-inputs"] == [[5.0, 6.0]]


def test_the_only_placeholder_needs_no_name(answers) -> None:
    assert answers["frozen-one-input"]["inputs"] == ["points"]
    assert answers["frozen-one-input"]["outputs"] == ["one"]


def test_the_threads_of_the_job_are_started(answers) -> None:
    one, four = answers["threads"]
    assert four - one == 3
    facts = answers["saved-names"]["facts"]
    assert (facts["threads"], facts["inter_op_threads"], facts["device"]) == (3, 1, "cpu")
    assert facts["version"].startswith("2.")
    assert facts["timed"]
    assert facts["calling_thread"] == "computes beside the 3 threads"


def test_one_thread_is_one_thread(answers) -> None:
    alone, several = answers["computing"]
    assert alone == 1
    assert several > 1, "or this could not have been seen"


def test_several_signatures_without_a_default_are_refused(answers) -> None:
    refused(answers["several"], "model-not-loadable", "serving_default", "both", "negative")


@pytest.mark.parametrize("name", ["garbage.pb", "empty", "torn"])
def test_a_file_that_is_no_model_is_refused(answers, name) -> None:
    refused(answers["load " + name], "model-not-loadable", name, "SavedModel")


def test_a_file_of_a_saved_model_is_not_taken_for_a_graph(answers) -> None:
    refused(answers["load saved/saved_model.pb"], "model-not-loadable", "folder", "slash")


def test_names_that_the_graph_does_not_have_are_refused(answers) -> None:
    refused(answers["input-unknown"], "inputs-mismatch", "'pints'", "points")
    refused(answers["output-unknown"], "outputs-mismatch", "'three'", "one")
    refused(answers["output-unnamed"], "layer-name-missing", "points", "two")
    refused(answers["key-unknown"], "inputs-mismatch", "extra", "'x'")


def test_a_wrong_type_or_shape_is_told_with_both(answers) -> None:
    refused(answers["wrong-type"], "inputs-mismatch", "'extra'", "float32", "float64")
    refused(answers["wrong-shape"], "inputs-mismatch", "'extra'", "['any', 3]", "[2, 6]")


def test_weights_apart_are_refused(answers) -> None:
    refused(answers["weights-unused"], "model-not-loadable", "weights_path")


def test_an_accelerator_that_is_not_there_is_never_replaced_by_the_cpu(answers) -> None:
    refused(answers["gpu"], "accelerator-missing", "gpu", "built without it", fault="environment")
    refused(answers["fpga"], "accelerator-missing", "fpga", fault="environment")
