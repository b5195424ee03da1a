"""Floating-point operations of layers by formula: a multiply-add counts as two, a bias and an activation as none.

The same formulas serve every framework, so their tables of layers can be compared.
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from mlbundle.wire.columns import UNKNOWN

COMPUTED = "computed"
# Where the axis of the output channels is in the weights of a convolution; what is between the rest is [in, rows,
# columns] or [rows, columns, in], and `in` are the input channels of one group.
_OUT_AXIS = {"OIHW": 0, "HWIO": -1}


def conv_flops(shape_out: Sequence[int], shape_weight: Sequence[int], layout: str = "OIHW") -> int:
    """Return the operations of a convolution of any number of axes and groups; UNKNOWN where a size is not known.

    `shape_out` is its output, batch and channels among it, in any order of axes; `shape_weight` has the input
    channels of one group, as `layout` (of the weights) has it: `OIHW` or `HWIO`, also for one axis or three.
    """
    if len(shape_weight) < 3 or len(shape_out) != len(shape_weight):
        return UNKNOWN
    inner = list(shape_weight)
    del inner[_OUT_AXIS[layout]]
    return _twice(*shape_out, *inner)


def depthwise_conv_flops(shape_out: Sequence[int], shape_weight: Sequence[int]) -> int:
    """Return the operations of a convolution of each channel by itself: weights [rows, columns, in, multiplier]."""
    return _twice(*shape_out, *shape_weight[:-2]) if len(shape_weight) >= 3 else UNKNOWN


def conv_transpose_flops(shape_in: Sequence[int], shape_weight: Sequence[int]) -> int:
    """Return the operations of a transposed convolution: weights [in, out of one group, rows, columns]."""
    if len(shape_weight) < 3 or len(shape_in) != len(shape_weight):
        return UNKNOWN
    return _twice(*shape_in, *shape_weight[1:])


def matmul_flops(shape_out: Sequence[int], inner: int) -> int:
    """Return the operations of a matrix product: 2 * M * N * K, over all matrices of a stack.

    `shape_out` is [..., M, N]; `inner` is K, the size of the axis that is summed over.
    """
    return _twice(*shape_out, inner)


def _twice(*sizes: int) -> int:
    return UNKNOWN if any(size < 0 for size in sizes) else 2 * prod(sizes)
