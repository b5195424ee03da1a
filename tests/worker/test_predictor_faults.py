"""Whose fault it is when a bundle's own predictor fails: never ours, and it says where."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import make_bundle

from mlbundle.worker.errors import WorkerError
from mlbundle.worker.predictors.answer import AnswerCheck

PREDICTOR = """
import sys
import numpy as np

class Handle:
    input_names = ["points"]
    output_names = ["scores"]

class Predictor:
    def open(self, model, options):
        {open}
        return Handle()
    def prepare(self, handle, feeds):
        {prepare}
        return feeds
    def predict(self, handle, batch):
        {predict}
        return [np.zeros((1, 4), np.float32)]
    def close(self, handle):
        pass
"""


def bundle_with(folder: Path, **bodies: str) -> Path:
    made = make_bundle(folder)
    text = PREDICTOR.format(**{"open": "pass", "prepare": "pass", "predict": "pass", **bodies})
    (made / "predictor.py").write_text(text)
    with (made / "model.yml").open("a") as manifest:
        manifest.write("predictor: predictor.py\n")
    return made


@pytest.mark.parametrize(
    ("bodies", "words"),
    [
        ({"open": "raise RuntimeError('no licence server')"}, ["open()", "RuntimeError: no licence server"]),
        ({"open": "sys.exit(0)"}, ["open()", "SystemExit"]),
        ({"prepare": "feeds['pints']"}, ["prepare()", "pints"]),
        ({"predict": "raise ValueError('no such core')"}, ["predict()", "ValueError: no such core"]),
    ],
)
def test_what_it_raises_is_the_bundles_fault_and_says_where(cli, tmp_path, bodies, words) -> None:
    folder = bundle_with(tmp_path / "bundle", **bodies)
    run = ("run", folder, "--python", sys.executable, "--trust", "--queries", "20", "--warmup", "10ms")
    outcome = cli(*run, "--json")
    found = outcome.error(4, "worker-failed")
    assert "the bundle's own predictor" in found["message"]
    assert all(word in found["message"] for word in words), found["message"]
    assert "mistake in mlbundle" not in str(found["hint"])


def test_an_answer_of_the_wrong_kind_ends_the_run_before_anything_is_timed(cli, tmp_path) -> None:
    folder = bundle_with(tmp_path / "bundle", predict="return np.zeros((1, 4), np.float32)")
    run = ("run", folder, "--python", sys.executable, "--trust", "--queries", "20", "--json")
    found = cli(*run).error(4, "worker-failed")
    assert found["message"] == "predict() returned an array; a list of 1 array is expected"
    assert found["fault"] == "bundle"


def test_a_handle_needs_no_names(cli, tmp_path) -> None:
    folder = bundle_with(tmp_path / "bundle", open="return object()")
    manifest = (folder / "model.yml").read_text()
    nameless = manifest.replace("layer_name: points, ", "").replace("layer_name: scores, ", "")
    (folder / "model.yml").write_text(
        nameless.replace("inputs: {points: points}, ", "inputs: {input: points}, ")
    )
    run = ("run", folder, "--python", sys.executable, "--trust", "--queries", "20", "--no-accuracy", "--json")
    assert cli(*run).document()["status"] == "completed"


SCORES = {"layer_name": "scores", "element_type": "float32", "shape": ["N", 4]}
BOXES = {"layer_name": "boxes", "element_type": "int64", "shape": ["N", -1, 2]}
GOOD = np.zeros((3, 4), np.float32)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "predict() returned nothing; a list of 1 array is expected"),
        ({"scores": GOOD}, "predict() returned a dictionary; a list of 1 array is expected"),
        ((), "predict() returned a list of 0; a list of 1 array is expected"),
        ([GOOD.tolist()], "a value of type list as the output 'scores'; a NumPy array is expected"),
        ([np.float32(1)], "a value of type float32 as the output 'scores'"),
        ([GOOD[:2]], "the output 'scores' has the shape [2, 4], and the batch holds 3 samples"),
        ([GOOD[0, 0, ...]], "has the shape [], and the batch holds 3 samples"),
        ([GOOD.astype(np.float64)], "has elements of float64, and the manifest says float32"),
        ([GOOD[:, :3]], "has the shape [3, 3], and the manifest says ['N', 4]"),
        ([GOOD[..., None]], "has the shape [3, 4, 1], and the manifest says ['N', 4]"),
    ],
)
def test_what_is_no_answer_is_told(answer: Any, words: str) -> None:
    with pytest.raises(WorkerError) as failure:
        AnswerCheck([SCORES], [0], own=True).check(answer, 3)
    assert words in failure.value.message
    assert (failure.value.reference, failure.value.fault) == ("outputs-mismatch", "bundle")


def test_whose_fault_an_answer_is() -> None:
    for answer, fault in ((GOOD, "framework"), ([GOOD.astype(np.int8)], "bundle")):
        with pytest.raises(WorkerError) as failure:
            AnswerCheck([SCORES], [0], own=False).check(answer, 3)
        assert failure.value.fault == fault


def test_outputs_are_looked_at_where_they_are_and_others_are_nobodys_business() -> None:
    boxes = np.zeros((3, 9, 2), np.int64)
    AnswerCheck([BOXES, SCORES], [2, 0], own=True).check((GOOD, "not asked for", boxes), 3)
    AnswerCheck([{"layer_name": None, "element_type": "bfloat16", "shape": None}], [0], own=True).check(
        [GOOD], 3
    )
    AnswerCheck([{"element_type": "string"}], [0], own=True).check([np.array(["a", "b", "c"])], 3)


ANYTHING = st.recursive(
    st.none() | st.text() | st.integers() | st.builds(np.zeros, st.lists(st.integers(0, 3), max_size=3)),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
)


@given(ANYTHING)
def test_nothing_else_than_an_answer_passes_or_ends_in_another_error(answer: Any) -> None:
    with pytest.raises(WorkerError, match=r"expected|manifest says|batch holds"):
        AnswerCheck([SCORES], [0], own=True).check(answer, 3)
