"""The events of a profile that ONNX Runtime wrote, whatever the state of the file.

A list of JSON objects, one in a line: `cat` (Session, Node, Kernel), `name`, `ts` and `dur` in whole microseconds
since profiling began, `tid`, and `args`, whose numbers are texts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping

# ONNX Runtime keeps no more, and says nothing of the rest.
MOST_EVENTS = 1_000_000
MOST_DIMENSIONS = 64
_LONGEST_US = 1 << 50
_NODE_ENDS, _RUN = "_kernel_time", "model_run"


@dataclass(frozen=True)
class KernelEvent:
    """A kernel or a copy on a device."""

    start_us: int
    duration_us: int
    name: str
    stream: int
    correlation: int
    grid: str
    block: str


@dataclass
class NodeEvent:
    """A node of the graph that ran, and what it started on a device."""

    start_us: int
    duration_us: int
    thread: int
    name: str
    op_type: str
    provider: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    parameter_bytes: int
    output_bytes: int
    kernels: list[KernelEvent] = field(default_factory=list)

    @property
    def end_us(self) -> int:
        """When it ended."""
        return self.start_us + self.duration_us


@dataclass
class Recorded:
    """What is sound in a profile, and how much is not."""

    runs: list[tuple[int, int]] = field(default_factory=list)
    nodes: list[NodeEvent] = field(default_factory=list)
    # Kernels of which is not known what started them.
    stray_kernels: list[KernelEvent] = field(default_factory=list)
    events: int = 0
    unreadable: int = 0
    impossible: int = 0
    is_whole: bool = False

    def flaws(self) -> list[str]:
        """Return what a reader of the layers has to know about the profile."""
        said = []
        if not self.is_whole:
            said.append("ONNX Runtime's profile breaks off: layers of the last queries are missing")
        if self.events >= MOST_EVENTS:
            said.append("ONNX Runtime keeps {} events; what came later is missing".format(MOST_EVENTS))
        if self.unreadable:
            said.append("{} lines of ONNX Runtime's profile can't be read".format(self.unreadable))
        if self.impossible:
            said.append(
                "{} events of ONNX Runtime's profile have impossible times and were left out".format(
                    self.impossible
                )
            )
        return said


def read_events(lines: Iterable[bytes]) -> Recorded:
    """Return the events of a profile, in the order of the file; nothing in it is an error."""
    found = Recorded()
    for line in lines:
        text = line.strip()
        if text in (b"", b"["):
            continue
        if text == b"]":
            found.is_whole = True
            continue
        if found.events >= MOST_EVENTS:
            break
        found.events += 1
        event = _parsed(text.rstrip(b","))
        if event is None:
            found.unreadable += 1
        else:
            _sort_in(found, event)
    return found


def _parsed(text: bytes) -> Mapping[str, Any] | None:
    try:
        # Older versions don't escape what is in names.
        event = json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("name"), str):
        return None
    return event if isinstance(event.get("args", {}), dict) else None


def _sort_in(found: Recorded, event: Mapping[str, Any]) -> None:
    kind, name = event.get("cat"), event["name"]
    is_run, is_node = kind == "Session" and name == _RUN, kind == "Node" and name.endswith(_NODE_ENDS)
    if not (is_run or is_node or kind == "Kernel"):
        return
    if not (_is_time(event.get("ts")) and _is_time(event.get("dur")) and event["dur"] >= 0):
        found.impossible += 1
    elif is_run:
        found.runs.append((event["ts"], event["dur"]))
    elif is_node:
        found.nodes.append(_node(event))
    else:
        kernel, parent = _kernel(event), found.nodes[-1] if found.nodes else None
        # They are written behind the event that started them, with its type.
        if parent is not None and event.get("args", {}).get("op_name") == parent.op_type:
            parent.kernels.append(kernel)
        else:
            found.stray_kernels.append(kernel)


def _is_time(value: Any) -> bool:
    return type(value) is int and abs(value) < _LONGEST_US


def _node(event: Mapping[str, Any]) -> NodeEvent:
    args = event.get("args", {})
    return NodeEvent(
        start_us=event["ts"],
        duration_us=event["dur"],
        thread=_number(event.get("tid")),
        name=event["name"][: -len(_NODE_ENDS)],
        op_type=str(args.get("op_name", "")),
        provider=str(args.get("provider", "")),
        inputs=_shapes(args.get("input_type_shape")),
        outputs=_shapes(args.get("output_type_shape")),
        parameter_bytes=_number(args.get("parameter_size")),
        output_bytes=_number(args.get("output_size")),
    )


def _kernel(event: Mapping[str, Any]) -> KernelEvent:
    args = event.get("args", {})
    return KernelEvent(
        start_us=event["ts"],
        duration_us=event["dur"],
        name=event["name"],
        stream=_number(args.get("stream")),
        correlation=_number(args.get("correlation_id")),
        grid=_three(args, "grid"),
        block=_three(args, "block"),
    )


def _three(args: Mapping[str, Any], of: str) -> str:
    sizes = [_number(args.get("{}_{}".format(of, axis))) for axis in "xyz"]
    return "x".join(map(str, sizes)) if min(sizes) >= 0 else ""


def _number(value: Any) -> int:
    """Return a number that may be written as a text, -1 where it is none."""
    if isinstance(value, str) and len(value) < 20:
        value = int(value) if value.isascii() and value.isdigit() else -1
    return value if type(value) is int and 0 <= value < 1 << 62 else -1


def _shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of `[{"float": [1, 3]}, …]`; none where anything in it is not as it should be."""
    if not isinstance(value, list):
        return ()
    shapes = []
    for tensor in value:
        sizes = next(iter(tensor.values()), None) if isinstance(tensor, dict) else None
        if not isinstance(sizes, list) or len(sizes) > MOST_DIMENSIONS:
            return ()
        if not all(type(size) is int and 0 <= size < 1 << 48 for size in sizes):
            return ()
        shapes.append(tuple(sizes))
    return tuple(shapes)
