"""For scripts that run in a framework's own Python: predictors are called, what they answer is noted, JSON goes out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mlbundle.worker.errors import WorkerError


class Notes:
    """Answers by the name of the case; the test that started the script reads them."""

    def __init__(self) -> None:
        self._answers: dict[str, Any] = {}

    def note(self, case: str, action: Callable[[], Any]) -> None:
        """Note what `action` returns, or the error that a user would read."""
        assert case not in self._answers
        try:
            self._answers[case] = action()
        except WorkerError as error:
            self._answers[case] = {
                "reference": error.reference,
                "fault": error.fault,
                "message": error.message,
                "hint": error.hint,
            }
        except MemoryError as error:
            self._answers[case] = {"reference": "MemoryError", "message": str(error)}

    def send(self) -> None:
        """Write everything to stdout as the last line."""
        print(json.dumps(self._answers))
        sys.stdout.flush()


def specs(names: list[str | None]) -> list[dict[str, Any]]:
    """Tensors of a manifest as the worker gives them to a predictor."""
    return [{"layer_name": name} for name in names]


def options(inputs: list[str | None], outputs: list[str | None], **others: Any) -> dict[str, Any]:
    """What the worker tells a predictor."""
    return {
        "threads": 1,
        "accelerator": "cpu",
        "trace_level": "none",
        "inputs": specs(inputs),
        "outputs": specs(outputs),
        **others,
    }


def answer(predictor: Any, model: dict[str, str], told: dict[str, Any], feeds: dict[str, Any]) -> list[Any]:
    """Open, prepare, predict twice, close: the outputs as lists. Both answers must be the same."""
    handle = predictor.open(model, told)
    try:
        batch = predictor.prepare(handle, feeds)
        first = [np.array(array) for array in predictor.predict(handle, batch)]
        second = predictor.predict(handle, batch)
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        assert all(isinstance(array, np.ndarray) for array in second)
        return [array.tolist() for array in first]
    finally:
        predictor.close(handle)
