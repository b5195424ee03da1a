"""PyTorch's profiler: layers of a model, operators below them on the CPU, kernels and copies on a GPU.

What is timed is PyTorch's own profiler and nothing else. Names, shapes, memory and operations are learnt afterwards,
from a call that is not timed (`torch_plan`).
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Any, Callable, Iterable, Mapping, Sequence

from mlbundle.wire.columns import UNKNOWN
from mlbundle.worker.profilers.base import FRAMEWORK, Profile, Profiler, Run, Runs
from mlbundle.worker.profilers.torch_events import DeviceEvent, Op, Placer, Seen, Working, read_events
from mlbundle.worker.profilers.torch_plan import EMPTY, Learner, Plan

# Events that the profiler holds in memory at a time; each takes about 1 kB.
_MOST_PROFILED = 300_000
# Batches that a call is learnt from.
_MOST_LEARNT = 16


class TorchProfiler(Profiler):
    """Profiles what a handle's `network` or `module` runs, in the thread that calls it."""

    def attach(self, predictor: Any, handle: Any) -> None:
        """Take the open model."""
        import torch

        self._torch = torch
        self._handle, self._predict = handle, predictor.predict
        module = getattr(handle, "network", None) or getattr(handle, "module", None)
        self._module = module if isinstance(module, torch.nn.Module) else None
        self._on_gpu = str(getattr(handle, "device", "cpu")) != "cpu"
        self._called: list[Any] = []
        self._thread = 0
        self._profile: Any = None

    def caller(self, predict: Callable[[Any, Any], Any], handle: Any) -> Callable[[Any], Any]:
        """Return what predicts a batch and keeps in mind which one it was."""
        called = self._called.append

        def call(batch: Any) -> Any:
            called(batch)
            return predict(handle, batch)

        return call

    def most_runs(self) -> int | None:
        """Return how many queries the profiler can hold; this also warms it up."""
        if not self._called:
            return None
        batch = self._called[-1]
        self.begin()
        self._predict(self._handle, batch)
        self.end()
        return max(1, _MOST_PROFILED // max(1, len(self._events())))

    def begin(self) -> None:
        """Begin to profile: what ran when, nothing that costs more."""
        self._called.clear()
        self._thread = threading.get_native_id()
        profiler = self._torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if self._on_gpu and self.level != FRAMEWORK:
            activities.append(profiler.ProfilerActivity.CUDA)
        self._profile = profiler.profile(activities=activities)
        self._profile.__enter__()

    def end(self) -> None:
        """End profiling."""
        self._profile.__exit__(None, None, None)

    def _events(self) -> Sequence[Any]:
        events: Sequence[Any] = self._profile.profiler.kineto_results.events()
        return events

    def read(self, runs: Runs, profile: Profile) -> None:
        """Add layers and kernels, with what calls with the same batches tell of them."""
        seen = read_events(self._events(), profile.note)
        profile.facts["profiler"] = "torch.profiler of {}".format(self._torch.__version__)
        profile.facts["events"] = seen.events
        thread = seen.thread(self._thread)
        plans = _Plans(self._learner(), self._called, self._thread, profile.note)
        own = seen.roots.get(thread, []) if thread is not None else []
        rows = _Rows(Placer(runs), profile)
        rows.add_layers(own, plans.of)
        if self._on_gpu and self.level == FRAMEWORK:
            profile.note(
                "a layer's time is that of the host, which launches kernels and does not wait for them"
            )
        if self.level != FRAMEWORK:
            if self._on_gpu:
                rows.add_device(seen)
            else:
                rows.add_operators(Working(self._own_kernels()))
        if len(seen.roots) > 1:
            profile.note("operators that ran in other threads than the one that asks are not layers")

    def _learner(self) -> Learner:
        def call(batch: Any) -> Any:
            return self._predict(self._handle, batch)

        return Learner(self._torch, self._module, call, str(self.options["scratch"]))

    def _own_kernels(self) -> list[str]:
        """Return the operators that have a kernel of their own for the CPU, as PyTorch's dispatcher knows them."""
        names: Iterable[str] = self._torch._C._dispatch_get_registrations_for_dispatch_key("CPU")
        return list(names)


class _Plans:
    """The plan of each query: that of its batch's shapes, or of the batch itself where other operators ran."""

    def __init__(
        self, learner: Learner, batches: Sequence[Any], thread: int, note: Callable[[str], None]
    ) -> None:
        self._learner, self._thread, self._note = learner, thread, note
        self._batches = list(batches)
        self._plans: list[tuple[Any, Plan]] = []
        self._failed = False

    def of(self, number: int, ran: Sequence[Op]) -> Plan:
        """Return the plan that fits the operators that ran in a query best; an empty one where none can be learnt."""
        if number >= len(self._batches):
            return self._plans[0][1] if self._plans else EMPTY
        batch, names = self._batches[number], [op.name for op in ran]
        shapes = _shapes(batch)
        plans = [plan for its_shapes, plan in self._plans if its_shapes == shapes]
        for plan in plans:
            if plan.operators == names:
                return plan
        if len(self._plans) < _MOST_LEARNT and not self._failed:
            learnt = self._learn(batch)
            if learnt is not None:
                self._plans.append((shapes, learnt))
                plans.append(learnt)
        return plans[-1] if plans else EMPTY

    def _learn(self, batch: Any) -> Plan | None:
        try:
            return self._learner.learn(batch, self._thread, self._note)
        except Exception as error:  # noqa: BLE001 - what was profiled is kept, whatever the framework says now
            self._failed = True
            self._note("names and shapes of layers are not known: {}: {}".format(type(error).__name__, error))
            return None


def _shapes(batch: Any) -> Any:
    """Return the shapes of a batch's tensors; those of another predictor's batch are not looked at."""
    tensors = [*getattr(batch, "positional", ()), *getattr(batch, "by_name", {}).values()]
    return [tuple(tensor.shape) for tensor in tensors]


class _Rows:
    """Makes rows of a profile: layers first, then what is below them."""

    def __init__(self, placer: Placer, profile: Profile) -> None:
        self._placer, self._profile = placer, profile
        # (run, index of the layer, its operators), in the order of time.
        self._layers: list[tuple[Run, int, list[Op]]] = []

    def add_layers(self, roots: Sequence[Op], plan_of: Callable[[int, Sequence[Op]], Plan]) -> None:
        """Add the layers of every query."""
        by_run, stray = self._placer.by_run(roots)
        others = without = 0
        for number, ran in by_run.items():
            without += not ran
            plan = plan_of(number, ran) if ran else EMPTY
            groups, unknown = plan.groups(ran)
            others += unknown > 0 and plan is not EMPTY
            run = self._placer.run(number)
            for ops, facts in groups:
                self._add_layer(run, ops, facts)
        if stray:
            self._profile.note("{} operators ran outside of the queries; they were left out".format(stray))
        if without:
            self._profile.note("of {} queries nothing was seen; was the clock set meanwhile?".format(without))
        if others:
            self._profile.note(
                "{} queries ran operators that a call with the same shapes did not; these have no original "
                "name".format(others)
            )

    def _add_layer(self, run: Run, ops: list[Op], facts: Mapping[str, Any]) -> None:
        clipped = run.clip(run.from_realtime(ops[0].start_ns), run.from_realtime(ops[-1].end_ns))
        if clipped is None:
            return
        index = self._layers[-1][1] + 1 if self._layers and self._layers[-1][0] is run else 0
        self._layers.append((run, index, ops))
        self._profile.add_layer(
            run=run.number, index=index, start_ns=clipped[0], duration_ns=clipped[1] - clipped[0], **facts
        )

    def add_operators(self, working: Working) -> None:
        """Add the operators that do the work of each layer."""
        for run, index, ops in self._layers:
            for op in (one for root in ops for one in working.below(root)):
                clipped = run.clip(run.from_realtime(op.start_ns), run.from_realtime(op.end_ns))
                if clipped is not None:
                    self._profile.add_kernel(
                        run=run.number,
                        layer_index=index,
                        name=op.name,
                        kind="operator",
                        device="cpu",
                        stream=op.thread,
                        start_ns=clipped[0],
                        duration_ns=clipped[1] - clipped[0],
                        correlation=op.number,
                    )

    def add_device(self, seen: Seen) -> None:
        """Add the kernels and copies, each with the layer whose operator launched it."""
        owners = {op.number: place for place, (_, _, ops) in enumerate(self._layers) for op in _all(ops)}
        starts = [ops[0].start_ns for _, _, ops in self._layers]
        homeless = outside = 0
        if not seen.device:
            self._profile.note(
                "the profiler saw no kernels: it may have no access to the GPU's activities (CUPTI)"
            )
        for event in sorted(seen.device, key=lambda one: one.start_ns):
            place = self._launched_in(seen, event, owners, starts)
            run = self._placer.run_at(event.start_ns) if place is None else self._layers[place][0]
            homeless += place is None
            if run is None or not self._add_device(
                run, UNKNOWN if place is None else self._layers[place][1], event
            ):
                outside += 1
        if homeless:
            self._profile.note("{} kernels and copies are of no known layer".format(homeless))
        if outside:
            self._profile.note(
                "{} kernels and copies ran outside of the queries; they were left out".format(outside)
            )

    def _launched_in(
        self, seen: Seen, event: DeviceEvent, owners: Mapping[int, int], starts: Sequence[int]
    ) -> int | None:
        """Return the layer whose operator launched an event; where that is not known, the one that ran at the time."""
        operator, at_ns = seen.launches.get(event.correlation, (0, -1))
        operator = event.launched_by or operator
        if operator:
            return owners.get(operator)
        place = bisect_right(starts, at_ns) - 1
        return place if place >= 0 and at_ns <= self._layers[place][2][-1].end_ns else None

    def _add_device(self, run: Run, index: int, event: DeviceEvent) -> bool:
        start_ns, end_ns = run.from_realtime(event.start_ns), run.from_realtime(event.end_ns)
        clipped = run.clip(start_ns, end_ns)
        if clipped is None or end_ns < run.start_ns:
            return False
        self._profile.add_kernel(
            run=run.number,
            layer_index=index,
            name=event.name,
            kind=event.kind,
            device="cuda:{}".format(event.device),
            stream=event.stream,
            start_ns=clipped[0],
            duration_ns=clipped[1] - clipped[0],
            correlation=event.correlation,
            bytes=_whole(event.metadata.get("bytes")),
            grid=_sizes(event.metadata.get("grid")),
            block=_sizes(event.metadata.get("block")),
        )
        return True


def _all(ops: Iterable[Op]) -> Iterable[Op]:
    for op in ops:
        yield from op.walk()


def _whole(value: Any) -> int:
    return value if type(value) is int and value >= 0 else UNKNOWN


def _sizes(value: Any) -> str:
    """Return the sizes of a grid or a block: `[16, 1, 1]` is `16x1x1`."""
    if not isinstance(value, list) or not all(type(size) is int for size in value):
        return ""
    return "x".join(map(str, value))
