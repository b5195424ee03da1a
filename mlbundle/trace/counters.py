"""What was seen of a run from outside, as counters: a track for each, in the units that people read.

Counters that only grow (time on CPUs, energy, faults) become rates: CPUs in use, watts, faults a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlbundle.trace.perfetto import Process, TraceWriter
    from mlbundle.trace.samples import SampleColumns

# Endings of names -> what is shown in their place, and the unit; the longest that fits counts.
_UNITS = {
    "_bytes": ("", "bytes"),
    "_w": ("", "W"),
    "_percent": ("", "%"),
    "_c": ("", "degrees C"),
    "_mhz": ("_clock", "MHz"),
    "_hz": ("", "Hz"),
    "_bytes_per_s": ("", "bytes/s"),
    "_cpus": ("", "CPUs"),
}
# Endings of counters that grow -> what their rate is called, and its unit.
_RATES = {
    "cpu_time_s": ("cpu", "CPUs"),
    "time_s": ("share", "s/s"),
    "throttled_s": ("throttled", "s/s"),
    "_j": ("_power", "W"),
    "_count": ("", "/s"),
    **{ending: (ending, "/s") for ending in ("_minor", "_major", "_voluntary", "_involuntary", "_periods")},
}


def write_counters(writer: TraceWriter, process: Process, samples: SampleColumns) -> int:
    """Write a track for each counter, by name; return how many values."""
    written, taken = 0, set[str]()
    order = np.argsort(samples.counter, kind="stable")
    bounds = np.searchsorted(samples.counter[order], np.arange(len(samples.strings) + 1))
    by_name = sorted(range(len(samples.strings)), key=lambda number: samples.strings[number])
    for rank, number in enumerate(by_name):
        rows = order[bounds[number] : bounds[number + 1]]
        rows = rows[(samples.t_ns[rows] >= 0) & np.isfinite(samples.value[rows])]
        name, unit, is_rate = shown_counter(samples.strings[number])
        # No two tracks have one name, whatever a source calls its counters.
        name = f"{name} (of {samples.strings[number]})" if name in taken else name
        taken.add(name)
        track = writer.counter_track(name, process, unit=unit, rank=rank)
        times, values = samples.t_ns[rows], samples.value[rows]
        if is_rate:
            times, values = _rates(times, values)
        written += writer.counts(track, times, values)
    return written


def shown_counter(name: str) -> tuple[str, str, bool]:
    """Return name and unit of a counter as it is shown, and whether that is its rate."""
    for ending, (shown, unit) in _RATES.items():
        if name.endswith(ending):
            return (name.removesuffix(ending) + shown).strip("_") or name, unit, True
    for ending in sorted(_UNITS, key=len, reverse=True):
        if name.endswith(ending):
            shown, unit = _UNITS[ending]
            return name.removesuffix(ending) + shown, unit, False
    return name, "", False


def _rates(
    t_ns: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return how fast values grew before each time, per second; the first has nothing before it."""
    order = np.argsort(t_ns, kind="stable")
    t_ns, values = t_ns[order], values[order]
    lasted = np.diff(t_ns)
    kept = np.flatnonzero(lasted > 0)
    with np.errstate(over="ignore"):
        return t_ns[kept + 1], np.maximum(0.0, np.diff(values)[kept]) / (lasted[kept] / 1e9)
