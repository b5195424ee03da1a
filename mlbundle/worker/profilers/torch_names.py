"""What a model's author calls its parts: of Python modules, `torch.export` programs and TorchScript.

Every form has another way. Python modules are watched while they run. The nodes of an exported program remember the
modules that they came from, and so do the operators of TorchScript; both are matched with what ran by their order.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Callable, Collection, Iterator, Mapping, Sequence

# Longer sequences that are not equal are not compared: it takes the square of their length.
MOST_COMPARED = 5_000
_MODULE_OF_SCRIPT = re.compile(r"([^().]+)\(([^()]*)\)")
_NO_MODULES = {"SELF", "UNKNOWN_INSTANCE"}


@dataclass(frozen=True)
class Origin:
    """Where an operator comes from: the path of the innermost module, and what that is.

    `layer` is the class of the module where it is a layer of PyTorch itself, empty where its operators are layers on
    their own. `call` tells the calls of a module apart. `name` is the operator's own in the model, if it has one.
    """

    path: str
    layer: str = ""
    call: Any = None
    name: str = ""


@dataclass(frozen=True)
class Graph:
    """All operators of a model's graph in order, where each comes from, and the paths of all modules."""

    names: Sequence[str]
    origins: Sequence[Origin]
    modules: frozenset[str]


def match(ran: Sequence[str], known: Sequence[str]) -> list[int | None]:
    """Return, for each operator that ran, which of the known ones it is; both in order, by names."""
    if list(ran) == list(known):
        return list(range(len(known)))
    found: list[int | None] = [None] * len(ran)
    if max(len(ran), len(known)) > MOST_COMPARED:
        return found
    for mine, theirs, size in SequenceMatcher(None, ran, known, autojunk=False).get_matching_blocks():
        found[mine : mine + size] = range(theirs, theirs + size)
    return found


class ModuleMarks:
    """Marks each call of a Python module, so that operators are found below the module that called them."""

    PREFIX = "mlbundle:module:"

    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        self._paths = {id(one): path for path, one in _named_modules(module)}
        self._open: list[Any] = []
        # Of each call: path of the module, its class if that is PyTorch's own.
        self.calls: list[tuple[str, str]] = []

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Mark while this is open; for all modules at once, as some look whether they have hooks of their own."""
        modules = self._torch.nn.modules.module
        before = modules.register_module_forward_pre_hook(self._before)
        after = modules.register_module_forward_hook(self._after)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _before(self, module: Any, _inputs: Any) -> None:
        path = self._paths.get(id(module))
        mark = None
        if path is not None:
            mark = self._torch.autograd.profiler.record_function(self.PREFIX + str(len(self.calls)))
            self.calls.append((path, _own_class(module)))
            mark.__enter__()
        self._open.append(mark)

    def _after(self, _module: Any, _inputs: Any, _output: Any) -> None:
        mark = self._open.pop()
        if mark is not None:
            mark.__exit__(None, None, None)

    def call(self, name: str) -> int | None:
        """Return the number of the call that a mark is of."""
        if not name.startswith(self.PREFIX):
            return None
        number = name[len(self.PREFIX) :]
        return int(number) if number.isdigit() and int(number) < len(self.calls) else None


def _named_modules(module: Any) -> list[tuple[str, Any]]:
    return list(module.named_modules()) if hasattr(module, "named_modules") else []


def _own_class(module: Any) -> str:
    kind = type(module)
    return kind.__name__ if kind.__module__.startswith("torch.nn.") else ""


def graph_of(torch: Any, module: Any) -> Graph | None:
    """Return the graph of an exported program or of TorchScript; None for Python modules."""
    if isinstance(module, torch.fx.GraphModule):
        return _of_program(module)
    if isinstance(module, torch.jit.ScriptModule):
        return _of_script(torch, module)
    return None


def _of_program(module: Any) -> Graph:
    rows = []
    for node in module.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        stack = node.meta.get("nn_module_stack")
        modules = list(stack.items()) if isinstance(stack, Mapping) else []
        path, kind = _entry(modules[-1][1]) if modules else ("", "")
        kind = kind.rpartition(".")[2] if kind.startswith("torch.nn.") else ""
        # The key of a module that is called again has the number of the call.
        call = modules[-1][0] if modules else None
        rows.append(
            (schema.name, Origin(path, kind, call, node.name), [_entry(one)[0] for _, one in modules[:-1]])
        )
    return _graph(rows, {origin.path for _, origin, _ in rows})


def _entry(entry: Any) -> tuple[str, str]:
    """Return path and class of an entry of `nn_module_stack`."""
    path, kind = entry
    if isinstance(kind, type):
        kind = "{}.{}".format(kind.__module__, kind.__qualname__)
    return str(path), str(kind)


def _of_script(torch: Any, module: Any) -> Graph:
    rows = []
    for node in _nodes(module.inlined_graph):
        kind = node.kind()
        if kind.startswith("prim::"):
            continue
        modules = [
            one for one in _MODULE_OF_SCRIPT.findall(node.getModuleHierarchy()) if one[0] not in _NO_MODULES
        ]
        paths = [".".join(name for name, _ in modules[:depth]) for depth in range(len(modules) + 1)]
        layer = modules[-1][1].rpartition(".")[2] if modules else ""
        if not hasattr(torch.nn, layer):
            layer = ""
        rows.append((kind, Origin(paths[-1], layer, paths[-1]), paths[:-1]))
    return _graph(rows, {path for path, _ in _named_modules(module)})


def _nodes(block: Any) -> Iterator[Any]:
    """Yield all nodes of a graph, those of branches and loops in the place where these are."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _graph(rows: Sequence[tuple[str, Origin, list[str]]], modules: set[str]) -> Graph:
    """Return the graph of operators, each with the modules around its own; one that calls others is no layer."""
    callers = {path for _, _, outer in rows for path in outer}
    origins = [
        Origin(origin.path, "", None, origin.name) if origin.path in callers else origin
        for _, origin, _ in rows
    ]
    return Graph([name for name, _, _ in rows], origins, frozenset(modules))


def matched_origins(
    ran: Sequence[str],
    weights: Sequence[set[str]],
    graph: Graph,
    note: Callable[[str], None],
) -> list[Origin | None]:
    """Return the origin of each operator that ran, None where it was not found in the model's graph.

    `weights` are the modules that the weights of each operator are of.
    """
    wanted = set(ran)
    # Operators that the profiler never shows, as those on sizes, are no reason not to match the others.
    kept = [(name, origin) for name, origin in zip(graph.names, graph.origins) if name in wanted]
    places = match(ran, [name for name, _ in kept])
    origins: list[Origin | None] = []
    for name, owners, place in zip(ran, weights, places):
        origin = _only_one(kept, name, owners) if place is None else kept[place][1]
        origins.append(None if origin is None else whole_path(origin, graph.modules, owners))
    missing = origins.count(None)
    if missing:
        note(
            "{} of {} operators could not be led back to the model's modules, as its graph has branches or was "
            "optimised; they have no original name but that of their weights".format(missing, len(ran))
        )
    return origins


def _only_one(known: Sequence[tuple[str, Origin]], name: str, owners: set[str]) -> Origin | None:
    """Return the only operator of a name, and with such weights: one in a loop runs several times."""
    found = [origin for its_name, origin in known if its_name == name]
    if len(found) > 1:
        found = [
            origin for origin in found if owners and all(_leads_to(origin.path, owner) for owner in owners)
        ]
    return found[0] if len(found) == 1 else None


def whole_path(origin: Origin, modules: Collection[str], owners: set[str]) -> Origin | None:
    """Return an origin with the whole path of its module; None where several modules may be meant.

    TorchScript leaves out modules that are not called, as lists: `layers.0.norm` is `0.norm`. Where that fits several,
    the modules of the weights decide.
    """
    if origin.path in modules:
        return origin
    found = [path for path in modules if _leads_to(origin.path, path)]
    if len(found) > 1:
        found = [
            path for path in found if owners and all((owner + ".").startswith(path + ".") for owner in owners)
        ]
    if len(found) != 1:
        return None
    return Origin(found[0], origin.layer, origin.call, origin.name)


def _leads_to(short: str, path: str) -> bool:
    """Return whether a path is the short one with further modules in between or before; both end alike."""
    parts = iter(path.split("."))
    wanted = short.split(".")
    return path.rsplit(".", maxsplit=1)[-1] == wanted[-1] and all(
        any(part == one for part in parts) for one in wanted
    )
