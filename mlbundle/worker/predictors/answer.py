"""Whether what `predict` returns is what the manifest says; looked at once, before anything is timed."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np

from mlbundle.worker.errors import WorkerError, bundle_error

_STRING_KINDS = "SUOT"


class AnswerCheck:
    """Holds an answer of `predict` against the outputs of a manifest.

    `positions` says where in the answer each of the manifest's outputs is, `own` whether the predictor is the bundle's:
    an answer of the wrong kind is then the bundle's fault, else that of whoever wrote the predictor. Types and sizes
    are what the manifest says of the model, and always the bundle's.
    """

    def __init__(self, outputs: Sequence[Mapping[str, Any]], positions: Sequence[int], *, own: bool) -> None:
        self._outputs = outputs
        self._positions = positions
        self._own = own

    def check(self, answer: Any, batch_size: int, call: str = "predict()") -> None:
        """Raise WorkerError unless the answer of a call is a list of arrays that fit; `batch_size` in samples."""
        self._check_list(answer, call)
        for number, position in enumerate(self._positions):
            spec = self._outputs[number] if number < len(self._outputs) else {}
            self._check_array(_named(spec, number), spec, answer[position], batch_size, call)

    def _check_list(self, answer: Any, call: str) -> None:
        wanted = max(self._positions) + 1
        if not isinstance(answer, (list, tuple)):
            raise self._wrong("{} returned {}; {} is expected".format(call, _kind(answer), _listed(wanted)))
        if len(answer) < wanted:
            raise self._wrong(
                "{} returned a list of {}; {} is expected".format(call, len(answer), _listed(wanted))
            )

    def _check_array(
        self, name: str, spec: Mapping[str, Any], array: Any, batch_size: int, call: str
    ) -> None:
        if not isinstance(array, np.ndarray):
            raise self._wrong(
                "{} returned {} as {}; a NumPy array is expected".format(call, _kind(array), name)
            )
        if not array.ndim or array.shape[0] != batch_size:
            raise _misfit(
                "{} has the shape {}, and the batch holds {}".format(
                    name, list(array.shape), "1 sample" if batch_size == 1 else "%d samples" % batch_size
                ),
                "the first axis of every output is the batch",
            )
        stated = spec.get("element_type")
        # NumPy has no such type: predictors give float32 for it.
        wanted = "float32" if stated == "bfloat16" else stated
        found = "string" if array.dtype.kind in _STRING_KINDS else array.dtype.name
        if wanted is not None and found != wanted:
            raise _misfit(
                "{} has elements of {}, and the manifest says {}".format(name, found, stated),
                "element_type of an output is what the model returns",
            )
        _check_shape(name, spec.get("shape"), array.shape)

    def _wrong(self, message: str) -> WorkerError:
        return WorkerError(
            "outputs-mismatch",
            message,
            fault="bundle" if self._own else "framework",
            hint="a predictor returns a list of arrays, one for each output, whose first axis is the batch",
        )


def _check_shape(name: str, stated: Sequence[Any] | None, found: Sequence[int]) -> None:
    """Compare the sizes that the manifest fixes; the batch comes first and is checked apart."""
    if stated is None:
        return
    fits = len(stated) == len(found) and all(
        size == real for size, real in zip(stated[1:], found[1:]) if isinstance(size, int) and size >= 0
    )
    if not fits:
        raise _misfit(
            "{} has the shape {}, and the manifest says {}".format(name, list(found), list(stated)),
            "in the shape of an output the batch comes first; a word such as N is a size that is not fixed",
        )


def _misfit(message: str, hint: str) -> WorkerError:
    return bundle_error("outputs-mismatch", message, hint)


def _named(spec: Mapping[str, Any], number: int) -> str:
    name = spec.get("layer_name")
    return "output {}".format(number) if name is None else "the output {!r}".format(name)


def _listed(count: int) -> str:
    return "a list of 1 array" if count == 1 else "a list of {} arrays".format(count)


def _kind(value: Any) -> str:
    """Return what something is, in a word that the author of a predictor knows."""
    if value is None:
        return "nothing"
    if isinstance(value, np.ndarray):
        return "an array"
    if isinstance(value, Mapping):
        return "a dictionary"
    return "a value of type {}".format(type(value).__name__)
