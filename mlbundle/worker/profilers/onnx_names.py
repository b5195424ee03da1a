"""Which nodes of the author's graph each node of the optimised one came from.

Optimisation renames, fuses and inserts. What leads back are the names of tensors: a fused node writes the output of
the last node that it stands for, or (layouts of its own, `..._nchwc`) is named after it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Mapping, Sequence

from mlbundle.worker.profilers.onnx_graph import Graph, Node

# These only move or cast data. One that writes a tensor of the author's graph in the place of another operator was
# inserted behind it.
_MOVES = frozenset(
    ("ReorderInput", "ReorderOutput", "MemcpyToHost", "MemcpyFromHost", "Identity", "Cast", "Transpose")
) | {"Reshape", "Squeeze", "Unsqueeze", "QuantizeLinear", "DequantizeLinear"}
# The operators that fused ones are about, where none has the same type.
_HEAVY = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Einsum"))
_NCHWC = re.compile(r"(.+)_nchwc(?:_token_\d+)?\Z", re.DOTALL)
_KIN = re.compile(r"(?:Nhwc|QLinear|Fused)*(\w+?)(?:Integer)?\Z")
_FUSED = "fused "
_TOKEN = re.compile(r"_token_\d+\Z")


@dataclass
class Origin:
    """The author's node that a layer is about, and all nodes that it stands for, in the order of the author's graph."""

    main: Node | None = None
    nodes: list[Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name that the author knows, empty for a node that was inserted."""
        return "" if self.main is None else self.main.known_as


def find_origins(original: Graph, optimised: Graph) -> list[Origin]:
    """Return for each node of the optimised graph where it came from."""
    search = _Search(original)
    anchors = [search.anchor(node) for node in optimised.nodes]
    search.taken.update(number for number in anchors if number is not None)
    found = [
        search.behind(node, anchor, optimised.constants) if anchor is not None else []
        for node, anchor in zip(optimised.nodes, anchors)
    ]
    mains = [search.main(node, numbers) for node, numbers in zip(optimised.nodes, found)]
    search.hand_out_the_rest(found)
    return [
        Origin(main, [original.nodes[number] for number in sorted(numbers)])
        for main, numbers in zip(mains, found)
    ]


def plain_type(op_type: str) -> str:
    """Return what a fused or quantised operator is about: `Conv` for `FusedConv`."""
    match = _KIN.match(op_type)
    return match.group(1) if match else op_type


def plain_name(name: str) -> str:
    """Return a name without what ONNX Runtime adds: that it fused, and a number, another one in every session."""
    return _TOKEN.sub("", name[len(_FUSED) :] if name.startswith(_FUSED) else name)


class _Search:
    """The author's graph with what is found quickly in it; nodes go by their number."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        self._producer = {name: n for n, node in enumerate(graph.nodes) for name in node.outputs if name}
        self._named = unique_names(graph.nodes)
        self._tensors = {name for node in graph.nodes for name in (*node.inputs, *node.outputs)}
        self._constant = self._constants(graph)
        self.taken: set[int] = set()

    def _constants(self, graph: Graph) -> set[int]:
        """Return the nodes that compute what is known beforehand; the file has nodes after what they read."""
        constant, known = set(), set(graph.constants)
        for number, node in enumerate(graph.nodes):
            if node.op_type == "Constant" or (node.inputs and all(not i or i in known for i in node.inputs)):
                constant.add(number)
                known.update(node.outputs)
        return constant

    def anchor(self, node: Node) -> int | None:
        """Return the last of the author's nodes that an optimised one stands for, None for an inserted one."""
        match = _NCHWC.match(node.name)
        if match is not None and match.group(1) in self._producer:
            return self._producer[match.group(1)]
        for name in node.outputs:
            number = self._producer.get(name)
            if number is not None and (
                node.op_type not in _MOVES or self._nodes[number].op_type == node.op_type
            ):
                return number
        number = self._named.get(plain_name(node.name))
        return (
            number if number is not None and self._nodes[number].op_type == plain_type(node.op_type) else None
        )

    def behind(self, node: Node, anchor: int, constants: Mapping[str, object]) -> list[int]:
        """Return the anchor first, then the nodes back to what the optimised node reads.

        Where that is a tensor that only ONNX Runtime knows, the way back ends at a node of its own type.
        """
        plain, reads = plain_type(node.op_type), {name for name in node.inputs if name not in constants}
        ends_at_plain = not reads or not reads <= self._tensors
        found, waiting = [anchor], [anchor]
        while waiting:
            number = waiting.pop()
            if ends_at_plain and self._nodes[number].op_type == plain:
                continue
            for name in self._nodes[number].inputs:
                source = None if name in reads else self._producer.get(name)
                if source is not None and source not in self.taken and source not in self._constant:
                    self.taken.add(source)
                    found.append(source)
                    waiting.append(source)
        return found

    def main(self, node: Node, numbers: Sequence[int]) -> Node | None:
        """Return which of the nodes behind an optimised one it is about; the last one if none stands out."""
        nodes = [self._nodes[number] for number in numbers]
        plain = plain_type(node.op_type)
        same = [one for one in nodes if one.op_type == plain]
        by_name = [one for one in same if one.name and one.name == plain_name(node.name)]
        heavy = [one for one in nodes if one.op_type in _HEAVY]
        return next(iter(by_name or same or heavy or nodes), None)

    def hand_out_the_rest(self, found: Sequence[list[int]]) -> None:
        """Give nodes that nobody stands for (an addition that is done along) to the latest layer that they read."""
        holder = {number: place for place, numbers in enumerate(found) for number in numbers}
        for number, node in enumerate(self._nodes):
            if number in holder or number in self._constant:
                continue
            sources = (self._producer.get(name) for name in node.inputs)
            places = [holder[source] for source in sources if source is not None and source in holder]
            if places:
                holder[number] = max(places)
                found[max(places)].append(number)


def unique_names(nodes: Sequence[Node]) -> dict[str, int]:
    """Return the numbers of those nodes that have a name for themselves."""
    seen = Counter(node.name for node in nodes)
    return {node.name: n for n, node in enumerate(nodes) if node.name and seen[node.name] == 1}
