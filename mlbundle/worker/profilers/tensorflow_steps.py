"""What a session says about each node that it ran: `StepStats` of TensorFlow, one for each query."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping

# Streams and copies of a device come as devices of their own.
_NO_NODES = re.compile(r"/stream:|/memcpy|/sync")
_LONGEST_LABEL = 1_000_000
_MOST_SIZES = 32


@dataclass(frozen=True)
class Tensor:
    """Shape and type (a number of TensorFlow's `DataType`) of what a node put out."""

    shape: tuple[int, ...]
    dtype: int


@dataclass(frozen=True)
class Step:
    """A node that ran: its kernel's time in ns on CLOCK_REALTIME, its outputs by number, bytes that it allocated.

    `op` and `inputs` are what the session wrote beside it; `inputs` of control are left out.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    device: str
    start_ns: int
    end_ns: int
    outputs: Mapping[int, Tensor]
    allocated: int


def read_steps(stats: Any, note: Callable[[str], None]) -> list[Step]:
    """Return the nodes that ran, in the order in which they began; what makes no sense is left out and said."""
    steps, senseless = [], 0
    for device in stats.dev_stats:
        if _NO_NODES.search(device.device):
            continue
        for one in device.node_stats:
            step = _step(one, device.device)
            if step is None:
                senseless += 1
            else:
                steps.append(step)
    if senseless:
        note("nodes whose times make no sense were left out")
    steps.sort(key=lambda step: (step.start_ns, -step.end_ns))
    return steps


def _step(stats: Any, device: str) -> Step | None:
    began_ns = stats.all_start_nanos or stats.all_start_micros * 1000
    if stats.all_start_nanos:
        start_ns, end_ns = began_ns + stats.op_start_rel_nanos, began_ns + stats.op_end_rel_nanos
    else:
        start_ns = began_ns + stats.op_start_rel_micros * 1000
        end_ns = began_ns + stats.op_end_rel_micros * 1000
    if began_ns <= 0 or not began_ns <= start_ns <= end_ns:
        return None
    op, inputs = _label(stats.node_name, stats.timeline_label)
    allocated = sum(max(0, memory.total_bytes) for memory in stats.memory)
    return Step(stats.node_name, op, inputs, device, start_ns, end_ns, dict(_outputs(stats)), allocated)


def _outputs(stats: Any) -> Iterator[tuple[int, Tensor]]:
    for output in stats.output:
        description = output.tensor_description
        sizes = tuple(dim.size for dim in description.shape.dim)
        if len(sizes) <= _MOST_SIZES and not description.shape.unknown_rank:
            yield output.slot, Tensor(sizes, description.dtype)


def _label(name: str, label: str) -> tuple[str, tuple[str, ...]]:
    """Return operator and inputs of `name = Operator(input, input:1, ^after)`; memory may be said before it."""
    start = label[:_LONGEST_LABEL].find(name + " = ")
    if not name or start < 0:
        return "", ()
    op, _, rest = label[start + len(name) + 3 : _LONGEST_LABEL].partition("(")
    inputs = rest.rpartition(")")[0].split(", ") if ")" in rest else []
    return op, tuple(one for one in inputs if one and not one.startswith("^"))
