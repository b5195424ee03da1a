"""What an ONNX graph calls its nodes, and how large its constants are: read from the file, without the onnx package.

Only the few fields of onnx.proto that are needed here, by their numbers; weights are stepped over, never read.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from math import prod
from typing import Any, Iterator, Sequence

MOST_NODES = 200_000
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
# Fields of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_TYPE, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 3, 4, 5, 7
_ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS = 5, 6, 11
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME = 1, 2, 8
# Bytes of an element by TensorProto.DataType; types of half a byte and strings are not counted.
_ELEMENT_BYTES = {
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 1),
    **dict.fromkeys((4, 5, 10, 16), 2),
    **dict.fromkeys((1, 6, 12), 4),
    **dict.fromkeys((7, 11, 13, 14), 8),
    15: 16,
}


@dataclass(frozen=True)
class Constant:
    """A tensor that the graph holds: its shape, and its size in bytes (-1: not known)."""

    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class Node:
    """A node; the names of inputs that are left out are empty."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    has_graphs: bool

    @property
    def known_as(self) -> str:
        """What its author calls it: the name of its first output where it has none of its own."""
        return self.name or next((name for name in self.outputs if name), "")


@dataclass(frozen=True)
class Graph:
    """The nodes in the order of the file, and the constants by name; nothing of the graphs within nodes."""

    nodes: Sequence[Node]
    constants: dict[str, Constant]


def read_graph(path: str) -> Graph:
    """Return the graph of an ONNX file (ModelProto in onnx.proto). Raises ValueError where it is none, OSError."""
    with open(path, "rb") as stream:
        if not os.fstat(stream.fileno()).st_size:
            raise ValueError("it is empty")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for number, value in _fields(content, 0, len(content)):
                if number == _MODEL_GRAPH and isinstance(value, tuple):
                    return _graph(content, *value)
    raise ValueError("it has no graph")


def _graph(content: Any, start: int, end: int) -> Graph:
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    for number, value in _fields(content, start, end):
        if number == _GRAPH_NODE and isinstance(value, tuple):
            if len(nodes) >= MOST_NODES:
                raise ValueError("it has more than {} nodes".format(MOST_NODES))
            node, constant = _node(content, *value)
            nodes.append(node)
            if constant is not None and node.outputs:
                constants[node.outputs[0]] = constant
        elif number == _GRAPH_INITIALIZER and isinstance(value, tuple):
            name, constant = _tensor(content, *value)
            constants[name] = constant
    return Graph(nodes, constants)


def _node(content: Any, start: int, end: int) -> tuple[Node, Constant | None]:
    """Return a node, and the tensor that it is where it is a Constant."""
    lists: dict[int, list[str]] = {_NODE_INPUT: [], _NODE_OUTPUT: []}
    texts = {_NODE_NAME: "", _NODE_TYPE: "", _NODE_DOMAIN: ""}
    tensor, has_graphs = None, False
    for number, value in _fields(content, start, end):
        if not isinstance(value, tuple):
            continue
        if number in lists:
            lists[number].append(_text(content, *value))
        elif number in texts:
            texts[number] = _text(content, *value)
        elif number == _NODE_ATTRIBUTE:
            for kind, place in _fields(content, *value):
                has_graphs = has_graphs or kind in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS)
                if kind == _ATTRIBUTE_TENSOR and isinstance(place, tuple):
                    tensor = _tensor(content, *place)[1]
    node = Node(
        name=texts[_NODE_NAME],
        op_type=texts[_NODE_TYPE],
        domain=texts[_NODE_DOMAIN],
        inputs=tuple(lists[_NODE_INPUT]),
        outputs=tuple(lists[_NODE_OUTPUT]),
        has_graphs=has_graphs,
    )
    return node, tensor if node.op_type == "Constant" else None


def _tensor(content: Any, start: int, end: int) -> tuple[str, Constant]:
    name, element_type, shape = "", 0, []
    for number, value in _fields(content, start, end):
        if number == _TENSOR_NAME and isinstance(value, tuple):
            name = _text(content, *value)
        elif number == _TENSOR_TYPE and isinstance(value, int):
            element_type = value
        elif number == _TENSOR_DIMS:
            shape += [value] if isinstance(value, int) else _packed(content, *value)
    size_bytes = prod(shape) * _ELEMENT_BYTES[element_type] if element_type in _ELEMENT_BYTES else -1
    return name, Constant(tuple(shape), size_bytes)


def _packed(content: Any, place: int, end: int) -> list[int]:
    values = []
    while place < end:
        value, place = _varint(content, place, end)
        values.append(value)
    return values


def _text(content: Any, start: int, end: int) -> str:
    return bytes(content[start:end]).decode("utf-8", "replace")


def _fields(content: Any, place: int, end: int) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """Yield number and value of each field: an integer, or where its bytes begin and end."""
    while place < end:
        key, place = _varint(content, place, end)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(content, place, end)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, place = _varint(content, place, end)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError("a field has the kind {}".format(kind))
        if length > end - place:
            raise ValueError("a field ends behind the end")
        yield key >> 3, (place, place + length)
        place += length


def _varint(content: Any, place: int, end: int) -> tuple[int, int]:
    """Return an integer of up to 64 bits (negative ones too, as they are never sizes) and where the next field is."""
    value = shift = 0
    while place < end and shift < 70:
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError("an integer has no end")
