"""What was seen of a run from outside, as counters: a track for each, in the units that people read.

Counters that only grow (time on CPUs, energy) become rates: CPUs in use, watts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mlbundle.trace.perfetto import Process, TraceWriter

# Endings of names -> unit; the longest that fits counts.
_UNITS = {
    "_bytes": "bytes",
    "_w": "W",
    "_percent": "%",
    "_c": "degrees C",
    "_mhz": "MHz",
    "_hz": "Hz",
    "_bytes_per_s": "bytes/s",
}
# Endings of counters that grow -> what their rate is called, and its unit.
_RATES = {
    "cpu_time_s": ("cpu", "CPUs"),
    "time_s": ("share", "s/s"),
    "energy_j": ("power", "W"),
    "_count": ("", "/s"),
}
_MAX_NS = (1 << 63) - 1


@dataclass(frozen=True)
class SampleColumns:
    """Samples, one a row: which counter (a row of `names`), when in ns on CLOCK_MONOTONIC, and its value."""

    names: Sequence[str]
    counter: NDArray[np.int64]
    t_ns: NDArray[np.int64]
    value: NDArray[np.float64]


def write_counters(writer: TraceWriter, process: Process, samples: SampleColumns) -> int:
    """Write a track for each counter, by name; return how many values."""
    written = 0
    by_name = sorted(range(len(samples.names)), key=lambda number: samples.names[number])
    for rank, number in enumerate(by_name):
        rows = np.flatnonzero(samples.counter == number)
        name, unit, scale = _shown(samples.names[number])
        track = writer.counter_track(name, process, unit=unit, rank=rank)
        times, values = samples.t_ns[rows], samples.value[rows]
        if scale is not None:
            times, values = _rates(times, values)
        for t_ns, value in zip(times.tolist(), values.tolist(), strict=True):
            if math.isfinite(value) and 0 <= t_ns <= _MAX_NS:
                writer.count(track, t_ns, value)
                written += 1
    return written


def _shown(name: str) -> tuple[str, str, float | None]:
    """Return name and unit of a counter as it is shown, and a scale where its rate is."""
    for ending, (shown, unit) in _RATES.items():
        if name.endswith(ending):
            return (name.removesuffix(ending) + shown).strip("_") or name, unit, 1.0
    for ending in sorted(_UNITS, key=len, reverse=True):
        if name.endswith(ending):
            return name.removesuffix(ending), _UNITS[ending], None
    return name, "", None


def _rates(
    t_ns: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return how fast values grew before each time, per second; the first has nothing before it."""
    order = np.argsort(t_ns, kind="stable")
    t_ns, values = t_ns[order], values[order]
    lasted = np.diff(t_ns)
    kept = np.flatnonzero(lasted > 0)
    return t_ns[kept + 1], np.maximum(0.0, np.diff(values)[kept]) / (lasted[kept] / 1e9)
