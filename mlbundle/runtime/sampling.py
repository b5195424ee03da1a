"""Looks at a running worker from outside, at most ten times a second, in a thread of the host's process.

Never in the measuring process, and never at a cost that shows: where a look takes more than 1 % of the time between
two of them, the next ones come later.
"""

from __future__ import annotations

import threading
import time
from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mlbundle.runtime.sampling_perf import PerfCounters
from mlbundle.runtime.sampling_sources import ControlGroup, PackageEnergy, ProcessTree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlbundle.runtime.base import Place

LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.1, 5.0
MOST_ROWS = 1 << 20
_MOST_SHARE = 0.01
_SMOOTHING = 0.2
_STOP_TIMEOUT_S = 10.0


class Reading(NamedTuple):
    """A value of a counter, and when it was looked at, ns on CLOCK_MONOTONIC."""

    t_ns: int
    value: float


class Source(Protocol):
    """Something to look at; `every` is at which looks: 1 at each, 5 at each fifth."""

    every: int

    def read(self) -> Mapping[str, float]:
        """Return counter -> value, empty when there is nothing (any more). May raise OSError or ValueError."""

    def close(self) -> None:
        """Release what it holds."""


@dataclass
class Samples:
    """What was seen: rows of (which of `names`, ns on CLOCK_MONOTONIC, value), and what the looking cost.

    `interval_s` is the time between two looks at the end, `looks` how many there were, `cpu_s` the CPU time of them all
    and `duration_s` the time from the first to the last.
    """

    names: list[str] = field(default_factory=list)
    counter: array[int] = field(default_factory=lambda: array("q"))
    t_ns: array[int] = field(default_factory=lambda: array("q"))
    value: array[float] = field(default_factory=lambda: array("d"))
    interval_s: float = LEAST_INTERVAL_S
    looks: int = 0
    cpu_s: float = 0.0
    duration_s: float = 0.0

    def add(self, t_ns: int, found: Mapping[str, float]) -> None:
        """Add the values of one look."""
        for name, value in found.items():
            if name not in self.names:
                self.names.append(name)
            self.counter.append(self.names.index(name))
            self.t_ns.append(t_ns)
            self.value.append(value)

    def thin(self) -> None:
        """Drop every second look: a run of days must fit into memory."""
        kept = set(list(dict.fromkeys(self.t_ns))[::2])
        rows = [row for row, t_ns in enumerate(self.t_ns) if t_ns in kept]
        self.counter = array("q", (self.counter[row] for row in rows))
        self.value = array("d", (self.value[row] for row in rows))
        self.t_ns = array("q", (self.t_ns[row] for row in rows))


class Sampler:
    """Looks at its sources from `start` to `stop`; both may be called by one thread, once."""

    def __init__(self, sources: Sequence[Source], interval_s: float = LEAST_INTERVAL_S) -> None:
        self._sources = list(sources)
        self._samples = Samples(interval_s=max(interval_s, LEAST_INTERVAL_S))
        self._cost_s = 0.0
        self._latest: dict[str, Reading] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> Sampler:
        """Begin to look."""
        self._thread.start()
        return self

    def latest(self) -> Mapping[str, Reading]:
        """Return the newest value of each counter, with its time."""
        return self._latest

    def stop(self) -> Samples:
        """Look once more, end the thread, return all that was seen. May be called again."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_TIMEOUT_S)
        return self._samples

    def _run(self) -> None:
        begun = time.monotonic()
        due = begun
        while True:
            before_s = time.thread_time()
            self._look()
            self._adapt(time.thread_time() - before_s)
            self._samples.duration_s = time.monotonic() - begun
            if self._ending.is_set():
                break
            due = max(due + self._samples.interval_s, time.monotonic())
            self._ending.wait(due - time.monotonic())
        for source in self._sources:
            source.close()

    def _look(self) -> None:
        samples = self._samples
        found: dict[str, float] = {}
        t_ns = time.monotonic_ns()
        for source in self._sources:
            if samples.looks % source.every == 0 or self._ending.is_set():
                with suppress(OSError, ValueError):
                    found.update(source.read())
        samples.looks += 1
        samples.add(t_ns, found)
        self._latest = {**self._latest, **{name: Reading(t_ns, value) for name, value in found.items()}}

    def _adapt(self, cost_s: float) -> None:
        """Look less often when a look is dear or the rows become too many."""
        samples = self._samples
        samples.cpu_s += cost_s
        # The first look opens files and libraries; it says little about the next.
        if samples.looks > 1:
            self._cost_s += _SMOOTHING * (cost_s - self._cost_s)
        if len(samples.t_ns) > MOST_ROWS:
            samples.thin()
        elif self._cost_s <= _MOST_SHARE * samples.interval_s:
            return
        samples.interval_s = min(2 * samples.interval_s, MOST_INTERVAL_S)


def sampler_of(
    place: Place | None, *, gpus: bool = False, perf: bool = False, interval_s: float = LEAST_INTERVAL_S
) -> Sampler:
    """Return a sampler of the worker at `place` and of the energy of this machine.

    With `gpus` of those as well, with `perf` of what the processor and the kernel count, where they let us.
    """
    sources: list[Source] = []
    if place is not None:
        group = ControlGroup.of_container(place.pid, place.container) if place.container is not None else None
        # A process that is not in the container that it should be in is one of another machine's.
        if place.container is None or group is not None:
            sources.append(ProcessTree(place.pid))
            if perf:
                sources.append(PerfCounters(place.pid))
        if group is not None:
            sources.append(group)
    sources.append(PackageEnergy())
    if gpus:
        from mlbundle.runtime.sampling_gpu import GpuSource

        sources.append(GpuSource())
    return Sampler(sources, interval_s)
