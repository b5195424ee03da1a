"""What is known of each layer of an ONNX graph, beside its times: names, shapes, sizes, operations."""

from __future__ import annotations

from math import prod
from typing import Any, Mapping, Sequence

from mlbundle.wire.columns import UNKNOWN
from mlbundle.worker.profilers.base import shape_text
from mlbundle.worker.profilers.flops import COMPUTED, conv_flops, conv_transpose_flops, matmul_flops
from mlbundle.worker.profilers.onnx_events import NodeEvent
from mlbundle.worker.profilers.onnx_graph import Graph, Node
from mlbundle.worker.profilers.onnx_names import Origin, find_origins, plain_name, plain_type, unique_names

MOST_FUSED = 200
_Shapes = Sequence[Sequence[int]]
_CONVOLUTIONS = frozenset(("Conv", "FusedConv", "NhwcFusedConv"))
_ONNX_DOMAINS = frozenset(("", "ai.onnx"))
_PRODUCTS = frozenset(("Gemm", "MatMul"))


class Layers:
    """The nodes that a query runs, in their order, with what is known of each.

    `original` is the author's graph, `optimised` the one that runs; either may be missing. Without the latter the
    nodes are those that were `seen` in a query.
    """

    def __init__(self, original: Graph | None, optimised: Graph | None, seen: Sequence[NodeEvent]) -> None:
        self._original = original or Graph([], {})
        graph = optimised or Graph([Node(e.name, e.op_type, "", (), (), False) for e in seen], {})
        self._graph = graph
        self._origins = find_origins(self._original, graph)
        self._by_name = unique_names(graph.nodes)
        self._rows: dict[Any, dict[str, Any]] = {}

    def places(self, events: Sequence[NodeEvent]) -> list[int | None]:
        """Return for each event of a query, in order, which node of the graph it is."""
        nodes = self._graph.nodes
        if len(events) == len(nodes) and all(_fits(event, node) for event, node in zip(events, nodes)):
            return list(range(len(nodes)))
        return [self._place_by_name(event) for event in events]

    def _place_by_name(self, event: NodeEvent) -> int | None:
        place = self._by_name.get(event.name)
        return place if place is not None and _fits(event, self._graph.nodes[place]) else None

    def row(self, event: NodeEvent, place: int | None) -> Mapping[str, Any]:
        """Return the columns of a layer, but for its run and its times."""
        key = (place, event.name, event.inputs, event.outputs, event.output_bytes)
        known = self._rows.get(key)
        if known is None:
            known = self._rows[key] = self._describe(event, place)
        return known

    def _describe(self, event: NodeEvent, place: int | None) -> dict[str, Any]:
        origin = Origin() if place is None else self._origins[place]
        node = None if place is None else self._graph.nodes[place]
        activations, weights = _inputs(node, self._graph, event)
        outputs: _Shapes = event.outputs
        authors = self._authors_weight(event, origin)
        if authors is not None and weights and outputs:
            outputs, weights = _not_rounded(outputs, weights, authors)
        flops = _flops(event.op_type, [*activations, *weights], outputs, at=len(activations))
        plain = plain_type(event.op_type)
        return {
            "name": event.name if node is None or origin.name else _steady_name(event, node),
            "original_name": origin.name,
            "type": plain if origin.main is not None and origin.main.op_type == plain else event.op_type,
            "provider": event.provider,
            "shape_in": shape_text([*activations, *weights]),
            "shape_out": shape_text(outputs),
            "alloc_bytes": event.output_bytes,
            "param_bytes": _parameter_bytes(node, self._graph, event),
            "flops": flops,
            "flops_source": COMPUTED if flops != UNKNOWN else "",
        }

    def _authors_weight(self, event: NodeEvent, origin: Origin) -> Sequence[int] | None:
        """Return the shape of a convolution's weights as its author has it, None for other layers."""
        main = origin.main
        if (
            event.op_type not in _CONVOLUTIONS
            or main is None
            or main.op_type != "Conv"
            or len(main.inputs) < 2
        ):
            return None
        constant = self._original.constants.get(main.inputs[1])
        return None if constant is None or len(constant.shape) < 3 else constant.shape

    def operator(self, event: NodeEvent, place: int | None) -> str:
        """Return what the operator is called that a layer is, with the domain of those that are not ONNX's own."""
        domain = "" if place is None else self._graph.nodes[place].domain
        return event.op_type if domain in _ONNX_DOMAINS else "{}.{}".format(domain, event.op_type)

    def facts(self) -> dict[str, Any]:
        """Return what optimisation did: how many nodes there were and are, and which were made one."""
        fused = {
            node.name or node.known_as: [one.known_as for one in origin.nodes]
            for node, origin in zip(self._graph.nodes, self._origins)
            if len(origin.nodes) > 1
        }
        return {
            "nodes": len(self._original.nodes),
            "optimised_nodes": len(self._graph.nodes),
            "named": sum(1 for origin in self._origins if origin.name),
            "fused": {name: fused[name] for name in list(fused)[:MOST_FUSED]},
        }

    def nameless(self) -> list[str]:
        """Return the types of the nodes that nobody but ONNX Runtime knows."""
        return sorted(
            {node.op_type for node, origin in zip(self._graph.nodes, self._origins) if not origin.name}
        )


def _fits(event: NodeEvent, node: Node) -> bool:
    # ONNX Runtime makes up names for nodes that have none.
    return event.op_type == node.op_type and (not node.name or event.name == node.name)


def _steady_name(event: NodeEvent, node: Node) -> str:
    """Return the name of an inserted node: ONNX Runtime numbers these anew in every session.

    The tensor that is moved tells it from others.
    """
    name = plain_name(event.name)
    tensors = [tensor for tensor in (*node.outputs, *node.inputs) if tensor and plain_name(tensor) == tensor]
    return "{} ({})".format(name, tensors[0]) if tensors else name


def _inputs(node: Node | None, graph: Graph, event: NodeEvent) -> tuple[_Shapes, _Shapes]:
    """Return the shapes of what a layer reads: what was computed, and what the model holds.

    A profile leaves out weights that were packed beforehand; the graph still has them.
    """
    if node is None:
        return event.inputs, ()
    seen, activations, weights = list(event.inputs), [], []
    for name in node.inputs:
        constant = graph.constants.get(name) if name else None
        if constant is not None:
            weights.append(constant.shape)
            if seen and seen[0] == constant.shape:
                seen.pop(0)
        elif name:
            if not seen:
                return event.inputs, ()
            activations.append(seen.pop(0))
    return (event.inputs, ()) if seen else (activations, weights)


def _parameter_bytes(node: Node | None, graph: Graph, event: NodeEvent) -> int:
    if node is None or not graph.constants:
        return event.parameter_bytes
    sizes = [graph.constants[name].size_bytes for name in node.inputs if name in graph.constants]
    return sum(sizes) if min(sizes, default=0) >= 0 else event.parameter_bytes


def _not_rounded(outputs: _Shapes, weights: _Shapes, authors: Sequence[int]) -> tuple[_Shapes, _Shapes]:
    """Return the shapes of a convolution with the author's channels, which ONNX Runtime rounds up for its layout."""
    channels, rounded = authors[0], weights[0][0] if weights[0] else UNKNOWN
    if len(outputs[0]) > 1 and outputs[0][1] == rounded:
        outputs = [[outputs[0][0], channels, *outputs[0][2:]], *outputs[1:]]
    biases = [[channels] if list(shape) == [rounded] else shape for shape in weights[1:]]
    return outputs, [authors, *biases]


def _flops(op_type: str, inputs: _Shapes, outputs: _Shapes, at: int) -> int:
    """Return the operations of a layer, UNKNOWN where there is no formula; `at` is where its weights are."""
    if not inputs or not outputs:
        return UNKNOWN
    # Quantised weights come behind their scales; weights that are computed follow the activation.
    weights = (shape for shape in (*inputs[at:], *inputs[1:]) if len(shape) == len(outputs[0]))
    weight = next(weights, ())
    if plain_type(op_type) == "Conv":
        return conv_flops(outputs[0], weight)
    if op_type == "ConvTranspose":
        return conv_transpose_flops(inputs[0], weight)
    if plain_type(op_type) in _PRODUCTS:
        return _product_flops(inputs[0], outputs[0])
    return UNKNOWN


def _product_flops(left: Sequence[int], out: Sequence[int]) -> int:
    """Return the operations of a product, whether its left side is transposed or not."""
    if len(left) < 2 or len(out) < 2:
        return matmul_flops(out, left[-1]) if left else UNKNOWN
    rows = out[-2]
    return matmul_flops(out, prod(left[-2:]) // rows) if rows else 0
