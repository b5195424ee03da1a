"""Accuracy metrics: fed sample by sample, then asked for one number."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from mlbundle.worker.errors import bundle_error
from mlbundle.worker.pipeline.base import Ranked
from mlbundle.worker.pipeline.classify import descending


class TopK:
    """Share of samples whose label is among the first k classes."""

    k = 1

    def __init__(self) -> None:
        self._hits = 0
        self._samples = 0
        self.predictions: list[int] = []

    def update(self, answer: Any, label: Any) -> None:
        """Take the answer for one sample: ranked classes, scores, a class number, or class names best first."""
        indices, names = _ranking(answer)
        wanted = label.item() if isinstance(label, np.generic) else label
        first = names[: self.k] if isinstance(wanted, str) else indices[: self.k]
        hit = (wanted if isinstance(wanted, str) else int(wanted)) in first
        self._hits += hit
        self._samples += 1
        self.predictions.append(indices[0] if indices else -1)

    def value(self) -> float:
        """Return the share as a fraction."""
        return self._hits / self._samples if self._samples else 0.0

    @property
    def samples(self) -> int:
        """How many samples were counted."""
        return self._samples


class Top1(TopK):
    """Share of samples whose first class is the label."""

    k = 1


class Top5(TopK):
    """Share of samples whose label is among the first five classes."""

    k = 5


def _ranking(answer: Any) -> tuple[list[int], Sequence[str]]:
    """Return class numbers and class names, best first; one of the two may be empty."""
    if answer is None:
        raise bundle_error(
            "answer-not-understood",
            "post-processing returned nothing",
            "is a `return` missing in postprocess?",
        )
    if isinstance(answer, Ranked):
        return [int(i) for i in answer.indices], answer.labels
    if isinstance(answer, (int, np.integer)):
        return [int(answer)], ()
    if isinstance(answer, str):
        return [], (answer,)
    if isinstance(answer, (list, tuple)) and answer and all(isinstance(item, str) for item in answer):
        return [], tuple(answer)
    try:
        order = descending(np.asarray(answer).reshape(-1))
    except (TypeError, ValueError):
        raise bundle_error(
            "answer-not-understood",
            "post-processing returned {}, which is no class, no scores and no names".format(
                type(answer).__name__
            ),
            "return a class number, an array of scores, or class names best first",
        ) from None
    return [int(i) for i in order], ()
