"""Python in a manifest is looked at, never run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.manifest.custom_code import code_fault, predictor_fault


@pytest.mark.parametrize(
    "code",
    [
        "def preprocess(env, data): return data",
        "def preprocess(env, data, *, fast=True): return data",
        "def preprocess(env, data, extra=1): return data",
        "def preprocess(*args): return args[1]",
        "def preprocess(env, /, data): return data",
        "def only_one(ctx, data): return data",
        "import numpy\ndef helper(x): ...\ndef preprocess(env, data): return helper(data)",
        "preprocess = lambda env, data: data",
        "from numpy import add as preprocess",
        "def preprocess(x): ...\ndef preprocess(env, data): ...",
    ],
)
def test_good_code(code: str) -> None:
    assert code_fault(code, "preprocess") is None


@pytest.mark.parametrize(
    ("code", "message", "line", "column"),
    [
        ("x = 1", "the code defines no function preprocess(env, data)", 0, 0),
        (
            "def a(x, y): ...\ndef b(x, y): ...",
            "the code defines 2 functions, none of them preprocess(env, data)",
            0,
            0,
        ),
        (
            "\ndef preprocess(data): ...",
            "preprocess does not take two positional arguments (env, data)",
            2,
            1,
        ),
        (
            "def preprocess(a, b, c): ...",
            "preprocess does not take two positional arguments (env, data)",
            1,
            1,
        ),
        (
            "def preprocess(a, b, *, c): ...",
            "preprocess does not take two positional arguments (env, data)",
            1,
            1,
        ),
        ("async def preprocess(env, data): ...", "preprocess is an async function", 1, 1),
        ("x = 1\ny = = 2", "the code is no Python: invalid syntax", 2, 5),
        ("#" * 300_000, "the code is longer than 262,144 characters", 0, 0),
    ],
)
def test_bad_code(code: str, message: str, line: int, column: int) -> None:
    fault = code_fault(code, "preprocess")
    assert fault is not None
    assert (fault.message, fault.line, fault.column) == (message, line, column)


@pytest.mark.parametrize(
    "code",
    [
        "x = '\0'",
        "(" * 100_000,
        "-" * 200_000 + "1",
        "x" + ".a" * 100_000,
        "x" + "+x" * 100_000,
        "if x:\n " * 50,
        "[" * 5_000 + "]" * 5_000,
    ],
)
def test_code_that_overwhelms_the_parser_is_a_fault_not_a_crash(code: str) -> None:
    assert code_fault(code, "preprocess") is not None


def test_code_is_not_run(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    code = f"open({str(witness)!r}, 'w')\ndef preprocess(env, data): ..."
    assert code_fault(code, "preprocess") is None
    assert not witness.exists()


def test_warnings_of_the_parser_stay_inside() -> None:
    assert code_fault("x = '\\d'\ndef preprocess(env, data): return 1 is 1", "preprocess") is None


CLOSE = "    def close(self, handle): ...\n"
PREDICT = "    def predict(self, handle, batch): ...\n"
OPEN = "class Predictor:\n    def open(self, model, options): ...\n"


@pytest.mark.parametrize(
    "code",
    [
        OPEN + PREDICT + CLOSE,
        "try:\n    import fast\nexcept ImportError:\n    class Predictor:\n" + "".join(
            f"    {line}\n" for line in (OPEN + PREDICT + CLOSE).splitlines()[1:]
        ),
        "from base import Base\nclass Predictor(Base):\n    pass\n",
        "from base import Other as Predictor\n",
        "def Predictor(): ...\n",
        "class Predictor:\n    open = predict = close = print\n",
        "class Predictor:\n    @staticmethod\n    def open(model, options): ...\n" + PREDICT + CLOSE,
    ],
)  # fmt: skip
def test_good_predictors(code: str) -> None:
    assert predictor_fault(code.encode()) is None


@pytest.mark.parametrize(
    ("code", "message", "line", "column"),
    [
        ("x = 1", "the code defines no class Predictor", 0, 0),
        ("class Predictr: ...", "the code defines no class Predictor", 0, 0),
        (OPEN, "Predictor has no predict() and no close()", 1, 1),
        (OPEN + "    def predict(self, batch): ...\n" + CLOSE, "Predictor.predict is not called so: predict(self, handle, batch)", 3, 5),
        (OPEN + "    async def predict(self, handle, batch): ...\n" + CLOSE, "Predictor.predict is an async function", 3, 5),
        (OPEN + PREDICT + CLOSE + "    def prepare(self, feeds): ...\n", "Predictor.prepare is not called so: prepare(self, handle, feeds)", 5, 5),
        (OPEN + "    def predict(self:\n", "the code is no Python: '(' was never closed", 3, 16),
        ("# coding: klingon\n", "the code is no Python: unknown encoding: klingon", 0, 0),
    ],
)  # fmt: skip
def test_what_can_not_be_a_predictor(code: str, message: str, line: int, column: int) -> None:
    fault = predictor_fault(code.encode())
    assert fault is not None
    assert (fault.message, fault.line, fault.column) == (message, line, column)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_predictor_or_a_fault(content: bytes) -> None:
    fault = predictor_fault(content)
    assert fault is None or fault.message
