"""PyTorch through its predictor: every form of a model, what fits and what does not, in one process of its own."""

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
def answers(torch_python, tmp_path_factory) -> dict[str, Any]:
    """What the predictor answered, by case."""
    done = subprocess.run(
        [torch_python, "-s", HERE / "torch_cases.py", tmp_path_factory.mktemp("torch")],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def close(found: Any, expected: Any) -> bool:
    return len(found) == len(expected) and all(
        np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(found, expected, strict=True)
    )


def refused(answer: Any, reference: str, *words: str, fault: str = "bundle") -> None:
    assert isinstance(answer, dict), answer
    assert (answer["reference"], answer["fault"]) == (reference, fault), answer
    said = answer["message"] + " " + (answer["hint"] or "")
    assert all(word in said for word in words), said


@pytest.mark.parametrize("form", ["trace", "trace-reversed", "trace-by-position", "export"])
def test_two_inputs_and_two_outputs_go_where_they_belong(answers, form) -> None:
    assert close(answers[form], answers["expected"])


def test_outputs_of_a_dictionary_come_in_the_order_of_the_manifest(answers) -> None:
    assert close(answers["export-reversed"], answers["expected"][::-1])


def test_further_outputs_are_left_out(answers) -> None:
    assert close(answers["one-output"], answers["expected"][:1])


def test_a_free_batch_axis_takes_one_sample(answers) -> None:
    assert close(answers["export-one-sample"], [rows[:1] for rows in answers["expected"]])


@pytest.mark.parametrize("form", ["safetensors", "state-dict"])
def test_code_with_weights_apart_is_switched_to_evaluation(answers, form) -> None:
    """In training its dropout would change the sum from run to run."""
    first, second = (np.array(rows) for rows in answers["expected"])
    assert close(answers[form], [first, first + second])


def test_a_model_saved_in_training_is_switched_to_evaluation(answers) -> None:
    assert np.shape(answers["trained"]) == (1, 2, 4)
    assert np.count_nonzero(answers["trained"]) == 8, "dropout would have made zeros"


def test_an_optional_argument_is_passed_by_name(answers) -> None:
    assert close(answers["by-keyword"], [2 * np.array(answers["expected"][0])])


def test_arrays_that_cannot_be_written_are_taken(answers) -> None:
    first, second = answers["expected"]
    assert close(answers["read-only"], [first[::-1], second])


def test_inference_mode_is_on_and_every_tensor_becomes_an_array(answers) -> None:
    """The mode, a parameter that wants gradients, and a type that NumPy does not have."""
    assert answers["odd-outputs"] == [[1.0, 0.0], [1.5], [0.5]]


def test_inference_mode_is_on_in_any_thread_and_off_after_closing(answers) -> None:
    assert answers["other-thread"] == [[1.0, 0.0], False]


@pytest.mark.parametrize(
    ("model", "sum_of_six"),
    [
        ("doubles.py", 12.0),
        ("doubles.pt", 12.0),
        ("doubles.pt2", 12.0),
        ("clips.py", 6.0),
        ("hidden.py", 42.0),
        ("in inference mode", 6.0),
    ],
)
def test_a_model_that_writes_to_its_inputs_gets_the_same_ones_each_time(answers, model, sum_of_six) -> None:
    told = answers["written " + model]
    assert told["answers"] == [[sum_of_six] * 2] * 6
    assert told["left"] == [[1.0] * 6] * 2
    assert "copy of the inputs" in told["timed"]


def test_the_copies_are_only_for_models_that_write(answers) -> None:
    assert "copy" not in answers["written train.pt"]["timed"]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_threads_of_the_job_are_taken(answers, threads) -> None:
    told = answers[f"facts-{threads}"]
    assert told["torch"] == [threads, 1]
    facts = told["facts"]
    assert (facts["threads"], facts["inter_op_threads"], facts["device"]) == (threads, 1, "cpu")
    assert facts["version"].startswith("2.")
    assert facts["timed"]


def test_names_that_fit_half_are_refused(answers) -> None:
    refused(answers["names-half"], "inputs-mismatch", "['points', 'extra']", "['points', 'y']")
    refused(answers["too-few"], "inputs-mismatch", "extra")
    refused(answers["fed-otherwise"], "inputs-mismatch", "extra")


def test_outputs_that_are_not_there_are_named(answers) -> None:
    refused(answers["output-unknown"], "outputs-mismatch", "'three'", "one, two")
    refused(answers["outputs-missing"], "outputs-mismatch", "2 tensors", "3 outputs")


def test_a_wrong_type_is_told_before_anything_is_timed(answers) -> None:
    refused(answers["wrong-type"], "inference-failed", "RuntimeError", "types and shapes")
    refused(answers["text"], "inputs-mismatch", "'extra'")


def test_what_the_code_of_a_model_raises_is_the_bundles_fault(answers) -> None:
    refused(answers["fails-later"], "inference-failed", "ValueError: three axes")


@pytest.mark.parametrize("name", ["garbage.pt", "garbage.pt2", "whole.pt", "pair.bin"])
def test_a_file_that_is_no_model_is_refused(answers, name) -> None:
    refused(answers["load " + name], "model-not-loadable", name, "TorchScript")


def test_code_that_makes_no_model_is_refused(answers) -> None:
    refused(answers["load text.py"], "model-not-loadable", "text.py returns a str")
    refused(answers["load none.py"], "code-unloadable", "defines no model")
    refused(answers["load ends.py"], "model-not-loadable", "ends the process")
    refused(answers["load raises.py"], "model-not-loadable", "no such size")


def test_weights_that_do_not_fit_are_refused(answers) -> None:
    refused(answers["weights less.safetensors"], "model-not-loadable", "second.bias")
    refused(answers["weights garbage.safetensors"], "model-not-loadable")
    refused(answers["weights garbage.bin"], "model-not-loadable")
    refused(answers["weights-unused"], "model-not-loadable", "weights_path")


def test_a_state_dict_cannot_carry_a_program(answers) -> None:
    refused(answers["weights planted.bin"], "model-not-loadable", "mkdir")
    assert answers["planted"] is False


def test_an_accelerator_that_is_not_there_is_never_replaced_by_the_cpu(answers) -> None:
    refused(answers["gpu"], "accelerator-missing", "gpu", "built without it", fault="environment")
    refused(answers["tpu"], "accelerator-missing", "tpu", fault="environment")
