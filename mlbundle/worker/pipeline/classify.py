"""Post-processing of classifiers."""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

from mlbundle.worker.errors import bundle_error
from mlbundle.worker.pipeline.base import Context, Ranked, check_params


def descending(scores: Any) -> Any:
    """Return the indices of scores from the highest to the lowest; ties keep their order.

    Negated as float64: unsigned and smallest integers of quantised models have no negative of their own.
    """
    return np.argsort(-np.asarray(scores).astype(np.float64), kind="stable")


class ArgSort:
    """Sort scores, best first; ties keep the order of the classes. Parameters: labels_url, k."""

    def __init__(self, params: Mapping[str, Any], context: Context) -> None:
        check_params("argsort", params, ("labels_url", "k"))
        path = params.get("labels_url")
        self._labels = context.read_lines(str(path)) if path else []
        self._k = int(params["k"]) if params.get("k") is not None else None
        if self._k is not None and self._k < 1:
            raise bundle_error("bad-parameter", "operator 'argsort': k must be 1 or more")

    def __call__(self, value: Any) -> Ranked:
        """Rank the scores of one sample; raises WorkerError when there are fewer labels than classes."""
        scores = np.asarray(value).reshape(-1)
        if self._labels and len(self._labels) < len(scores):
            raise bundle_error(
                "labels-missing", "{} classes and only {} labels".format(len(scores), len(self._labels))
            )
        order = descending(scores)[: self._k]
        labels = tuple(self._labels[i] for i in order) if self._labels else ()
        return Ranked(indices=order, scores=scores[order], labels=labels)
