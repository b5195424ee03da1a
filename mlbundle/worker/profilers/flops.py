"""Floating-point operations by formula: 2 for each multiplication with its addition.

What has a count of its own is marked `measured`, these are `computed`; biases and activations are not counted.
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from mlbundle.wire.columns import UNKNOWN


def conv_flops(out_shape: Sequence[int], weight_shape: Sequence[int], layout: str = "NCHW") -> int:
    """Return the operations of a convolution, grouped and depthwise ones too; UNKNOWN where a shape does not fit.

    `layout` names the axes of the output (`NCHW`, `NHWC`, `NCW`, …). A weight belongs to one output channel, one
    input channel of its group and one place of the window, so each is used once for every place and sample of the
    output, whatever the order of the weights' axes.
    """
    channels = layout.index("C")
    if len(out_shape) != len(layout) or len(weight_shape) != len(layout):
        return UNKNOWN
    if min(*out_shape, *weight_shape) < 0:
        return UNKNOWN
    places = prod(size for axis, size in enumerate(out_shape) if axis != channels)
    return 2 * places * prod(weight_shape)


def matmul_flops(out_shape: Sequence[int], depth: int) -> int:
    """Return the operations of a product of matrices, or of batches of them; `depth` is the axis that is summed."""
    if depth < 0 or any(size < 0 for size in out_shape):
        return UNKNOWN
    return 2 * prod(out_shape) * depth
