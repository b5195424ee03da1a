"""Operators on plain arrays, and the last step before the model: a value becomes a tensor."""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

from mlbundle.worker.errors import bundle_error
from mlbundle.worker.pipeline.base import Context, Image, check_params, choice

_LAYOUTS = ("HWC", "CHW", "NHWC", "NCHW")


class Cast:
    """Change the element type. Parameter: element_type."""

    def __init__(self, params: Mapping[str, Any], context: Context) -> None:
        check_params("cast", params, ("element_type",))
        try:
            self._type = np.dtype(params.get("element_type", "float32"))
        except TypeError as error:
            raise bundle_error("bad-parameter", "operator 'cast': {}".format(error)) from None

    def __call__(self, value: Any) -> Any:
        """Cast an image's pixels or an array."""
        if isinstance(value, Image):
            return Image(value.pixels.astype(self._type), value.layout, value.color_mode)
        return np.asarray(value).astype(self._type)


class Layout:
    """Say in which order the axes reach the model. Parameters: from, to (of plain arrays), or `to` of an image."""

    def __init__(self, params: Mapping[str, Any], context: Context) -> None:
        check_params("layout", params, ("from", "to"))
        self._to = choice("layout", "to", params.get("to"), _LAYOUTS)
        self._from = choice("layout", "from", params.get("from", "HWC"), _LAYOUTS)

    def __call__(self, value: Any) -> Any:
        """Transpose an array at once, an image when it becomes a tensor."""
        if isinstance(value, Image):
            return Image(value.pixels, self._to, value.color_mode)
        source, target = self._from.replace("N", ""), self._to.replace("N", "")
        return np.transpose(np.asarray(value), [source.index(axis) for axis in target])


class Softmax:
    """Scores to probabilities along the last axis (or `axis`)."""

    def __init__(self, params: Mapping[str, Any], context: Context) -> None:
        check_params("softmax", params, ("axis",))
        self._axis = int(params.get("axis", -1))

    def __call__(self, value: Any) -> Any:
        """Return probabilities; the maximum is subtracted first, so large scores do not overflow."""
        scores = np.asarray(value)
        if scores.dtype.kind != "f":
            scores = scores.astype(np.float32)
        powers = np.exp(scores - scores.max(axis=self._axis, keepdims=True))
        return powers / powers.sum(axis=self._axis, keepdims=True)


def as_tensor(value: Any, spec: Mapping[str, Any]) -> Any:
    """Return a value as the contiguous array one sample feeds to the model, without the batch axis.

    The element type is the one of the manifest; raises WorkerError when the shape is not the manifest's.
    """
    if isinstance(value, Image):
        value = np.transpose(value.pixels, (2, 0, 1)) if "CHW" in value.layout else value.pixels
    array = np.asarray(value)
    element_type = spec.get("element_type")
    try:
        array = np.ascontiguousarray(array, dtype=None if element_type is None else np.dtype(element_type))
    except (TypeError, ValueError) as error:
        raise bundle_error(
            "tensor-not-made", "a sample can't become {}: {}".format(element_type, error)
        ) from None
    shape = spec.get("shape")
    if shape is not None:
        expected = tuple(shape[1:])
        fits = len(expected) == array.ndim and all(
            not isinstance(want, int) or want < 0 or want == have for want, have in zip(expected, array.shape)
        )
        if not fits:
            raise bundle_error(
                "shape-mismatch",
                "after pre-processing a sample has shape {}, the manifest says {}".format(
                    list(array.shape), list(expected)
                ),
                "check the steps of the input and its shape",
            )
    return array
