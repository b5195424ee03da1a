"""Accuracy metrics on answers of every form."""

from __future__ import annotations

import numpy as np
import pytest

from mlbundle.worker.errors import WorkerError
from mlbundle.worker.metrics import Top1, Top5
from mlbundle.worker.pipeline.base import Ranked


def counted(metric, pairs):
    for answer, label in pairs:
        metric.update(answer, label)
    return metric.value()


def test_top1_of_scores_classes_and_rankings() -> None:
    ranked = Ranked(indices=np.array([2, 1]), scores=np.array([0.9, 0.1]), labels=("two", "one"))
    pairs = [(np.array([0.1, 0.9]), 1), (3, np.int64(3)), (ranked, 2), (ranked, 1)]
    assert counted(Top1(), pairs) == 0.75


def test_names_are_compared_with_names() -> None:
    assert counted(
        Top1(), [(["cat", "dog"], "cat"), (["cat", "dog"], "dog"), ("dog", "dog")]
    ) == pytest.approx(2 / 3)


def test_top5_looks_at_five() -> None:
    scores = np.array([6, 5, 4, 3, 2, 1.0])
    assert counted(Top5(), [(scores, 4), (scores, 5)]) == 0.5


def test_predictions_are_the_first_classes() -> None:
    metric = Top1()
    counted(metric, [(np.array([0.1, 0.9]), 0), (7, 7)])
    assert metric.predictions == [1, 7]


def test_an_answer_of_no_known_form_is_the_bundles_fault() -> None:
    with pytest.raises(WorkerError) as caught:
        Top1().update({"a": 1}, 0)
    assert caught.value.fault == "bundle"
