"""Learns the layers of a PyTorch model from one call that nobody times: names, shapes, memory and operations.

So the calls that are timed need not be asked for more than what ran when.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Sequence

from mlbundle.wire.columns import UNKNOWN
from mlbundle.worker.profilers.base import shape_text
from mlbundle.worker.profilers.flops import COMPUTED
from mlbundle.worker.profilers.torch_events import Op, read_events
from mlbundle.worker.profilers.torch_names import ModuleMarks, Origin, graph_of, match, matched_origins
from mlbundle.worker.profilers.torch_trace import Node, TensorFacts, UnreadableTrace, flops, read_trace

_CALL, _WEIGHT = "mlbundle:call", "mlbundle:weight"
_FILE = "mlbundle-execution-trace.json"


@dataclass(frozen=True)
class Plan:
    """The operators that one call runs in order, the layer of each (a place in `layers`), and facts of the layers.

    The layer is None for what is done before and after the model, to its inputs and outputs.
    """

    operators: list[str]
    layer_of: list[int | None]
    layers: list[dict[str, Any]]

    def groups(self, ran: Sequence[Op]) -> tuple[list[tuple[list[Op], dict[str, Any]]], int]:
        """Return the layers of a call that is timed, each with its operators, and how many operators are not known."""
        found: list[tuple[list[Op], dict[str, Any]]] = []
        last, unknown = None, 0
        for op, place in zip(ran, match([op.name for op in ran], self.operators)):
            layer = None if place is None else self.layer_of[place]
            if place is None:
                unknown += 1
                found.append(([op], unnamed(op.name)))
            elif layer is None:
                pass
            elif layer == last:
                found[-1][0].append(op)
            else:
                found.append(([op], self.layers[layer]))
            last = layer
        return found, unknown


def unnamed(operator: str) -> dict[str, Any]:
    """Return the facts of an operator that is a layer on its own and of which no more is known."""
    return {"name": operator, "type": _type_of(operator)}


EMPTY = Plan([], [], [])


def _type_of(operator: str) -> str:
    """Return an operator's name as its users write it: `aten::add_` is `add`, `aten::_convolution` `convolution`."""
    space, _, name = operator.rpartition("::")
    return name.strip("_") or name if space == "aten" else operator


class Learner:
    """Makes plans of a model that is open."""

    def __init__(self, torch: Any, module: Any, call: Callable[[Any], Any], scratch: str) -> None:
        """Take PyTorch, the module (None if there is none), what predicts a batch, and a folder to write into."""
        self._torch, self._module, self._call = torch, module, call
        self._path = os.path.join(scratch, _FILE)

    def learn(self, batch: Any, thread: int, note: Callable[[str], None]) -> Plan:
        """Return the plan of calls with such a batch; what could not be learnt is said. Raises what the model does."""
        marks = ModuleMarks(self._torch, self._module)
        weights = self._weights()
        events = self._record(batch, marks, weights)
        roots = read_events(events, note).roots
        try:
            trace = read_trace(self._path)
        except (OSError, UnreadableTrace) as error:
            note(
                "names and shapes of layers are not known: PyTorch's execution trace is unreadable: {}".format(
                    error
                )
            )
            ran = roots.get(thread, [])
            return Plan([op.name for op in ran], list(range(len(ran))), [unnamed(op.name) for op in ran])
        finally:
            with suppress(OSError):
                os.remove(self._path)
        return self._plan(trace, marks, weights, roots.get(thread, []), note)

    def _weights(self) -> list[tuple[str, Any]]:
        """Return the model's tensors that are no inputs, by name."""
        module = self._module
        if module is None or not hasattr(module, "named_parameters"):
            return []
        constants = [(name, one) for name, one in vars(module).items() if isinstance(one, self._torch.Tensor)]
        return [*module.named_parameters(), *module.named_buffers(), *constants]

    def _record(self, batch: Any, marks: ModuleMarks, weights: Sequence[tuple[str, Any]]) -> Any:
        """Call once, with everything recorded that the framework can; returns the profiler's events of the call."""
        profiler = self._torch.profiler
        marked = self._torch.autograd.profiler.record_function
        observer = profiler.ExecutionTraceObserver()
        observer.register_callback(self._path)
        try:
            observer.start()
            for _, tensor in weights:
                with marked(_WEIGHT):
                    tensor.detach()
            profile = profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True)
            with profile, marks.placed(), marked(_CALL):
                self._call(batch)
            observer.stop()
        finally:
            observer.unregister_callback()
        return profile.profiler.kineto_results.events()

    def _plan(
        self,
        trace: Node,
        marks: ModuleMarks,
        weights: Sequence[tuple[str, Any]],
        ran: Sequence[Op],
        note: Callable[[str], None],
    ) -> Plan:
        calls = list(trace.find(_CALL))
        every = list(_operators(calls[0], marks)) if calls else []
        times = match([node.name for node, _ in every], [op.name for op in ran])
        allocated = {
            id(node): ran[time].allocated for (node, _), time in zip(every, times) if time is not None
        }
        stored = {
            tensor.storage: name.rpartition(".")[0]
            for (name, _), mark in zip(weights, trace.find(_WEIGHT))
            for node in mark.children
            for tensor in node.inputs[:1]
        }
        inside = [one for one in every if one[1] is not None] or every
        origins = self._origins(inside, stored, note)
        layer_of, groups = _grouped([node for node, _ in inside], origins)
        layers = _facts(
            [([inside[place][0] for place in group], origins[group[0]]) for group in groups],
            stored,
            allocated,
        )
        places = {id(node): layer for (node, _), layer in zip(inside, layer_of)}
        return Plan([node.name for node, _ in every], [places.get(id(node)) for node, _ in every], layers)

    def _origins(
        self, ran: Sequence[tuple[Node, Origin | None]], stored: dict[int, str], note: Callable[[str], None]
    ) -> Sequence[Origin | None]:
        """Return where each operator comes from: as the model's graph says, else as its modules were seen to call."""
        graph = graph_of(self._torch, self._module)
        if graph is None:
            return [origin for _, origin in ran]
        owners = [_owners([node], stored) for node, _ in ran]
        return matched_origins([node.name for node, _ in ran], owners, graph, note)


def _operators(call: Node, marks: ModuleMarks) -> Iterator[tuple[Node, Origin | None]]:
    """Yield the operators that no operator called, and the module that each is of."""
    waiting: list[tuple[Node, Origin | None]] = [(call, None)]
    while waiting:
        node, origin = waiting.pop()
        if node.operator:
            yield node, origin
            continue
        number = marks.call(node.name)
        if number is not None:
            path, own = marks.calls[number]
            layer = "" if _calls_modules(node, marks) else own
            origin = Origin(path, layer, number)
        waiting.extend((child, origin) for child in reversed(node.children))


def _calls_modules(node: Node, marks: ModuleMarks) -> bool:
    waiting = list(node.children)
    while waiting:
        one = waiting.pop()
        if marks.call(one.name) is not None:
            return True
        if not one.operator:
            waiting.extend(one.children)
    return False


def _grouped(nodes: Sequence[Node], origins: Sequence[Origin | None]) -> tuple[list[int], list[list[int]]]:
    """Return the layer of each operator, and the operators of each layer.

    Operators of one call of a layer of PyTorch are one layer, each other is one by itself.
    """
    layer_of: list[int] = []
    groups: list[list[int]] = []
    for place, (node, origin) in enumerate(zip(nodes, origins)):
        if not groups or not _same(nodes, origins, groups[-1], node, origin):
            groups.append([])
        groups[-1].append(place)
        layer_of.append(len(groups) - 1)
    return layer_of, groups


def _facts(
    groups: Sequence[tuple[list[Node], Origin | None]],
    stored: dict[int, str],
    allocated: dict[int, int],
) -> list[dict[str, Any]]:
    """Return names, sizes and memory of each layer."""
    used: Counter[str] = Counter()
    layers = []
    for nodes, origin in groups:
        facts = _names(nodes[0], origin, used)
        owners = _owners(nodes, stored)
        if origin is None and len(owners) == 1:
            facts["original_name"] = owners.pop()
        facts.update(_sizes(nodes, stored))
        known = [allocated[id(node)] for node in nodes if id(node) in allocated]
        facts["alloc_bytes"] = sum(known) if known else UNKNOWN
        layers.append(facts)
    return layers


def _same(
    nodes: Sequence[Node],
    origins: Sequence[Origin | None],
    group: list[int],
    node: Node,
    origin: Origin | None,
) -> bool:
    """Return whether an operator is of the same call of a layer as those of a group."""
    before = origins[group[-1]]
    if before is None or origin is None or not origin.layer:
        return False
    if (before.path, before.layer, before.call) != (origin.path, origin.layer, origin.call):
        return False
    # Where calls can't be told apart, a layer of one operator that runs again was called again.
    return isinstance(origin.call, int) or len(group) > 1 or nodes[group[0]].name != node.name


def _names(node: Node, origin: Origin | None, used: Counter[str]) -> dict[str, Any]:
    """Return name, original name and type of a layer; layers of the same module that have no names are numbered."""
    kind = _type_of(node.name)
    if origin is None:
        return {"name": node.name, "original_name": "", "type": kind}
    if origin.layer:
        return {"name": origin.name or origin.path, "original_name": origin.path, "type": origin.layer}
    path = "{}.{}".format(origin.path, kind) if origin.path else kind
    used[path] += 1
    if used[path] > 1:
        path = "{}_{}".format(path, used[path] - 1)
    return {"name": origin.name or path, "original_name": path, "type": kind}


def _sizes(nodes: Sequence[Node], stored: dict[int, str]) -> dict[str, Any]:
    """Return shapes, bytes of weights and operations of the operators of a layer."""
    made: set[int] = set()
    activations: list[TensorFacts] = []
    weights: dict[tuple[int, int, int], TensorFacts] = {}
    for node in nodes:
        for tensor in node.inputs:
            if tensor.storage in stored:
                weights[tensor.storage, tensor.offset, tensor.size_bytes] = tensor
            elif tensor.storage not in made:
                activations.append(tensor)
        made.update(tensor.storage for tensor in node.outputs)
    counts = [count for count in map(flops, nodes) if count != UNKNOWN]
    return {
        "shape_in": shape_text(tensor.shape for tensor in [*activations, *weights.values()]),
        "shape_out": shape_text(tensor.shape for tensor in nodes[-1].outputs),
        "param_bytes": sum(tensor.size_bytes for tensor in weights.values()),
        "flops": sum(counts) if counts else UNKNOWN,
        "flops_source": COMPUTED if counts else "",
    }


def _owners(nodes: Sequence[Node], stored: dict[int, str]) -> set[str]:
    """Return the modules that the weights of operators are of."""
    return {stored[tensor.storage] for node in nodes for tensor in node.inputs if tensor.storage in stored}
