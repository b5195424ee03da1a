"""Post-processing of classifiers."""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

from mlbundle.worker.errors import bundle_error
from mlbundle.worker.pipeline.base import Context, Ranked, check_params


class ArgSort:
    """Sort scores, best first; ties keep the order of the classes. Parameters: labels_url, k."""

    def __init__(self, params: Mapping[str, Any], context: Context) -> None:
        check_params("argsort", params, ("labels_url", "k"))
        path = params.get("labels_url")
        self._labels = context.read_lines(str(path)) if path else []
        self._k = int(params["k"]) if params.get("k") is not None else None

    def __call__(self, value: Any) -> Ranked:
        """Rank the scores of one sample; raises WorkerError when there are fewer labels than classes."""
        scores = np.asarray(value).reshape(-1)
        if self._labels and len(self._labels) < len(scores):
            raise bundle_error(
                "labels-missing", "{} classes and only {} labels".format(len(scores), len(self._labels))
            )
        order = np.argsort(-scores, kind="stable")[: self._k]
        labels = tuple(self._labels[i] for i in order) if self._labels else ()
        return Ranked(indices=order, scores=scores[order], labels=labels)
