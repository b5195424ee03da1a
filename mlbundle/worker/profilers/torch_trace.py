"""Reads one of PyTorch's execution traces: the operators of one call, with the tensors that went in and came out.

The profiler says when an operator ran, the execution trace what shapes it made; this one is taken where nothing is
timed. Format: `torch.profiler.ExecutionTraceObserver`, schema 1.1.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from math import prod
from typing import Any, Iterator, Mapping, Sequence

from mlbundle.wire.columns import UNKNOWN
from mlbundle.worker.profilers.flops import conv_flops, conv_transpose_flops, matmul_flops

MOST_BYTES = 48 * 2**20
_OPERATOR_SCOPE = 0
# What a tensor is in a trace: [tensor, storage, offset, elements, bytes of an element, device].
_TENSOR_FIELDS = 6


class UnreadableTrace(ValueError):
    """A file that is no execution trace, or too large a one."""


@dataclass(frozen=True)
class TensorFacts:
    """A tensor that went into an operator or came out: where it is kept, its size and its shape."""

    storage: int
    offset: int
    size_bytes: int
    shape: tuple[int, ...]


@dataclass
class Node:
    """An operator, or a mark (`operator` is false), with what is below it in the order in which it began."""

    name: str
    operator: bool
    values: Sequence[Any] = ()
    inputs: list[TensorFacts] = field(default_factory=list)
    outputs: list[TensorFacts] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)

    def find(self, name: str) -> Iterator[Node]:
        """Yield the marks of a name."""
        waiting = [self]
        while waiting:
            one = waiting.pop()
            if one.name == name and not one.operator:
                yield one
            else:
                waiting.extend(reversed(one.children))


def read_trace(path: str) -> Node:
    """Return the root of a trace. Raises UnreadableTrace, OSError."""
    if os.path.getsize(path) > MOST_BYTES:
        raise UnreadableTrace("it has more than {} bytes".format(MOST_BYTES))
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    try:
        return _tree(json.loads(content)["nodes"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise UnreadableTrace("{}: {}".format(type(error).__name__, error)) from error


def _tree(nodes: Sequence[Mapping[str, Any]]) -> Node:
    root = Node("", operator=False)
    by_id: dict[int, Node] = {}
    # Numbers are given when something begins, so a parent has a smaller one than what is below it.
    for raw in sorted(nodes, key=lambda one: int(one["id"])):
        attributes = {one["name"]: one["value"] for one in raw["attrs"]}
        node = Node(
            str(raw["name"]),
            operator=attributes.get("scope") == _OPERATOR_SCOPE,
            values=raw["inputs"]["values"],
            inputs=list(_tensors(raw["inputs"])),
            outputs=list(_tensors(raw["outputs"])),
        )
        by_id.get(raw["ctrl_deps"], root).children.append(node)
        by_id[raw["id"]] = node
    return root


def _tensors(side: Mapping[str, Any]) -> Iterator[TensorFacts]:
    for value, shape, kind in zip(side["values"], side["shapes"], side["types"]):
        if "Tensor(" in kind:
            yield from _in_value(value, shape)


def _in_value(value: Any, shape: Any) -> Iterator[TensorFacts]:
    """Yield the tensor that a value is, or those of a list."""
    if not isinstance(value, list):
        return
    if len(value) == _TENSOR_FIELDS and isinstance(value[-1], str):
        _, storage, offset, elements, element_bytes, device = value
        if device:
            yield TensorFacts(storage, offset, elements * element_bytes, tuple(int(size) for size in shape))
        return
    for one, its_shape in zip(value, shape):
        yield from _in_value(one, its_shape)


def flops(node: Node) -> int:
    """Return the floating-point operations of an operator by formula, else of those below it; UNKNOWN for neither."""
    own = _own_flops(node)
    if own != UNKNOWN:
        return own
    below = [count for count in map(flops, node.children) if count != UNKNOWN]
    return sum(below) if below else UNKNOWN


# Where the matrix on the left is among the tensors of a product.
_PRODUCTS = {
    "linear": 0,
    "matmul": 0,
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "addmm": 1,
    "addmm_": 1,
    "_addmm_activation": 1,
    "baddbmm": 1,
    "baddbmm_": 1,
    "addmv": 1,
    "addmv_": 1,
}
_CONVOLUTION, _TRANSPOSED_ARGUMENT = {"convolution", "_convolution"}, 6


def _own_flops(node: Node) -> int:
    space, _, name = node.name.partition("::")
    if space != "aten" or not node.outputs:
        return UNKNOWN
    if name in _PRODUCTS:
        left = node.inputs[_PRODUCTS[name] :][:1]
        return matmul_flops(node.outputs[0].shape, left[0].shape[-1]) if left and left[0].shape else UNKNOWN
    if "scaled_dot_product" in name:
        return _attention_flops(node)
    if "conv" not in name or "backward" in name or len(node.inputs) < 2:
        return UNKNOWN
    weight = node.inputs[1].shape
    transposed = name in _CONVOLUTION and list(node.values)[
        _TRANSPOSED_ARGUMENT : _TRANSPOSED_ARGUMENT + 1
    ] == [True]
    if "transpose" in name or transposed:
        return conv_transpose_flops(node.inputs[0].shape, weight)
    return conv_flops(node.outputs[0].shape, weight)


def _attention_flops(node: Node) -> int:
    """Return the operations of both products of attention: [..., L, E] by [..., S, E], and that by [..., S, Ev]."""
    if len(node.inputs) < 3 or any(len(tensor.shape) < 2 for tensor in node.inputs[:3]):
        return UNKNOWN
    query, key, value = (tensor.shape for tensor in node.inputs[:3])
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
