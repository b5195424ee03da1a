"""What a profiler is given, and what it hands back: rows of layers and kernels.

A profiler is a class with the methods of `Profiler`, registered under `mlbundle.profilers` by the name of its
predictor, or called `Profiler` in the file of a bundle's own predictor. It lives in a process that measures nothing
else.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Sequence

from mlbundle.wire import columns
from mlbundle.worker.profilers.rows import Rows, printable

FRAMEWORK, SYSTEM, SERIAL = "framework", "system", "serial"
MOST_NOTES = 32


@dataclass(frozen=True)
class Run:
    """One profiled query: its number, its times on CLOCK_MONOTONIC, and CLOCK_REALTIME - CLOCK_MONOTONIC just before.

    The clocks are related anew for each query, so a step of the real-time clock spoils one query and no more.
    """

    number: int
    start_ns: int
    end_ns: int
    realtime_offset_ns: int

    def from_realtime(self, t_ns: int) -> int:
        """Return a time of the real-time clock as one of the monotonic clock."""
        return t_ns - self.realtime_offset_ns

    def clip(self, start_ns: int, end_ns: int) -> tuple[int, int] | None:
        """Return what of a time lies within the query; None for nothing: it is not of this query."""
        start_ns, end_ns = max(start_ns, self.start_ns), min(max(start_ns, end_ns), self.end_ns)
        return (start_ns, end_ns) if start_ns <= end_ns else None


class Runs:
    """The profiled queries in order; finds the one that a time is in."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = list(runs)
        self._starts = [run.start_ns for run in runs]

    def __iter__(self) -> Any:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, number: int) -> Run:
        return self._runs[number]

    def at(self, t_ns: int) -> Run | None:
        """Return the query that went on at a time of the monotonic clock, None between queries."""
        place = bisect_right(self._starts, t_ns) - 1
        if place < 0 or t_ns > self._runs[place].end_ns:
            return None
        return self._runs[place]


class Profile:
    """What was seen: rows of layers and of kernels, facts about the profiler, and notes about what is missing."""

    def __init__(self) -> None:
        self.layer_rows = Rows(
            columns.LAYER_NUMBERS,
            columns.LAYER_TEXTS,
            ("run", "index", "name", "start_ns", "duration_ns"),
            {"flops_source": columns.FLOPS_SOURCES},
        )
        self.kernel_rows = Rows(
            columns.KERNEL_NUMBERS,
            columns.KERNEL_TEXTS,
            ("run", "name", "kind", "start_ns", "duration_ns"),
            {"kind": columns.KERNEL_KINDS},
        )
        self.facts: dict[str, Any] = {}
        self.notes: list[str] = []

    @property
    def layers(self) -> int:
        """How many layers there are, over all queries."""
        return len(self.layer_rows)

    @property
    def kernels(self) -> int:
        """How many kernels there are, over all queries."""
        return len(self.kernel_rows)

    def add_layer(self, **values: int | str) -> None:
        """Add a row of `mlbundle.wire.columns.LAYER_*`; what is left out is not known.

        `run`, `index`, `name`, `start_ns` and `duration_ns` are wanted. Raises TypeError or ValueError.
        """
        self.layer_rows.add(values)

    def add_kernel(self, **values: int | str) -> None:
        """Add a row of `mlbundle.wire.columns.KERNEL_*`; what is left out is not known.

        `run`, `name`, `kind`, `start_ns` and `duration_ns` are wanted. Raises TypeError or ValueError.
        """
        self.kernel_rows.add(values)

    def note(self, text: str) -> None:
        """Say once what a reader of the profile has to know."""
        text = printable(text)
        if text not in self.notes and len(self.notes) < MOST_NOTES:
            self.notes.append(text)

    def layers_bytes(self) -> bytes:
        """Return the layers as an `.npz`."""
        return self.layer_rows.to_bytes()

    def kernels_bytes(self) -> bytes:
        """Return the kernels as an `.npz`."""
        return self.kernel_rows.to_bytes()


class Profiler:
    """One framework's profiler, used once: `settings`, `attach`, `begin`, the queries, `end`, `read`.

    `level` is `framework` (layers), `system` (layers and the kernels below them) or `serial` (the same, and every
    kernel is waited for, so that those of different layers don't overlap). What it can't do it says in
    `profile.notes`. Whatever it raises ends the profile, never the run.
    """

    def __init__(self, level: str, options: Mapping[str, Any]) -> None:
        """Take the level, and the options that the predictor is opened with (`scratch`, `threads`, `accelerator`)."""
        self.level = level
        self.options = options

    def settings(self) -> Mapping[str, Any]:
        """Return what the predictor finds in `options["profile"]` when it opens the model."""
        return {"level": self.level}

    def attach(self, predictor: Any, handle: Any) -> None:
        """Take the open model; called before the queries that warm up."""

    def most_runs(self) -> int | None:
        """Return how many queries can be profiled without a loss, None for any number; called once warmed up."""
        return None

    def caller(self, predict: Callable[[Any, Any], Any], handle: Any) -> Callable[[Any], Any]:
        """Return what is called with a batch, for queries that warm up and those that are profiled."""

        def call(batch: Any) -> Any:
            return predict(handle, batch)

        return call

    def begin(self) -> None:
        """Begin to profile; queries follow."""

    def end(self) -> None:
        """End profiling."""

    def read(self, runs: Runs, profile: Profile) -> None:
        """Add what was seen of these queries to the profile."""
        raise NotImplementedError


def realtime_offset_ns() -> int:
    """Return CLOCK_REALTIME - CLOCK_MONOTONIC, from the narrowest of three pairs of readings."""
    best = None
    for _ in range(3):
        before = time.monotonic_ns()
        realtime = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, realtime - (before + after) // 2)
    assert best is not None
    return best[1]


def shape_text(shapes: Iterable[Sequence[int]]) -> str:
    """Return shapes as a column has them: `1x3x224x224, 64x3x7x7`."""
    return ", ".join("x".join(str(size) for size in shape) or "scalar" for shape in shapes)
