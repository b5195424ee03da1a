"""What is known of each layer of a TensorFlow graph, beside its times: names, shapes, sizes, operations."""

from __future__ import annotations

from math import prod
from typing import Any, Callable, Mapping, Sequence

from mlbundle.wire.columns import UNKNOWN
from mlbundle.worker.profilers.base import shape_text
from mlbundle.worker.profilers.flops import (
    COMPUTED,
    conv_flops,
    conv_transpose_flops,
    depthwise_conv_flops,
    matmul_flops,
)
from mlbundle.worker.profilers.tensorflow_graph import Node, Origin, Program, authors_op, node_of
from mlbundle.worker.profilers.tensorflow_steps import Step, Tensor

# Nodes that hold or hand on what others compute; the optimiser adds and removes them as it likes.
_HOLDS = frozenset(("Const", "HostConst", "VarHandleOp", "VariableV2", "Variable"))
_MOVES = frozenset(("_Send", "_Recv", "_HostSend", "_HostRecv"))
# Of these, what hands on one value, which may be a weight.
_HANDS_ON = _MOVES | {"Identity", "ReadVariableOp", "Enter", "StopGradient", "PreventGradient"}
_PLUMBING = (
    _HOLDS
    | _HANDS_ON
    | {"NoOp", "IdentityN", "_ReadVariablesOp", "ControlTrigger", "Placeholder", "PlaceholderWithDefault"}
    | {"_Arg", "_DeviceArg", "_Retval", "_DeviceRetval"}
    | {"Switch", "RefSwitch", "_SwitchN", "Merge", "Exit", "NextIteration", "LoopCond"}
)
_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall")) | {
    stateless + name for stateless in ("", "Stateless", "_") for name in ("While", "If", "Case")
}
_MOST_HANDS = 16
_TRANSPOSED_CONVOLUTIONS = {"Conv2DBackpropInput": 2, "Conv3DBackpropInputV2": 2}


class Types:
    """Sizes of TensorFlow's element types, and which of them weights have (none that numbers axes or sizes)."""

    def __init__(self, tf: Any) -> None:
        self._of, self._none = (
            tf.dtypes.as_dtype,
            (tf.int32, tf.int64, tf.bool, tf.string, tf.resource, tf.variant),
        )
        self._sizes: dict[int, tuple[int, bool]] = {}

    def size_bytes(self, number: int) -> int:
        """Return the size of an element, 0 where it has none."""
        return self._known(number)[0]

    def weighs(self, number: int) -> bool:
        """Return whether weights may be of this type."""
        return self._known(number)[1]

    def _known(self, number: int) -> tuple[int, bool]:
        if number not in self._sizes:
            try:
                kind = self._of(number)
                self._sizes[number] = (int(kind.size or 0), kind not in self._none)
            except TypeError:
                self._sizes[number] = (0, False)
        return self._sizes[number]


class Layers:
    """The nodes of the graph that runs (`running`), and where each comes from in the author's `program`.

    `known` says whether there is such a graph; without it a layer has what the session said of it.
    """

    def __init__(self, program: Program, running: Mapping[str, Node], types: Types) -> None:
        self._program, self._running, self._types = program, running, types
        self.known = bool(running)
        self._rows: dict[Any, dict[str, Any]] = {}
        self._origins: dict[tuple[str, str], Origin] = {}

    def of(self, steps: Sequence[Step]) -> list[Step]:
        """Return those of a query's steps that are layers: what computes, but for calls whose insides were seen."""
        layers = []
        for place, step in enumerate(steps):
            if self._op(step) in _PLUMBING or step.name == "_SOURCE":
                continue
            inside = steps[place + 1 : place + 2]
            if self._calls(step) and inside and inside[0].start_ns < step.end_ns:
                continue
            layers.append(step)
        return layers

    def _op(self, step: Step) -> str:
        node = self._running.get(step.name)
        return step.op or (node.op if node else "")

    def _calls(self, step: Step) -> bool:
        node = self._running.get(step.name)
        return self._op(step) in _CALLS or bool(node and node.functions)

    def operator(self, step: Step) -> str:
        """Return what computes a layer, as TensorFlow calls it: `_MklNativeFusedConv2D`."""
        return self._op(step) or step.name

    def row(self, step: Step, outputs: Mapping[tuple[str, int], Tensor]) -> Mapping[str, Any]:
        """Return the columns of a layer but for its run and times; `outputs` is what the nodes before it put out."""
        node = self._running.get(step.name) or Node(step.name, step.op, step.inputs)
        tensors = [(name, outputs.get(node_of(name))) for name in node.inputs]
        shapes = tuple((name, tensor.shape) for name, tensor in tensors if tensor)
        results = tuple(tensor.shape for _, tensor in sorted(step.outputs.items()))
        key = (step.name, step.op, shapes, results, step.allocated)
        if key not in self._rows:
            self._rows[key] = self._describe(step, node, tensors, results)
        return self._rows[key]

    def _describe(
        self,
        step: Step,
        node: Node,
        tensors: Sequence[tuple[str, Tensor | None]],
        results: Sequence[tuple[int, ...]],
    ) -> dict[str, Any]:
        op = self._op(step)
        origin = self._program.origin(step.name, op, self._running)
        held = {name for name, _ in tensors if self._holds(name)}
        activations = [tensor for name, tensor in tensors if tensor and name not in held]
        weights = [t for name, t in tensors if t and name in held and self._types.weighs(t.dtype)]
        kind = origin.op or authors_op(op)
        flops = _flops(kind, node, [tensor.shape if tensor else None for _, tensor in tensors], results)
        return {
            "name": step.name,
            "original_name": origin.name,
            "type": kind,
            "provider": "oneDNN" if op.startswith("_Mkl") else step.device.rpartition("device:")[2],
            "shape_in": shape_text(tensor.shape for tensor in (*activations, *weights)),
            "shape_out": shape_text(results),
            "alloc_bytes": step.allocated,
            "param_bytes": sum(prod(t.shape) * self._types.size_bytes(t.dtype) for t in weights),
            "flops": flops,
            "flops_source": COMPUTED if flops != UNKNOWN else "",
        }

    def _holds(self, tensor: str) -> bool:
        """Return whether a tensor is part of the model: a constant or a variable, handed on or not."""
        name = node_of(tensor)[0]
        for _ in range(_MOST_HANDS):
            node = self._running.get(name)
            if node is None or node.op in _HOLDS:
                return node is not None
            if node.op not in _HANDS_ON or not node.inputs:
                return False
            name = node_of(node.inputs[0])[0]
        return False


def _flops(
    op: str, node: Node, inputs: Sequence[tuple[int, ...] | None], outputs: Sequence[tuple[int, ...]]
) -> int:
    """Return the operations of a layer by formula, UNKNOWN for what has none or whose shapes are not known."""
    formula = _FORMULAS.get(op)
    if op in _TRANSPOSED_CONVOLUTIONS:
        formula, inputs = _transposed, [inputs[at] if at < len(inputs) else None for at in (2, 1)]
    if formula is None or not outputs or len(inputs) < 2 or inputs[0] is None or inputs[1] is None:
        return UNKNOWN
    return formula(node, inputs[0], inputs[1], outputs[0])


_Shape = Sequence[int]


def _convolution(_node: Node, _left: _Shape, weight: _Shape, out: _Shape) -> int:
    return conv_flops(out, weight, "HWIO")


def _depthwise(_node: Node, _left: _Shape, weight: _Shape, out: _Shape) -> int:
    return depthwise_conv_flops(out, weight)


def _transposed(_node: Node, left: _Shape, weight: _Shape, _out: _Shape) -> int:
    # Weights are [rows, columns, out, in]; the formula has them as [in, out, rows, columns].
    return conv_transpose_flops(left, (weight[-1], weight[-2], *weight[:-2]) if len(weight) > 2 else weight)


def _product(node: Node, left: _Shape, _right: _Shape, out: _Shape) -> int:
    if len(left) < 2:
        return UNKNOWN
    transposed = any(node.attributes.get(name) for name in ("transpose_a", "transpose_x", "adj_x"))
    return matmul_flops(out, left[-2] if transposed else left[-1])


def _einsum(node: Node, left: _Shape, right: _Shape, out: _Shape) -> int:
    """Count a sum over axes that both tensors have: each element of the result takes as many multiply-adds."""
    sources, arrow, result = str(node.attributes.get("equation", "")).replace(" ", "").partition("->")
    names = sources.split(",")
    if not arrow or [len(one) for one in names] != [len(left), len(right)] or len(result) != len(out):
        return UNKNOWN
    sizes = {**dict(zip(names[0], left)), **dict(zip(names[1], right))}
    summed = (set(names[0]) & set(names[1])) - set(result)
    if not summed or set(sizes) - set(result) - summed:
        return UNKNOWN
    return matmul_flops(out, prod(sizes[name] for name in summed))


_FORMULAS: dict[str, Callable[[Node, _Shape, _Shape, _Shape], int]] = {
    "Conv2D": _convolution,
    "Conv3D": _convolution,
    "DepthwiseConv2dNative": _depthwise,
    "MatMul": _product,
    "BatchMatMul": _product,
    "BatchMatMulV2": _product,
    "BatchMatMulV3": _product,
    "Einsum": _einsum,
}
