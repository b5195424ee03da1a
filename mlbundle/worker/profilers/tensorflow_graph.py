"""The graph as its author wrote it and as TensorFlow's optimiser (Grappler) left it; names lead from one to the other.

Grappler writes the bodies of functions into the graph (`caller/node`), gives a fused node the name of the last or the
first of its nodes, and names what it made itself after what it made it from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator, Mapping

_CALLS_WITHOUT_A_NAME = re.compile(r"(?:Stateful)?PartitionedCall(?:_\d+)?$")
# `while/body/_12/node`: which body, and a number.
_BRANCH = re.compile(r"(?:[a-z]\w*/)?_\d+/")
_OPTIMIZER = re.compile(r"(?:^|/)[A-Z]\w*(?:Optimizer|Folding|Remapper)/")
# Nodes that do a part of what was written; one beside them, without this, does the rest and has the author's name.
_PART = re.compile(r"(?:^|_)(?:Leaf|Internal)_\d+_")
_ATTRIBUTES = ("transpose_a", "transpose_x", "adj_x")
# What oneDNN's and the optimiser's operators have before the name of the author's.
_PREFIXES = ("_", "Mkl", "Native", "PadWith", "Fused")
_OTHER_NAMES = {"BatchNormEx": "FusedBatchNormV3"}
_MOST_DEPTH, _MOST_SEARCHED, _LONGEST_NAME = 32, 64, 10_000


@dataclass(frozen=True)
class Node:
    """A node of a graph or of a function's body; `functions` are those that it calls."""

    name: str
    op: str
    inputs: tuple[str, ...]
    functions: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


def read_nodes(definitions: Iterable[Any]) -> dict[str, Node]:
    """Return the nodes of `NodeDef`s by name, without what they hold; inputs of control are left out."""
    nodes = {}
    for one in definitions:
        functions = sorted(
            value.func.name for value in one.attr.values() if value.WhichOneof("value") == "func"
        )
        attributes: dict[str, Any] = {name: one.attr[name].b for name in _ATTRIBUTES if name in one.attr}
        if "equation" in one.attr:
            attributes["equation"] = one.attr["equation"].s.decode("utf-8", "replace")
        inputs = tuple(name for name in one.input if not name.startswith("^"))
        nodes[one.name] = Node(one.name, one.op, inputs, tuple(functions), attributes)
    return nodes


def node_of(tensor: str) -> tuple[str, int]:
    """Return the node and the number of the output of `node`, `node:1` or (in a function) `node:name:1`."""
    name, *rest = tensor.split(":")
    return name, int(rest[-1]) if rest and rest[-1].isdigit() else 0


@dataclass(frozen=True)
class Origin:
    """What the author calls a layer, and which operator it is; empty where that is not known."""

    name: str = ""
    op: str = ""


@dataclass(frozen=True)
class _Found:
    """A node of the author's graph: the body that it is in, what stands before its name in the graph that runs, and
    what before the name that the author knows.
    """

    body: str
    before: str
    scope: str
    node: Node


class Program:
    """The author's graph: the nodes of the graph itself under an empty name, and those of each function."""

    def __init__(self, bodies: Mapping[str, Mapping[str, Node]]) -> None:
        self._bodies = bodies
        # Nodes of functions that are called when they run keep their names; the first of equal names is taken.
        self._in_functions: dict[str, _Found] = {}
        for body in sorted(bodies):
            for name, node in bodies[body].items() if body else ():
                self._in_functions.setdefault(name, _Found(body, "", "", node))

    @classmethod
    def of(cls, graph: Any) -> Program:
        """Return the program of a `GraphDef`."""
        bodies = {
            function.signature.name: read_nodes(function.node_def) for function in graph.library.function
        }
        return cls({**bodies, "": read_nodes(graph.node)})

    def origin(self, name: str, op: str, running: Mapping[str, Node]) -> Origin:
        """Return where a node of the graph that runs (`running`) comes from."""
        if len(name) > _LONGEST_NAME:
            return Origin()
        found = self._within("", name, 0) or self._in_functions.get(name)
        if found is None:
            made_from = self._made_from(name)
            return Origin(made_from.scope + made_from.node.name) if made_from else Origin()
        wanted = _authors_ops(op)
        for one in self._absorbed(found, running):
            if one.op in wanted:
                return Origin(found.scope + one.name, one.op)
        return Origin(found.scope + found.node.name, found.node.op)

    def _within(self, body: str, name: str, depth: int) -> _Found | None:
        """Return the node of a body that a name leads to, through those that call functions."""
        nodes = self._bodies.get(body, {})
        if name in nodes:
            return _Found(body, "", "", nodes[name])
        if depth == _MOST_DEPTH:
            return None
        for slash in re.finditer("/", name):
            caller = nodes.get(name[: slash.start()])
            if caller is None:
                continue
            rest, scope = name[slash.end() :], _CALLS_WITHOUT_A_NAME.sub("", caller.name)
            rest = _BRANCH.sub("", rest, count=1) if _BRANCH.match(rest) else rest
            for function in (*caller.functions, caller.op):
                inner = self._within(function, rest, depth + 1) if function in self._bodies else None
                if inner is not None:
                    scope = scope if not scope or scope.endswith("/") else scope + "/"
                    before = name[: len(name) - len(rest)] + inner.before
                    return _Found(inner.body, before, scope + inner.scope, inner.node)
        return None

    def _made_from(self, name: str) -> _Found | None:
        """Return what the optimiser made a node from: `a/ArithmeticOptimizer/AddOpsRewrite_add` is of `a/add`.

        None for one that does only a part of it (`a/ArithmeticOptimizer/AddOpsRewrite_Leaf_1_add`).
        """
        optimizer = _OPTIMIZER.search(name)
        if optimizer is None or _PART.search(name[optimizer.end() :][:200]):
            return None
        scope = name[: optimizer.start() + 1] if optimizer.start() else ""
        rest = name[optimizer.end() :]
        for cut in (0, *(match.end() for match in re.finditer("_", rest[:200]))):
            found = self._within("", scope + rest[cut:], 0) if rest[cut:] else None
            if found is not None:
                return found
        return None

    def _absorbed(self, found: _Found, running: Mapping[str, Node]) -> Iterator[Node]:
        """Yield a node and those before it that are gone from the graph that runs, the nearest first."""
        nodes = self._bodies[found.body]
        waiting, seen = [found.node], {found.node.name}
        for one in waiting:
            yield one
            for name, _ in map(node_of, one.inputs):
                if name in nodes and name not in seen and found.before + name not in running:
                    seen.add(name)
                    waiting.append(nodes[name])
            if len(seen) > _MOST_SEARCHED:
                return


def authors_op(op: str) -> str:
    """Return an operator's name without what the optimiser and oneDNN put before it: `_MklMatMul` is `MatMul`."""
    return op if not op.startswith("_") else _authors_ops(op)[-1]


def _authors_ops(op: str) -> list[str]:
    """Return all names that an operator may have had in the author's graph."""
    names = [op]
    if op.startswith("_"):
        for prefix in _PREFIXES:
            if op.startswith(prefix) and len(op) > len(prefix):
                op = op[len(prefix) :]
                names.append(op)
    names += [_OTHER_NAMES[name] for name in names if name in _OTHER_NAMES]
    return names
