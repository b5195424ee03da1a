"""What was seen of a run from outside: `samples.npz`, the `resources` of its record, and counters as events.

`samples.npz` holds columns of equal length, `counter` (a row of `strings`), `t_ns` (CLOCK_MONOTONIC) and `value`, and
the table `strings`; the last part of a counter's name is its unit.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

from mlbundle.files import replacing
from mlbundle.runtime.sampling import Reading, Sampler, Samples, sampler_of
from mlbundle.wire.events import Counter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mlbundle.runtime.base import Connection
    from mlbundle.trace.samples import SampleColumns

SAMPLES = "samples.npz"
EVENT_INTERVAL_S = 0.5
# Counters that are said as they are -> unit; their names end in it.
_SAID = {"memory_bytes": "bytes", "gpu0_power_w": "w", "gpu0_utilisation_percent": "%"}
_ENERGY_HOW = {
    "rapl": "energy counters of the CPU packages (RAPL): the whole machine's, not the worker's alone",
    "nvml": "energy counters of the GPUs (NVML): the whole GPUs', not the worker's alone",
}


class Sampling:
    """Looks at the worker of one run from `begin` to `end`; does nothing but say so where it can't be seen."""

    def __init__(self, *, gpus: bool, perf: bool = False) -> None:
        self._gpus, self._perf = gpus, perf
        self._sampler: Sampler | None = None
        self._samples = Samples()
        self._said_s = 0.0
        # What was looked at when a counter was said last.
        self._said: dict[str, Reading] = {}

    def begin(self, connection: Connection) -> None:
        """Begin to look at the worker behind a connection. Never raises for want of something to look at."""
        if self._sampler is None:
            self._sampler = sampler_of(connection.place(), gpus=self._gpus, perf=self._perf).start()

    def end(self) -> Samples:
        """Stop looking; call it before the worker is killed, and as often as you like."""
        if self._sampler is not None:
            self._samples = self._sampler.stop()
        return self._samples

    def close(self) -> None:
        """Stop looking."""
        self.end()

    def events(self) -> Iterator[Counter]:
        """Yield the counters that are due, at most twice a second: call it whenever the worker was heard.

        Only those that were looked at again: looks may be seconds apart.
        """
        now_s = time.monotonic()
        if self._sampler is None or now_s - self._said_s < EVENT_INTERVAL_S:
            return
        self._said_s = now_s
        latest = self._sampler.latest()
        time_name = "cgroup_cpu_time_s" if "cgroup_cpu_time_s" in latest else "cpu_time_s"
        before = self._said.get(time_name)
        if (cpu := self._news(latest, time_name)) is not None and before is not None:
            share = (cpu.value - before.value) / ((cpu.t_ns - before.t_ns) / 1e9)
            yield Counter(name="cpu", value=round(max(0.0, share), 3), unit="cpus")
        for name, unit in _SAID.items():
            if (found := self._news(latest, name)) is not None:
                yield Counter(name=name.rpartition("_")[0], value=found.value, unit=unit)

    def _news(self, latest: Mapping[str, Reading], name: str) -> Reading | None:
        """Return a counter that was looked at since it was asked for last."""
        found, before = latest.get(name), self._said.get(name)
        if found is None or (before is not None and found.t_ns <= before.t_ns):
            return None
        self._said[name] = found
        return found


def save_samples(folder: Path, samples: Samples) -> str | None:
    """Write `samples.npz` into the folder of a run, whole or not at all; returns its name, None without samples.

    Raises StorageFailed.
    """
    if not samples.t_ns:
        return None
    import io

    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        strings=np.array(samples.names, np.str_),
        counter=np.array(samples.counter, np.int64),
        t_ns=np.array(samples.t_ns, np.int64),
        value=np.array(samples.value, np.float64),
    )
    with replacing(folder / SAMPLES) as stream:
        stream.write(buffer.getbuffer())
    return SAMPLES


def said_columns(counters: Sequence[Counter]) -> SampleColumns | None:
    """Return counters that were said as events as the trace takes them, None without any; names end in their units."""
    import numpy as np

    from mlbundle.trace.samples import SampleColumns

    if not counters:
        return None
    endings = {unit: name.rpartition("_")[2] for name, unit in _SAID.items()}
    said = [f"{counter.name}_{endings.get(counter.unit, counter.unit)}".rstrip("_") for counter in counters]
    place = {name: number for number, name in enumerate(dict.fromkeys(said))}
    return SampleColumns(
        tuple(place),
        np.array([place[name] for name in said], np.int64),
        np.array([counter.t_ns for counter in counters], np.int64),
        np.array([counter.value for counter in counters], np.float64),
    )


def sample_columns(samples: Samples) -> SampleColumns | None:
    """Return the samples as the trace takes them, None without any."""
    import numpy as np

    from mlbundle.trace.samples import SampleColumns

    if not samples.t_ns:
        return None
    return SampleColumns(
        tuple(samples.names),
        np.array(samples.counter, np.int64),
        np.array(samples.t_ns, np.int64),
        np.array(samples.value, np.float64),
    )


def resources(samples: Samples, phases: Sequence[tuple[str, int, int]] = ()) -> dict[str, Any]:
    """Return what a record says of the resources that a run used; `phases` are (name, begin, end) in ns.

    `measure` is the same for the times in which the worker measured, all of them together. Where it profiled, that is
    told as `profile` and is in nothing else: a run takes no more for being looked at. What could not be looked at is
    left out; empty without samples.
    """
    if not samples.t_ns:
        return {}
    table = _Table(samples)
    times = {
        name: sorted((begin, end) for each, begin, end in phases if each == name)
        for name in ("measure", "profile")
    }
    found = table.summary(_beside(times["profile"]))
    for name, intervals in times.items():
        if intervals and (inside := table.summary(intervals)):
            found[name] = inside
    found["sampling"] = {
        "samples": samples.looks,
        "interval_s": round(samples.interval_s, 3),
        "duration_s": round(samples.duration_s, 3),
        "cpu_share": round(samples.cpu_s / samples.duration_s, 6) if samples.duration_s else 0.0,
    }
    return found


def _beside(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]] | None:
    """Return the times between intervals, before and after them, in ns; None for all the time."""
    if not intervals:
        return None
    begins = [0, *(end + 1 for _, end in intervals)]
    ends = [*(begin - 1 for begin, _ in intervals), (1 << 63) - 1]
    return list(zip(begins, ends, strict=True))


class _Table:
    """Samples by counter."""

    def __init__(self, samples: Samples) -> None:
        self._rows: dict[str, tuple[list[int], list[float]]] = {name: ([], []) for name in samples.names}
        for number, t_ns, value in zip(samples.counter, samples.t_ns, samples.value, strict=True):
            times, values = self._rows[samples.names[number]]
            times.append(t_ns)
            values.append(value)

    def summary(self, intervals: Sequence[tuple[int, int]] | None = None) -> dict[str, Any]:
        """Return what happened in some intervals, None for all the time.

        What is known by fewer than two looks in each of them has no rate.
        """
        chosen: _Rows = {}
        for name, (times, values) in self._rows.items():
            bounds = [(0, len(times))]
            if intervals is not None:
                bounds = [(bisect_left(times, begin), bisect_right(times, end)) for begin, end in intervals]
            if pieces := [(times[a:b], values[a:b]) for a, b in bounds if b > a]:
                chosen[name] = pieces
        return {**_processor(chosen), **_memory(chosen), **_energy(chosen), **_gpus(chosen)}


# Counter -> its times and values in each interval.
_Rows = dict[str, list[tuple[list[int], list[float]]]]


def _grown(rows: _Rows, name: str) -> tuple[float, float] | None:
    """Return by how much a counter grew inside the intervals, and in how many seconds."""
    known = [(times, values) for times, values in rows.get(name, ()) if len(times) > 1]
    if not known:
        return None
    grown = sum(values[-1] - values[0] for _, values in known)
    return grown, sum(times[-1] - times[0] for times, _ in known) / 1e9


def _values(rows: _Rows, name: str) -> list[float]:
    return [value for _, values in rows[name] for value in values]


def _processor(rows: _Rows) -> dict[str, Any]:
    found: dict[str, Any] = {}
    used = _grown(rows, "cgroup_cpu_time_s") or _grown(rows, "cpu_time_s")
    if used is not None:
        found["cpu_s"] = round(used[0], 6)
        found["cpu_share_mean"] = round(used[0] / used[1], 4)
    for name in (
        "context_switches_voluntary",
        "context_switches_involuntary",
        "page_faults_minor",
        "page_faults_major",
        "throttled_periods",
    ):
        if (grown := _grown(rows, name)) is not None:
            found[name] = int(grown[0])
    if (throttled := _grown(rows, "throttled_s")) is not None:
        found["throttled_s"] = round(throttled[0], 6)
    if "processes" in rows:
        found["processes_peak"] = int(max(_values(rows, "processes")))
    return found


def _memory(rows: _Rows) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "memory_bytes" in rows:
        values = _values(rows, "memory_bytes")
        found["memory_mean_bytes"] = int(sum(values) / len(values))
        found["memory_peak_bytes"] = int(max(values))
    if "cgroup_memory_peak_bytes" in rows:
        found["cgroup_memory_peak_bytes"] = int(_values(rows, "cgroup_memory_peak_bytes")[-1])
    return found


def _energy(rows: _Rows) -> dict[str, Any]:
    """Return the energy of CPUs and GPUs together, and of what."""
    parts = {
        "rapl": [name for name in rows if name.startswith("energy_")],
        "nvml": [name for name in rows if name.startswith("gpu") and name.endswith("_energy_j")],
    }
    total, span_s, how = 0.0, 0.0, []
    for kind, names in parts.items():
        grown = [found for name in names if (found := _grown(rows, name)) is not None]
        if grown:
            total += sum(joules for joules, _ in grown)
            span_s = max(span_s, *(seconds for _, seconds in grown))
            how.append(_ENERGY_HOW[kind])
    if not how or span_s == 0:
        return {}
    return {"energy_j": round(total, 3), "power_mean_w": round(total / span_s, 3), "energy_how": how}


def _gpus(rows: _Rows) -> dict[str, Any]:
    """Return what each GPU did, under `gpus`."""
    gpus: dict[int, dict[str, Any]] = {}
    for name in rows:
        values = _values(rows, name)
        head, _, what = name.partition("_")
        if not head.startswith("gpu"):
            continue
        gpu = gpus.setdefault(int(head.removeprefix("gpu")), {})
        if what == "energy_j":
            gpu[what] = round((_grown(rows, name) or (0.0, 0.0))[0], 3)
        elif what == "memory_bytes":
            gpu["memory_peak_bytes"] = int(max(values))
        else:
            stem, _, unit = what.rpartition("_")
            gpu[f"{stem}_mean_{unit}"] = round(sum(values) / len(values), 2)
            gpu[f"{stem}_max_{unit}"] = round(max(values), 2)
    return {"gpus": [gpus[number] for number in sorted(gpus)]} if gpus else {}
