"""The counters of a run over time (`samples.npz`), as they are looked at: few points each, and what they came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import ReferenceNotFound
from mlbundle.runs.sampled import SAMPLES
from mlbundle.runs.seen import events_of
from mlbundle.wire.events import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

POINTS = 160
# The last part of a counter's name is its unit; what only grows with time is shown as a rate.
_UNITS = ("bytes", "s", "w", "j", "percent", "hz", "mhz", "c", "celsius", "per_s")
_GROWING = ("_s", "_j", "_count", "_voluntary", "_involuntary", "_minor", "_major", "_periods")


@dataclass(frozen=True)
class CounterSeries:
    """A counter of a run: points (s since the first sample, value), the least, mean and most of all samples.

    `is_rate`: the counter only grows, and the values are how much of its unit it grew by in a second.
    """

    name: str
    unit: str
    is_rate: bool
    points: Sequence[tuple[float, float]]
    least: float
    mean: float
    most: float


@dataclass(frozen=True)
class CounterView:
    """The counters of a run, and when its phases began: (s since the first sample, name), in order of time."""

    series: Sequence[CounterSeries]
    phases: Sequence[tuple[float, str]]


def counter_view(folder: Path, *, points: int = POINTS) -> CounterView:
    """Return the counters of a run and its phases since the first sample. Raises as `counter_series`."""
    samples = _samples(folder)
    if not len(samples):
        return CounterView([], [])
    begin_ns, end_ns = int(samples.t_ns.min()), int(samples.t_ns.max())
    begun: dict[str, int] = {}
    for event in events_of(folder):
        if isinstance(event, Phase) and event.state == "begun":
            begun.setdefault(event.name, event.t_ns)
    phases = [((t_ns - begin_ns) / 1e9, name) for name, t_ns in begun.items() if begin_ns <= t_ns <= end_ns]
    return CounterView(_all_series(samples, points), sorted(phases))


def counter_series(folder: Path, *, points: int = POINTS) -> list[CounterSeries]:
    """Return the counters of a run by name; those that never changed from 0 are left out.

    Raises ReferenceNotFound where nothing was looked at, ProtocolBroken for a file that can't be read.
    """
    return _all_series(_samples(folder), points)


def _samples(folder: Path) -> Any:
    from mlbundle.trace.samples import load_samples

    path = folder / SAMPLES
    if not path.is_file():
        raise ReferenceNotFound(
            f"run {folder.name} has no counters",
            where=str(path),
            hint="a worker that ends within a moment, or on another machine, is not looked at",
        )
    return load_samples(path)


def _all_series(samples: Any, points: int) -> list[CounterSeries]:
    if not len(samples):
        return []
    begin_ns = int(samples.t_ns.min())
    found = []
    for number, name in enumerate(samples.strings):
        mine = samples.counter == number
        series = _series(name, (samples.t_ns[mine] - begin_ns) / 1e9, samples.value[mine], points)
        if series is not None:
            found.append(series)
    return sorted(found, key=lambda series: series.name)


def _series(name: str, t_s: Any, values: Any, points: int) -> CounterSeries | None:
    import numpy as np

    known = np.isfinite(values)
    order = np.argsort(t_s[known], kind="stable")
    t_s, values = t_s[known][order], values[known][order]
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if name.endswith(f"_{unit}")), "")
    is_rate = name.endswith(_GROWING) and len(values) > 1 and bool((np.diff(values) >= 0).all())
    if is_rate:
        t_s, values = _rate(t_s, values)
    if not len(values) or not values.any():
        return None
    shown = np.array_split(np.arange(len(values)), min(points, len(values)))
    return CounterSeries(
        name=name.removesuffix(f"_{unit}") if unit else name,
        unit=unit,
        is_rate=is_rate,
        points=[(float(t_s[part].mean()), float(values[part].mean())) for part in shown],
        least=float(values.min()),
        mean=float(values.mean()),
        most=float(values.max()),
    )


def _rate(t_s: Any, values: Any) -> tuple[Any, Any]:
    """Return how fast a counter grew between samples, at the later one; samples of one moment are one."""
    import numpy as np

    kept = np.r_[True, np.diff(t_s) > 0]
    t_s, values = t_s[kept], values[kept]
    return t_s[1:], np.diff(values) / np.diff(t_s)
