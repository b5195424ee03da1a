"""ONNX Runtime's own profiler, at the optimisation that is measured; names lead back to the author's graph."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from typing import Any, Callable, Mapping, Sequence

from mlbundle.worker.profilers.base import FRAMEWORK, Profile, Profiler, Run, Runs
from mlbundle.worker.profilers.onnx_events import KernelEvent, NodeEvent, Recorded, read_events
from mlbundle.worker.profilers.onnx_graph import Graph, read_graph
from mlbundle.worker.profilers.onnx_layers import Layers

# It keeps 1,000,000 events in memory and writes them when profiling ends.
MOST_EVENTS = 900_000
MOST_PROFILE_BYTES = 128 << 20
# What warms up is recorded too; it may take so much of the above.
WARM_UP_SHARE = 0.1
# Measured: 660 bytes an event of ResNet-50. Names are written, escaped, and shapes.
_EVENT_BYTES, _TENSOR_BYTES = 800, 64
_EVENTS_OF_A_RUN = 2
# Graphs within nodes are run we don't know how often; on a GPU each node has kernels.
_MORE_EVENTS = 4
_IDLE_S = 0.001
_NS_OF_US = 1000


class OnnxRuntimeProfiler(Profiler):
    """Layers are the nodes of the optimised graph; below them the operator that each is, or kernels on a GPU."""

    def settings(self) -> Mapping[str, Any]:
        """Return where the session puts its profile and the graph it runs; the weights of that graph go nowhere."""
        self._folder = tempfile.mkdtemp(prefix="onnxruntime-profile-", dir=self.options["scratch"])
        os.symlink(os.devnull, os.path.join(self._folder, "weights"))
        return {
            "level": self.level,
            "prefix": os.path.join(self._folder, "events"),
            "graph": os.path.join(self._folder, "optimised.onnx"),
            "weights": "weights",
        }

    def attach(self, predictor: Any, handle: Any) -> None:
        """Read the graphs and see how many events a query makes."""
        self._session, self._handle = handle.session, handle
        self._start_ns = self._session.get_profiling_start_time_ns()
        self._problems: list[str] = []
        self._original = self._graph(handle.graph, "the model's graph")
        self._optimised = self._graph(os.path.join(self._folder, "optimised.onnx"), "the optimised graph")
        self._calls, self._has_begun, self._path = 0, False, ""
        self._events_each, self._bytes_each = self._costs()

    def _graph(self, path: str, what: str) -> Graph | None:
        try:
            return read_graph(path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._problems.append("{} can't be read: {}".format(what, reason))
            return None

    def _costs(self) -> tuple[int, int]:
        """Return how many events and how many bytes of profile a query makes at most."""
        graph = self._optimised or self._original
        nodes = () if graph is None else graph.nodes
        more = self._handle.device != "cpu" or any(node.has_graphs for node in nodes)
        events = len(nodes) * (_MORE_EVENTS if more else 1) + _EVENTS_OF_A_RUN
        names = sum(len(json.dumps(node.name, ensure_ascii=False).encode()) for node in nodes)
        tensors = sum(len(node.inputs) + len(node.outputs) for node in nodes)
        return events, events * _EVENT_BYTES + (names + tensors * _TENSOR_BYTES) * (
            _MORE_EVENTS if more else 1
        )

    def _runs_in(self, share: float) -> int:
        """Return how many queries fit into a share of what can be kept, those that went by included."""
        free = shutil.disk_usage(self._folder).free // 2
        bytes_ = min(MOST_PROFILE_BYTES, free)
        # Preparing batches ran each new shape once, and the first batch to look at its answer.
        before = len(self._handle.known) + 1
        return int(min(MOST_EVENTS // self._events_each, bytes_ // self._bytes_each) * share) - before

    def most_runs(self) -> int | None:
        """Return how many queries more can be recorded."""
        return max(0, self._runs_in(1) - self._calls)

    def caller(self, predict: Callable[[Any, Any], Any], handle: Any) -> Callable[[Any], Any]:
        """Return what runs a batch; warming up stops running them when it has used its share of the profile."""
        most = max(1, self._runs_in(WARM_UP_SHARE))

        def call(batch: Any) -> Any:
            if not self._has_begun:
                if self._calls >= most:
                    time.sleep(_IDLE_S)
                    return None
                self._calls += 1
            return predict(handle, batch)

        return call

    def begin(self) -> None:
        """Count no more calls: what follows is profiled."""
        self._has_begun = True

    def end(self) -> None:
        """Let ONNX Runtime write its profile."""
        self._path = self._session.end_profiling()

    def read(self, runs: Runs, profile: Profile) -> None:
        """Add the layers of the queries; at `system` and deeper what runs below them too."""
        try:
            with open(self._path, "rb") as stream:
                recorded = read_events(stream)
        except OSError as error:
            profile.note("ONNX Runtime's profile can't be read: {}".format(error.strerror))
            return
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        reader = Reader(self._original, self._optimised, self._start_ns, deep=self.level != FRAMEWORK)
        reader.read(recorded, runs, profile)
        for problem in self._problems:
            profile.note("{}; names of layers are found by what ONNX Runtime calls them".format(problem))
        if self._handle.device != "cpu":
            self._note_device(recorded, profile)

    def _note_device(self, recorded: Recorded, profile: Profile) -> None:
        profile.note(
            "on a GPU a layer takes as long as it takes to start its kernels, unless each is waited for (serial)"
        )
        if (
            self.level != FRAMEWORK
            and not recorded.stray_kernels
            and not any(n.kernels for n in recorded.nodes)
        ):
            profile.note("this build of ONNX Runtime doesn't record the kernels of the GPU")


@dataclass(frozen=True)
class _Window:
    """A query, when ONNX Runtime began with it, and the nodes that ran in it by time."""

    run: Run
    begin_us: int
    nodes: Sequence[NodeEvent]


@dataclass(frozen=True)
class _Outermost:
    """A layer, and the nodes of the graphs within its node."""

    event: NodeEvent
    inner: list[NodeEvent]


class Reader:
    """Turns recorded events into rows, by the clock of each query."""

    def __init__(self, original: Graph | None, optimised: Graph | None, start_ns: int, *, deep: bool) -> None:
        """`start_ns` is when profiling began on CLOCK_REALTIME; `deep` asks for what runs below layers."""
        self._graphs = original, optimised
        self._start_ns = start_ns
        self._deep = deep

    def read(self, recorded: Recorded, runs: Runs, profile: Profile) -> None:
        """Add what was recorded of these queries, and notes on what was not or can't be right."""
        for flaw in recorded.flaws():
            profile.note(flaw)
        found = _by_run(recorded, runs, self._start_ns)
        missing = len(runs) - len(found)
        if missing:
            profile.note(
                "{} of {} queries have no layers: not recorded, or a clock was set".format(missing, len(runs))
            )
        if not found:
            return
        layers = Layers(*self._graphs, seen=[one.event for one in _outermost(found[0].nodes)[0]])
        spoilt = inner = 0
        for window in found:
            outermost, crossing = _outermost(window.nodes)
            spoilt += crossing
            inner += sum(len(one.inner) for one in outermost)
            self._add(window.run, layers, outermost, profile)
        if spoilt:
            profile.note("{} events cross others in time and were left out".format(spoilt))
        if inner:
            profile.note(
                "nodes of a graph within a node are no layers; from level system on they are operators of it"
            )
        if self._deep:
            self._add_strays(recorded.stray_kernels, found, profile)
        if layers.nameless():
            profile.note(
                "inserted by ONNX Runtime, so without an original name: {}".format(
                    ", ".join(layers.nameless())
                )
            )
        profile.facts.update(layers.facts(), optimisation="as measured", resolution_ns=_NS_OF_US)

    def _add(self, run: Run, layers: Layers, outermost: Sequence[_Outermost], profile: Profile) -> None:
        index = 0
        for one, place in zip(outermost, layers.places([one.event for one in outermost])):
            times = self._times(run, one.event.start_us, one.event.duration_us)
            if times is None:
                continue
            profile.add_layer(run=run.number, index=index, **times, **layers.row(one.event, place))
            if self._deep:
                self._add_below(run, index, one, layers.operator(one.event, place), profile)
            index += 1

    def _add_below(self, run: Run, index: int, layer: _Outermost, operator: str, profile: Profile) -> None:
        """Add what runs below a layer: its kernels, the nodes of its graphs, else the one operator that it is."""
        for kernel in layer.event.kernels:
            self._add_kernel(run, index, kernel, profile)
        if not layer.inner and not layer.event.kernels:
            self._add_operator(run, index, layer.event, operator, profile)
        for event in layer.inner:
            # Cut to whole microseconds, it may seem to end behind the layer.
            short = replace(event, duration_us=min(event.end_us, layer.event.end_us) - event.start_us)
            self._add_operator(run, index, short, event.op_type, profile)
            for kernel in event.kernels:
                self._add_kernel(run, index, kernel, profile)

    def _add_operator(self, run: Run, index: int, event: NodeEvent, name: str, profile: Profile) -> None:
        times = self._times(run, event.start_us, event.duration_us)
        if times is not None:
            profile.add_kernel(
                run=run.number,
                layer_index=index,
                name=name,
                kind="operator",
                device="cpu",
                stream=event.thread,
                **times,
            )

    def _add_kernel(self, run: Run, index: int, kernel: KernelEvent, profile: Profile) -> None:
        times = self._times(run, kernel.start_us, kernel.duration_us)
        if times is None:
            return
        profile.add_kernel(
            run=run.number,
            layer_index=index,
            name=kernel.name,
            kind="copy" if kernel.name.lower().startswith("memcpy") else "kernel",
            device="cuda",
            stream=kernel.stream,
            correlation=kernel.correlation,
            grid=kernel.grid,
            block=kernel.block,
            **times,
        )

    def _add_strays(self, kernels: Sequence[KernelEvent], found: Sequence[_Window], profile: Profile) -> None:
        windows = sorted(found, key=lambda window: window.begin_us)
        begins = [window.begin_us for window in windows]
        for kernel in kernels:
            place = bisect_right(begins, kernel.start_us) - 1
            if place >= 0:
                self._add_kernel(windows[place].run, -1, kernel, profile)

    def _times(self, run: Run, start_us: int, duration_us: int) -> dict[str, int] | None:
        start = run.from_realtime(self._start_ns + start_us * _NS_OF_US)
        clipped = run.clip(start, start + duration_us * _NS_OF_US)
        return None if clipped is None else {"start_ns": clipped[0], "duration_ns": clipped[1] - clipped[0]}


def _by_run(recorded: Recorded, runs: Runs, start_ns: int) -> list[_Window]:
    """Return when each query ran, and in it which nodes.

    The middle of a `model_run` lies within its query; both are in the order in which they happened, so what warmed up
    is passed over even where the clock was set back meanwhile.
    """
    nodes = sorted(recorded.nodes, key=lambda event: (event.start_us, -event.duration_us))
    starts = [event.start_us for event in nodes]
    found, place = [], 0
    for run in runs:
        for number in range(place, len(recorded.runs)):
            begin, duration = recorded.runs[number]
            middle = run.from_realtime(start_ns + (2 * begin + duration) * _NS_OF_US // 2)
            if run.start_ns <= middle <= run.end_ns:
                within = nodes[bisect_left(starts, begin) : bisect_left(starts, begin + duration + 1)]
                found.append(_Window(run, begin, within))
                place = number + 1
                break
    return found


def _outermost(events: Sequence[NodeEvent]) -> tuple[list[_Outermost], int]:
    """Return the events that lie in no other with those that lie in them, and how many cross one.

    Times are cut to whole microseconds: what lies within may seem to end one later, what follows never begins early.
    """
    found: list[_Outermost] = []
    crossing = 0
    for event in events:
        end_us = found[-1].event.end_us if found else event.start_us
        if event.start_us >= end_us:
            found.append(_Outermost(event, []))
        elif event.end_us <= end_us + 1:
            found[-1].inner.append(event)
        else:
            crossing += 1
    return found, crossing
