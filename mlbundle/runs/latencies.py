"""The latencies of a run as they are looked at: over time, as a histogram, and as percentiles."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlbundle.errors import ProtocolBroken, ReferenceNotFound
from mlbundle.runs.seen import events_of
from mlbundle.wire.events import Window
from mlbundle.wire.passes import LATENCIES, SCHEDULED, folder_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

POINTS, BARS = 240, 40
# Percentile -> from how many queries on it is told, as in the tables of results.
PERCENTILES = {50.0: 1, 90.0: 64, 95.0: 100, 99.0: 100, 99.9: 1000}
# The kinds of passes that a run which broke off can show, best first.
_MEASURED = ("measure", "batch", "cold-start", "repeat", "warm-up")
# The histogram ends at this percentile; what is beyond is counted in its last bar.
_SHOWN_PERCENT = 99.0
_SKEWED = 4


@dataclass(frozen=True)
class Bucket:
    """The latencies of some time of a run: `t_s` since its begin, the middle of the bucket."""

    t_s: float
    queries: int
    least_ns: int
    p50_ns: int
    most_ns: int


@dataclass(frozen=True)
class Bar:
    """Queries with a latency from `from_ns` on, below that of the next bar; of the last bar all the rest."""

    from_ns: int
    queries: int


@dataclass(frozen=True)
class LatencyView:
    """What is shown of the latencies of a run.

    `kind` is the pass that they are of. `source` is `queries` where each query is known, `windows` where only the
    windows are that were said while the run went on: then there is no histogram, and percentiles are of the windows.
    `percentiles`: percent -> ns, only those that so many queries can tell.
    """

    source: str
    kind: str
    queries: int
    duration_s: float
    buckets: Sequence[Bucket]
    bars: Sequence[Bar] = ()
    percentiles: Mapping[float, int] = field(default_factory=dict)
    least_ns: int = 0
    most_ns: int = 0


def latency_view(
    folder: Path, record: Mapping[str, Any], *, points: int = POINTS, bars: int = BARS
) -> LatencyView:
    """Return the latencies of a run's headline, in at most so many points and bars.

    A run that broke off shows the best pass that it has, one that kept no latencies its windows. Raises
    ReferenceNotFound when nothing was measured, ProtocolBroken for files that can't be read.
    """
    place = _headline_folder(folder, record)
    if place is not None:
        latencies_ns = _load(folder / place / LATENCIES)
        if len(latencies_ns):
            starts_s = _starts_s(folder / place, latencies_ns, record)
            return view_of(latencies_ns, starts_s, kind=place.partition("-")[2], points=points, bars=bars)
    windows = [event for event in events_of(folder) if isinstance(event, Window) and event.phase == "measure"]
    if not windows:
        raise ReferenceNotFound(
            f"run {record['run_id']} kept no latencies",
            where=str(folder),
            hint="LoadGen keeps only its own percentiles; a run that broke off early has none",
        )
    return _view_of_windows(windows)


def view_of(
    latencies_ns: Any, starts_s: Any, *, kind: str = "measure", points: int = POINTS, bars: int = BARS
) -> LatencyView:
    """Return the view of latencies in ns and the times at which the queries began, in s and in order."""
    import numpy as np

    from mlbundle.analysis.statistics import percentile

    ordered = np.sort(latencies_ns)
    end_s = max(float(starts_s[-1]) + float(latencies_ns[-1]) / 1e9, 1e-9)
    told = [p for p, least in PERCENTILES.items() if len(ordered) >= least]
    return LatencyView(
        source="queries",
        kind=kind,
        queries=len(ordered),
        duration_s=end_s,
        buckets=_buckets(latencies_ns, starts_s, end_s, points),
        bars=_bars(ordered, bars),
        percentiles={p: int(percentile(ordered, round(p / 100, 6))) for p in told},
        least_ns=int(ordered[0]),
        most_ns=int(ordered[-1]),
    )


def _headline_folder(folder: Path, record: Mapping[str, Any]) -> str | None:
    """Return the folder of the pass that is shown: the headline's, else the best of those that are there."""
    passes = [p for p in record.get("passes") or [] if isinstance(p, dict)]
    found = []
    for one in passes:
        for name in one.get("files") or []:
            place, _, last = str(name).rpartition("/")
            if last == LATENCIES and folder_number(str(name)) is not None and place.count("/") == 1:
                kind = str(one.get("kind"))
                rank = -1 if one.get("headline") else _MEASURED.index(kind) if kind in _MEASURED else None
                if rank is not None and (folder / name).is_file():
                    found.append((rank, place))
    return min(found)[1] if found else None


def _load(path: Path) -> Any:
    """Return times in ns that are not negative. Raises ProtocolBroken."""
    import numpy as np

    try:
        times = np.load(path, allow_pickle=False, mmap_mode="r")
    except Exception as error:  # NumPy lets errors of many kinds through for a stranger's bytes
        raise ProtocolBroken(f"the latencies can't be read: {error}"[:1000], where=str(path)) from error
    if not isinstance(times, np.ndarray) or times.ndim != 1 or times.dtype != np.int64 or (times < 0).any():
        raise ProtocolBroken("the latencies are not what they should be", where=str(path))
    return times


def _starts_s(place: Path, latencies_ns: Any, record: Mapping[str, Any]) -> Any:
    """Return when each query began, s since the first: when it was due, else one after another.

    Where queries overlap (a pipeline) they are spread evenly over the time that was measured.
    """
    import numpy as np

    if (place / SCHEDULED).is_file():
        due = _load(place / SCHEDULED)
        if len(due) == len(latencies_ns):
            return np.maximum.accumulate(due - due[0]) / 1e9
    duration_s = (record.get("result") or {}).get("duration_s")
    ends_s = np.cumsum(latencies_ns, dtype=np.float64) / 1e9
    starts_s = np.r_[0.0, ends_s[:-1]]
    if not isinstance(duration_s, int | float) or not duration_s > 0 or ends_s[-1] <= duration_s:
        return starts_s
    return np.arange(len(latencies_ns)) * (duration_s / len(latencies_ns))


def _buckets(latencies_ns: Any, starts_s: Any, end_s: float, points: int) -> list[Bucket]:
    import numpy as np

    number = np.minimum((starts_s * (points / end_s)).astype(np.int64), points - 1)
    bounds = np.searchsorted(number, np.arange(points + 1))
    found = []
    for i, (first, last) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        if last > first:
            ordered = np.sort(latencies_ns[first:last])
            found.append(
                Bucket(
                    t_s=(i + 0.5) * end_s / points,
                    queries=last - first,
                    least_ns=int(ordered[0]),
                    p50_ns=int(ordered[(len(ordered) - 1) // 2]),
                    most_ns=int(ordered[-1]),
                )
            )
    return found


def _bars(ordered: Any, bars: int) -> list[Bar]:
    """Return the histogram between the least and a high percentile; the last bar has the rest.

    Its steps are of equal width, or where some queries take many times as long as others, of equal ratio.
    """
    import numpy as np

    from mlbundle.analysis.statistics import percentile

    low, high = int(ordered[0]), int(percentile(ordered, _SHOWN_PERCENT / 100))
    # Few queries make few bars: most would be empty.
    count = max(1, min(bars, high - low + 1, math.ceil(2 * math.sqrt(len(ordered)))))
    steps = np.geomspace if high > _SKEWED * max(1, low) and low > 0 else np.linspace
    edges = np.unique(np.maximum(steps(low, high + 1, count, endpoint=False).astype(np.int64), low))
    bounds = np.r_[np.searchsorted(ordered, edges), len(ordered)]
    return [
        Bar(edge, queries)
        for edge, queries in zip(edges.tolist(), np.diff(bounds).tolist(), strict=True)
    ]  # fmt: skip


def _view_of_windows(windows: Sequence[Window]) -> LatencyView:
    begin_ns = windows[0].t_ns
    buckets = [Bucket((w.t_ns - begin_ns) / 1e9, w.queries, w.p50_ns, w.p50_ns, w.p99_ns) for w in windows]
    p50 = sorted(window.p50_ns for window in windows)
    return LatencyView(
        source="windows",
        kind="measure",
        queries=sum(window.queries for window in windows),
        duration_s=buckets[-1].t_s,
        buckets=buckets,
        percentiles={50.0: p50[(len(p50) - 1) // 2]},
        least_ns=p50[0],
        most_ns=max(window.p99_ns for window in windows),
    )
