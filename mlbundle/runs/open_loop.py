"""What `poisson` adds to its result: how the rate was held, what kept to the target, and the peak that was found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.analysis.claims import LEAST_QUERIES
from mlbundle.errors import ProtocolBroken
from mlbundle.runs.measured import count, load_latencies, load_times, not_said, number
from mlbundle.runs.repeats import over_processes, spread_of
from mlbundle.runs.words import counted, duration, rate
from mlbundle.wire.judging import held, judged_rank
from mlbundle.wire.passes import SCHEDULED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mlbundle.runs.measured import MeasureFindings

_MOST_TRIALS = 64
# So many arrivals tell their rate; what is drawn is not further from it than by so many standard deviations.
_TELLING_QUERIES = 100
_MOST_DEVIATIONS = 8
_LATEST_NS = 1 << 62
_LATE = ("queries", "p50", "p99", "max")


@dataclass(frozen=True)
class OpenLoopTimes:
    """An open loop as its files tell it: when each query was due and its latency, int64 ns, in the order of arrival.

    `horizon_ns` is how long queries arrived, `busy_ns` until the last was answered; `late_ns` is how late the loop was
    for those queries that found nothing before them.
    """

    due_ns: Any
    latencies_ns: Any
    horizon_ns: int
    busy_ns: int
    late_ns: Mapping[str, int]
    floor_ns: int

    @property
    def queries(self) -> int:
        """How many arrived."""
        return len(self.due_ns)

    @property
    def offered_per_s(self) -> float:
        """Arrivals a second; of a single moment, what its answers took."""
        return self.queries / (self.horizon_ns or self.busy_ns) * 1e9

    @property
    def achieved_per_s(self) -> float:
        """Answers a second."""
        return self.queries / self.busy_ns * 1e9

    @property
    def waited_share(self) -> float:
        """The share of the queries that found others before them; as large as the share of time that is used."""
        return 1 - self.late_ns["queries"] / self.queries

    @property
    def backlog(self) -> int:
        """How many others waited for their answer when the last query arrived."""
        ends = self.due_ns[:-1] + self.latencies_ns[:-1]
        return int((ends > self.due_ns[-1]).sum())

    @property
    def held(self) -> bool:
        """Whether the queries were answered as fast as they came."""
        return held(
            offered_per_s=self.offered_per_s,
            achieved_per_s=self.achieved_per_s,
            backlog=self.backlog,
            waited_share=self.waited_share,
            growth=self.growth,
        )

    @property
    def growth(self) -> float:
        """The median latency of the last third of the queries over that of the first third."""
        import numpy as np

        thirds = np.array_split(self.latencies_ns, 3)
        return float(np.median(thirds[2]) / max(1.0, float(np.median(thirds[0])))) if len(thirds[2]) else 1.0


def add(
    folder: Path, processes: Sequence[MeasureFindings], options: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return what `poisson` adds to the result, and why that is not valid. Raises ProtocolBroken."""
    from mlbundle.analysis.percentiles import bounded_percentiles
    from mlbundle.analysis.stability import stability

    times = [_read(folder, process) for process in processes]
    first = times[0]
    percent, target_s = float(options.get("percentile", 99.0)), options.get("target_latency_s")
    target_ns = None if target_s is None else float(target_s) * 1e9
    steady = stability(first.latencies_ns, first.busy_ns / 1e9)
    added: dict[str, Any] = {
        "poisson": _document(first, percent, target_ns, options),
        "percentiles": bounded_percentiles(first.latencies_ns),
        **({} if steady is None else {"stability": steady.to_document()}),
        **_repeats(times, percent),
    }
    reasons = _reasons(times, percent)
    if target_ns is not None and (target_ns <= first.floor_ns or not options.get("find_peak")):
        reasons += _target_reasons(first, percent, target_ns)
    if options.get("find_peak"):
        peak = _read_peak(processes[0].values, first)
        if target_ns is None or not _confirms(first, percent, target_ns):
            peak["rate_per_s"] = None
        added["peak"] = {**peak, "percentile": percent, "target_latency_s": target_s}
        if target_ns is not None and target_ns > first.floor_ns:
            reasons += _peak_reasons(peak, percent, target_ns)
    return added, reasons


def _read(folder: Path, process: MeasureFindings) -> OpenLoopTimes:
    headline = process.headline
    due = load_times(folder, f"{headline.folder}/{SCHEDULED}", headline.queries)
    latencies = load_latencies(folder, headline)
    late = headline.values.get("late_ns")
    if not isinstance(late, dict):
        raise not_said("late_ns")
    found = OpenLoopTimes(
        due_ns=due,
        latencies_ns=latencies,
        horizon_ns=count(headline.values, "horizon_ns"),
        busy_ns=headline.busy_ns,
        late_ns={name: count(late, name) for name in _LATE},
        floor_ns=count(process.values, "floor_ns"),
    )
    if due.min() < 0 or max(due.max(), latencies.max()) >= _LATEST_NS or (due[1:] < due[:-1]).any():
        raise ProtocolBroken("the worker's times can't be those of an open loop", where=headline.folder)
    ends = due + latencies
    if (ends[1:] < ends[:-1]).any() or int(ends[-1]) - int(due[0]) > found.busy_ns:
        raise ProtocolBroken("the worker's times can't be those of an open loop", where=headline.folder)
    if found.late_ns["queries"] > found.queries:
        raise not_said("late_ns")
    return found


def _document(
    times: OpenLoopTimes, percent: float, target_ns: float | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    from mlbundle.analysis.percentiles import bounded_percentile
    from mlbundle.analysis.statistics import sorted_array

    ordered = sorted_array(times.latencies_ns)
    latency_ns = _percentile_ns(times, percent)
    document: dict[str, Any] = {
        "arrivals": "replayed" if options.get("arrivals") else "drawn",
        "offered_rate_per_s": times.offered_per_s,
        "achieved_rate_per_s": times.achieved_per_s,
        "queries": times.queries,
        "waited_share": times.waited_share,
        "backlog_at_end": times.backlog,
        "late_ns": dict(times.late_ns),
        "floor_ns": times.floor_ns,
        "percentile": percent,
        "percentile_latency_ns": latency_ns,
        "percentile_bound_ns": bounded_percentile(ordered, percent),
    }
    if target_ns is not None:
        within = int((ordered <= target_ns).sum())
        document |= {
            "target_latency_s": target_ns / 1e9,
            "kept": latency_ns <= target_ns,
            "share_within_target": within / times.queries,
            "goodput_per_s": within / times.busy_ns * 1e9,
        }
    return document


def _reasons(times: Sequence[OpenLoopTimes], percent: float) -> list[str]:
    from mlbundle.analysis.percentiles import least_queries

    first = times[0]
    reasons = [reason for reason in map(_not_held, times) if reason is not None][:1]
    least = max(LEAST_QUERIES, least_queries(percent))
    if first.queries < least:
        queries = counted(first.queries, "query", "queries")
        reasons.append(f"{queries}, at least {least} are needed for percentile {percent:g}")
    return reasons


def _target_reasons(times: OpenLoopTimes, percent: float, target_ns: float) -> list[str]:
    """Return why a target was not kept to: a promise that is not kept counts as in LoadGen's server."""
    if target_ns <= times.floor_ns:
        floor, target = duration(times.floor_ns), duration(target_ns)
        return [f"no rate can keep to {target}: a sample alone takes {floor}"]
    latency_ns = _percentile_ns(times, percent)
    if latency_ns <= target_ns:
        return []
    return [f"target missed: p{percent:g} is {duration(latency_ns)}, {duration(target_ns)} is wanted"]


def _not_held(times: OpenLoopTimes) -> str | None:
    if times.held:
        return None
    return (
        f"the rate could not be held: {rate(times.offered_per_s)} came, {rate(times.achieved_per_s)} "
        f"were answered, and {times.backlog:,} still waited when the last came"
    )


def _percentile_ns(times: OpenLoopTimes, percent: float) -> int:
    from mlbundle.analysis.statistics import percentile, sorted_array

    return int(percentile(sorted_array(times.latencies_ns), _share(percent)))


def _repeats(times: Sequence[OpenLoopTimes], percent: float) -> dict[str, Any]:
    from mlbundle.analysis.statistics import percentile, sorted_array

    found = over_processes([process.latencies_ns for process in times])
    if found:
        values = [float(percentile(sorted_array(one.latencies_ns), _share(percent))) for one in times]
        found["repeats"] |= {"percentile": percent, **spread_of("percentile", values)}
    return found


def _read_peak(values: Mapping[str, Any], times: OpenLoopTimes) -> dict[str, Any]:
    peak = values.get("peak")
    trials = peak.get("trials") if isinstance(peak, dict) else None
    if not isinstance(peak, dict) or not isinstance(trials, list) or len(trials) > _MOST_TRIALS:
        raise not_said("peak")
    if not all(isinstance(trial, dict) and isinstance(trial.get("kept"), bool) for trial in trials):
        raise not_said("trials")
    found = None if peak.get("rate_per_s") is None else number(peak, "rate_per_s")
    if found is not None and times.queries >= _TELLING_QUERIES:
        chance = found * _MOST_DEVIATIONS / math.sqrt(times.queries)
        if abs(times.offered_per_s - found) > chance:
            raise ProtocolBroken("the worker's peak is not the rate that it measured")
    return {
        "rate_per_s": found,
        "trials": [
            {
                "rate_per_s": number(trial, "rate_per_s"),
                "latency_ns": count(trial, "latency_ns"),
                "kept": trial["kept"],
            }
            for trial in trials
        ],
    }


def _confirms(times: OpenLoopTimes, percent: float, target_ns: float) -> bool:
    """Return whether a measurement held its rate and kept to the target, by the bound where there is one."""
    from mlbundle.analysis.statistics import sorted_array

    latency_ns = int(sorted_array(times.latencies_ns)[judged_rank(times.queries, percent)])
    return times.held and latency_ns <= target_ns


def _peak_reasons(peak: Mapping[str, Any], percent: float, target_ns: float) -> list[str]:
    if peak["rate_per_s"] is not None:
        return []
    if any(trial["kept"] for trial in peak["trials"]):
        return ["the peak that trials found was not confirmed by its measurement: latencies vary too much"]
    return [f"no rate that was tried keeps percentile {percent:g} to {duration(target_ns)}"]


def _share(percent: float) -> float:
    """Return a percentile as a share, without what binary fractions add."""
    return round(percent / 100, 10)
