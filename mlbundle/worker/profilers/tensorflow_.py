"""TensorFlow's profiler: the nodes of the graph that a session runs, and on a GPU the kernels and copies below them.

A session tells for each node when it ran, what it put out and what it allocated (`RunOptions.SOFTWARE_TRACE`).
TensorFlow's other profiler costs less and leaves out the nodes that it takes for cheap, small matrix products among
them, so it is asked only for what runs on a GPU.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import Counter, deque
from statistics import median
from typing import Any, Iterable, Mapping, Sequence

from mlbundle.wire.columns import MAX_ROWS, UNKNOWN
from mlbundle.worker.profilers.base import FRAMEWORK, Profile, Profiler, Run, Runs
from mlbundle.worker.profilers.tensorflow_device import DeviceEvent, DeviceProfiler, read_events
from mlbundle.worker.profilers.tensorflow_graph import Program, read_nodes
from mlbundle.worker.profilers.tensorflow_layers import Layers, Types
from mlbundle.worker.profilers.tensorflow_steps import Step, Tensor, read_steps

# What is kept in memory of all queries.
_MOST_BYTES = 128 << 20
# Nodes of all queries on a GPU: the profiler's file lies in the scratch folder, about 600 bytes for a node.
_MOST_DEVICE_NODES = 80_000
_MOST_TYPES_TOLD = 8


class _Kept:
    """Takes the place of a RunMetadata: what the session writes is read after all queries."""

    data = b""

    def ParseFromString(self, data: bytes) -> None:  # noqa: N802 - as the session calls it
        self.data = data


class TensorFlowProfiler(Profiler):
    """Profiles what a handle's `call` runs: that of TensorFlow's predictor, a session's callable."""

    def attach(self, predictor: Any, handle: Any) -> None:
        """Take the open model; from now on its session says what it does."""
        import tensorflow as tf

        self._tf, self._handle = tf, handle
        self._on_gpu = handle.facts["device"] != "cpu"
        self._call, self._batch = handle.call, ()
        self._options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.SOFTWARE_TRACE)
        # Of queries that warm up the last is enough.
        self._kept: Any = deque(maxlen=1)
        self._device: DeviceProfiler | None = None
        self._thread = UNKNOWN
        handle.call = self._traced

    def _traced(self, *batch: Any) -> Any:
        kept = _Kept()
        self._batch = batch
        self._kept.append(kept)
        return self._call(*batch, options=self._options, run_metadata=kept)

    def most_runs(self) -> int | None:
        """Return how many queries can be kept in memory and in the tables."""
        if not self._kept:
            return None
        data = self._kept[-1].data
        nodes = max(1, sum(len(device.node_stats) for device in self._metadata(data).step_stats.dev_stats))
        most = _MOST_DEVICE_NODES if self._on_gpu and self.level != FRAMEWORK else MAX_ROWS
        return min(_MOST_BYTES // max(1, len(data)), max(1, most // nodes))

    def _metadata(self, data: bytes) -> Any:
        return self._tf.compat.v1.RunMetadata.FromString(data)

    def begin(self) -> None:
        """Keep from now on what the session says of every query."""
        self._kept = []
        self._thread = threading.get_native_id()
        if self._on_gpu and self.level != FRAMEWORK:
            self._device = DeviceProfiler(self._tf, str(self.options["scratch"]))
            self._device.begin()

    def end(self) -> None:
        """End profiling; the session runs as before."""
        self._handle.call = self._call
        if self._device is not None:
            self._device.end()

    def read(self, runs: Runs, profile: Profile) -> None:
        """Add layers and what is below them."""
        profile.facts["profiler"] = "RunOptions.SOFTWARE_TRACE of TensorFlow {}".format(self._tf.__version__)
        rows = _Rows(self._layers(profile), profile, UNKNOWN if self._on_gpu else self._thread)
        operators = self.level != FRAMEWORK and not self._on_gpu
        for run, kept in zip(runs, self._kept):
            try:
                stats = self._metadata(kept.data).step_stats
            except Exception as error:  # noqa: BLE001 - protobuf's errors are not one class
                profile.note("what TensorFlow says of a query can't be read: {}".format(type(error).__name__))
                continue
            rows.add(run, read_steps(stats, profile.note), operators=operators)
        self._kept = []
        rows.finish()
        if self._on_gpu and self.level == FRAMEWORK:
            profile.note(
                "a layer's time is that of the host, which launches kernels and does not wait for them"
            )
        if self._device is not None:
            data = self._device.take()
            rows.add_device(runs, read_events(data, profile.note))
            if self._device.trouble:
                profile.note(self._device.trouble)

    def _layers(self, profile: Profile) -> Layers:
        """Return what the graphs tell of layers; the one that runs is asked for by one more query."""
        v1 = self._tf.compat.v1
        types = Types(self._tf)
        metadata = v1.RunMetadata()
        try:
            self._call(
                *self._batch, options=v1.RunOptions(output_partition_graphs=True), run_metadata=metadata
            )
            running = {}
            for graph in metadata.partition_graphs:
                running.update(read_nodes(graph.node))
            return Layers(Program.of(self._handle.session.graph.as_graph_def()), running, types)
        except Exception as error:  # noqa: BLE001 - what was profiled is kept, whatever TensorFlow says now
            profile.note(
                "original names and weights of layers are not known: {}: {}".format(
                    type(error).__name__, str(error)[:300]
                )
            )
            return Layers(Program({}), {}, types)


class _Rows:
    """Makes rows of a profile, and notes of what is odd about them."""

    def __init__(self, layers: Layers, profile: Profile, thread: int) -> None:
        self._layers, self._profile, self._thread = layers, profile, thread
        self._outside = self._overlaps = self._empty = 0
        # Of each query: how many nodes ran, and which share of their time those took that are no layers.
        self._nodes: list[int] = []
        self._shares: list[float] = []
        self._nameless: dict[str, str] = {}
        # Of each query, its layers by node: times on CLOCK_MONOTONIC and number.
        self._places: dict[int, dict[str, list[tuple[int, int, int]]]] = {}

    def add(self, run: Run, steps: Sequence[Step], *, operators: bool) -> None:
        """Add the layers of a query, and with `operators` what computed each on the CPU."""
        outputs: dict[tuple[str, int], Tensor] = {}
        for step in steps:
            outputs.update({(step.name, number): tensor for number, tensor in step.outputs.items()})
        layers = self._layers.of(steps)
        self._nodes.append(len(steps))
        index, last_ns = 0, 0
        places = self._places.setdefault(run.number, {})
        for step in layers:
            clipped = run.clip(run.from_realtime(step.start_ns), run.from_realtime(step.end_ns))
            if clipped is None:
                self._outside += 1
                continue
            start_ns, end_ns = clipped
            self._overlaps += start_ns < last_ns
            last_ns = max(last_ns, end_ns)
            facts = self._layers.row(step, outputs)
            if self._layers.known and not facts["original_name"]:
                self._nameless[step.name] = str(facts["type"])
            times = {"run": run.number, "start_ns": start_ns, "duration_ns": end_ns - start_ns}
            self._profile.add_layer(index=index, **times, **facts)
            if operators:
                name = self._layers.operator(step)
                self._profile.add_kernel(
                    layer_index=index, name=name, kind="operator", device="cpu", stream=self._thread, **times
                )
            places.setdefault(step.name, []).append((start_ns, end_ns, index))
            index += 1
        self._empty += not index
        self._shares.append(1 - _covered(layers) / max(1, _covered(steps)))

    def finish(self) -> None:
        """Say what was odd."""
        profile = self._profile
        if self._nodes:
            profile.facts["nodes"] = int(median(self._nodes))
            profile.facts["share_of_nodes_that_are_no_layers"] = round(median(self._shares), 4)
        if self._outside:
            profile.note(
                "{} layers ran outside of the queries and were left out; was the clock set meanwhile?".format(
                    self._outside
                )
            )
        if self._empty:
            profile.note("of {} queries nothing was seen".format(self._empty))
        if self._overlaps:
            profile.note(
                "{} layers began before the one before them had ended: TensorFlow ran them side by side, and the sum "
                "of their times says nothing".format(self._overlaps)
            )
        if self._nameless:
            types = [kind for kind, _ in Counter(self._nameless.values()).most_common(_MOST_TYPES_TOLD)]
            profile.note(
                "{} layers have no original name, as TensorFlow made them: {}".format(
                    len(self._nameless), ", ".join(types)
                )
            )

    def add_device(self, runs: Runs, events: Iterable[DeviceEvent]) -> None:
        """Add kernels and copies, each with the layer that it is of."""
        queries = sorted(runs, key=lambda run: run.start_ns + run.realtime_offset_ns)
        starts = [run.start_ns + run.realtime_offset_ns for run in queries]
        homeless = outside = 0
        for event in events:
            at_ns = event.start_ns if event.launched_ns == UNKNOWN else event.launched_ns
            place = bisect_right(starts, at_ns) - 1
            run = queries[place] if place >= 0 else None
            clipped = run and run.clip(run.from_realtime(event.start_ns), run.from_realtime(event.end_ns))
            if run is None or not clipped or run.from_realtime(event.end_ns) < run.start_ns:
                outside += 1
                continue
            index = self._layer_at(run, event.node, run.from_realtime(at_ns))
            homeless += index == UNKNOWN
            self._profile.add_kernel(
                run=run.number,
                layer_index=index,
                name=event.name,
                kind=event.kind,
                device=event.device,
                stream=event.stream,
                start_ns=clipped[0],
                duration_ns=clipped[1] - clipped[0],
                correlation=event.correlation,
                bytes=event.bytes,
                grid=event.grid,
                block=event.block,
            )
        if homeless:
            self._profile.note("{} kernels and copies are of no layer".format(homeless))
        if outside:
            self._profile.note(
                "{} kernels and copies ran outside of the queries; they were left out".format(outside)
            )

    def _layer_at(self, run: Run, node: str, t_ns: int) -> int:
        """Return the last time that a node had begun by then, in a query; else the layer that went on then."""
        places: Mapping[str, list[tuple[int, int, int]]] = self._places.get(run.number, {})
        of_node = places.get(node)
        if of_node:
            return of_node[max(0, bisect_right(of_node, (t_ns, 1 << 62, 0)) - 1)][2]
        for times in places.values() if not node else ():
            for start_ns, end_ns, index in times:
                if start_ns <= t_ns <= end_ns:
                    return index
        return UNKNOWN


def _covered(steps: Iterable[Step]) -> int:
    """Return the time in ns that steps in the order of their starts take, each moment once."""
    covered = until_ns = 0
    for step in steps:
        covered += max(0, step.end_ns - max(step.start_ns, until_ns))
        until_ns = max(until_ns, step.end_ns)
    return covered
