"""Reads the events of PyTorch's profiler: operators as trees, what was allocated, what ran on a device.

Events are those of `prof.profiler.kineto_results.events()`; times are ns of the real-time clock. What is unsound is
left out or cut, and said.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from typing import Any, Callable, Iterable, Iterator, Sequence

from mlbundle.worker.profilers.base import Run, Runs
from mlbundle.worker.profilers.rows import MOST_NAME_CHARACTERS

MOST_EVENTS = 2_000_000
# Of the profiler's record scopes: calls of operators; others are marks of functions and of users.
_OPERATOR_SCOPE = 0
_DEVICE_KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy"}
_LAUNCHES = {"cuda_runtime", "cuda_driver"}
# The profiler's clock is made from the processor's counter; it is right within about so much.
_SLACK_NS = 5_000


class Op:
    """One call of an operator on the host, and the operators that it called; times of the real-time clock."""

    __slots__ = ("allocated", "children", "end_ns", "name", "number", "start_ns", "thread")

    def __init__(self, name: str, start_ns: int, end_ns: int, thread: int = 0, number: int = 0) -> None:
        self.name, self.start_ns, self.end_ns = name, start_ns, end_ns
        self.thread, self.number = thread, number
        self.allocated = 0
        self.children: list[Op] = []

    def walk(self) -> Iterator[Op]:
        """Yield the operator and all below it."""
        waiting = [self]
        while waiting:
            one = waiting.pop()
            yield one
            waiting.extend(one.children)


class DeviceEvent:
    """A kernel or a copy on a device; `launched_by` are numbers of the operator and of the call that launched it."""

    __slots__ = (
        "correlation",
        "device",
        "end_ns",
        "kind",
        "launched_by",
        "metadata",
        "name",
        "start_ns",
        "stream",
    )

    def __init__(self, event: Any, kind: str) -> None:
        self.name, self.kind = event.name()[:MOST_NAME_CHARACTERS], kind
        self.start_ns = event.start_ns()
        self.end_ns = self.start_ns + event.duration_ns()
        self.device = event.device_index()
        self.stream = event.device_resource_id()
        self.correlation = event.correlation_id()
        self.launched_by = event.linked_correlation_id()
        self.metadata = _metadata(event)


class Seen:
    """What a profile holds: `roots`, operators that no operator called, by thread; events of devices; launches."""

    def __init__(self) -> None:
        self.roots: dict[int, list[Op]] = {}
        self.device: list[DeviceEvent] = []
        # Of a call that launches: its correlation with a kernel -> (number of the operator, time).
        self.launches: dict[int, tuple[int, int]] = {}
        self.events = 0

    def thread(self, wanted: int) -> int | None:
        """Return the thread wanted if it ran operators, else the one that ran the most."""
        if wanted in self.roots or not self.roots:
            return wanted if self.roots else None
        return max(self.roots, key=lambda thread: len(self.roots[thread]))


def read_events(events: Iterable[Any], note: Callable[[str], None]) -> Seen:
    """Return what the events hold. Never raises for what is in them."""
    reader = _Reader()
    iterator = iter(events)
    for event in itertools.islice(iterator, MOST_EVENTS):
        reader.take(event)
    if next(iterator, None) is not None:
        note("the profile has more than {} events; the later ones were not read".format(MOST_EVENTS))
    if reader.upside_down:
        note("{} events of the profile end before they begin; they were left out".format(reader.upside_down))
    seen, cut = reader.seen, 0
    for thread, flat in reader.ops.items():
        seen.roots[thread], cut_here = nest(flat)
        cut += cut_here
        _allocate(seen.roots[thread], reader.memory.get(thread, []))
    if cut:
        note("{} operators of the profile overlap in one thread; the later ones were cut".format(cut))
    return seen


class _Reader:
    """Sorts events by what they are."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.ops: dict[int, list[Op]] = {}
        # By thread: when something was allocated, and its size in bytes.
        self.memory: dict[int, list[tuple[int, int]]] = {}
        self.upside_down = 0

    def take(self, event: Any) -> None:
        self.seen.events += 1
        kind = event.activity_type()
        if event.duration_ns() < 0 or event.start_ns() < 0:
            self.upside_down += 1
        elif kind == "cpu_op":
            if event.scope() == _OPERATOR_SCOPE:
                op = _op(event)
                self.ops.setdefault(op.thread, []).append(op)
        elif kind == "cpu_instant_event":
            if event.nbytes() > 0:
                allocated = (event.start_ns(), event.nbytes())
                self.memory.setdefault(event.device_resource_id(), []).append(allocated)
        elif kind in _DEVICE_KINDS:
            self.seen.device.append(DeviceEvent(event, _DEVICE_KINDS[kind]))
        elif kind in _LAUNCHES:
            self.seen.launches[event.correlation_id()] = (event.linked_correlation_id(), event.start_ns())


def _op(event: Any) -> Op:
    start_ns = event.start_ns()
    return Op(
        event.name()[:MOST_NAME_CHARACTERS],
        start_ns,
        start_ns + event.duration_ns(),
        event.device_resource_id(),
        event.correlation_id(),
    )


def _metadata(event: Any) -> dict[str, Any]:
    """Return what the profiler says of a device's event: the inner part of a JSON object."""
    try:
        found = json.loads("{" + event.metadata_json()[:100_000] + "}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def nest(ops: Sequence[Op]) -> tuple[list[Op], int]:
    """Return the operators of a thread that no other called, each with those below it, and how many were cut.

    An operator is another's when it began before that one ended; if it ends later, it is cut there.
    """
    roots: list[Op] = []
    stack: list[Op] = []
    cut = 0
    for op in sorted(ops, key=lambda one: (one.start_ns, -one.end_ns)):
        while stack and stack[-1].end_ns <= op.start_ns:
            stack.pop()
        if not stack:
            roots.append(op)
        else:
            if op.end_ns > stack[-1].end_ns:
                op.end_ns = stack[-1].end_ns
                cut += 1
            stack[-1].children.append(op)
        stack.append(op)
    return roots, cut


def _allocate(roots: Sequence[Op], memory: Sequence[tuple[int, int]]) -> None:
    """Add up, for each root, what was allocated while it ran."""
    starts = [root.start_ns for root in roots]
    for at_ns, size in memory:
        place = bisect_right(starts, at_ns) - 1
        if place >= 0 and at_ns <= roots[place].end_ns:
            roots[place].allocated += size


class Placer:
    """Finds the query that a time of the profiler's real-time clock is in."""

    def __init__(self, runs: Runs) -> None:
        self._windows = sorted(
            (run.start_ns + run.realtime_offset_ns, run.end_ns + run.realtime_offset_ns, run.number)
            for run in runs
        )
        self._starts = [start for start, _, _ in self._windows]
        self._runs: dict[int, Run] = {run.number: run for run in runs}

    def run(self, number: int) -> Run:
        """Return a query by its number."""
        return self._runs[number]

    def run_at(self, realtime_ns: int) -> Run | None:
        """Return the query; one that ended or begins within a few us will do. None between queries."""
        place = bisect_right(self._starts, realtime_ns) - 1
        best = None
        for one in (place, place + 1):
            if 0 <= one < len(self._windows):
                start, end, number = self._windows[one]
                distance = max(start - realtime_ns, realtime_ns - end, 0)
                if distance <= _SLACK_NS and (best is None or distance < best[0]):
                    best = (distance, number)
        return None if best is None else self._runs[best[1]]

    def by_run(self, roots: Iterable[Op]) -> tuple[dict[int, list[Op]], int]:
        """Return the operators of each query, and how many are of none."""
        found: dict[int, list[Op]] = {number: [] for number in self._runs}
        stray = 0
        for root in roots:
            run = self.run_at(root.start_ns)
            if run is None:
                stray += 1
            else:
                found[run.number].append(root)
        return found, stray


# Operators that only make room or look at tensors in another way.
_HELPERS = {
    "aten::alias",
    "aten::as_strided",
    "aten::as_strided_",
    "aten::contiguous",
    "aten::detach",
    "aten::detach_",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::expand",
    "aten::expand_as",
    "aten::flatten",
    "aten::lift_fresh",
    "aten::narrow",
    "aten::new_empty",
    "aten::permute",
    "aten::reshape",
    "aten::resize_",
    "aten::resolve_conj",
    "aten::resolve_neg",
    "aten::select",
    "aten::slice",
    "aten::split",
    "aten::squeeze",
    "aten::squeeze_",
    "aten::t",
    "aten::transpose",
    "aten::unflatten",
    "aten::unsqueeze",
    "aten::unsqueeze_",
    "aten::view",
    "aten::view_as",
    "aten::_reshape_alias",
    "aten::_unsafe_view",
}


class Working:
    """Tells the operators that do the work from those that only call others.

    An operator that has a kernel of its own for the device is shown as a whole, with what it calls; one that is made
    of others (`conv2d`, `linear`) as those, unless they only make room or look at tensors in another way. So no time
    counts twice.
    """

    def __init__(self, own_kernels: Iterable[str]) -> None:
        """Take the operators with a kernel of their own, as `aten::addmm`."""
        self._own = frozenset(name.partition(".")[0] for name in own_kernels)

    def below(self, op: Op) -> Iterator[Op]:
        """Yield the operators that do an operator's work, in the order in which they began."""
        waiting = [op]
        while waiting:
            one = waiting.pop()
            if one.name in self._own or not self._works_below(one):
                yield one
            else:
                waiting.extend(reversed(one.children))

    def _works_below(self, op: Op) -> bool:
        return any(other.name not in _HELPERS for other in op.walk() if other is not op)
