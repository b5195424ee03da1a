"""`poisson`: samples that arrive at random at a rate, or as in a trace, whether or not the ones before are answered.

Latencies count from the time at which a sample was due. `find_peak` searches for the highest rate whose percentile
keeps to a target latency, and measures at that rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from mlbundle.wire.events import NOTICE, Log, Progress
from mlbundle.wire.judging import judged_rank, nearest_rank
from mlbundle.wire.words import duration
from mlbundle.worker.arrivals import poisson_arrivals, replayed_arrivals
from mlbundle.worker.errors import WorkerError
from mlbundle.worker.scenarios.base import PassOutcome, ScenarioOutcome, Subject, Timings, measured_kind
from mlbundle.worker.scenarios.closed import TAIL, Load, Order, run_warm_up
from mlbundle.worker.scenarios.loop import quiet_interpreter
from mlbundle.worker.scenarios.open_loop import (
    Clock,
    MonotonicClock,
    OpenLoop,
    Reports,
    open_loop_overhead_ns,
)
from mlbundle.worker.scenarios.overload import overload
from mlbundle.worker.scenarios.peak import MOST_TRIALS, Trial, find_peak
from mlbundle.worker.scenarios.schedule import (
    MeasureReports,
    Schedule,
    ShareReports,
    as_int64,
    drawn_schedule,
    served,
    was_held,
)

TRIAL_S = 1.0
# A trial sees about this many queries beyond its percentile, if the measurement itself lasts long enough for them.
TRIAL_TAIL = 10
# A queue that is to miss a target must have the time to get there: a trial lasts this many times the target.
TRIAL_TARGETS = 100
# A peak that its measurement does not confirm is lowered by this factor and measured again, a few times.
STEP_DOWN = 0.95
MOST_CONFIRMATIONS = 3
_UNREACHABLE = 0.5


@dataclass(frozen=True)
class _Floor:
    """What a closed loop does: median latency in ns, and queries a second, which no open loop can exceed."""

    latency_ns: int
    throughput_per_s: float


class PoissonScenario:
    """Open loop, batch 1.

    Options: rate_per_s or arrivals (ns, rising), duration_s, queries, warmup, target_latency_s, percentile, find_peak.
    """

    name = "poisson"
    # Answers may come token by token.
    by_token = True

    def __init__(self, options: Mapping[str, Any], clock: Clock | None = None) -> None:
        self._rate: float | None = options.get("rate_per_s")
        self._arrivals = options.get("arrivals")
        self._duration_s = float(options.get("duration_s", 10.0))
        self._queries: int | None = options.get("queries")
        self._warm_up = options.get("warmup", "auto")
        target_s = options.get("target_latency_s")
        self.target_ns = None if target_s is None else float(target_s) * 1e9
        self.percentile = float(options.get("percentile", 99.0))
        self._find_peak = bool(options.get("find_peak"))
        self._clock = MonotonicClock() if clock is None else clock
        self._check()

    def _check(self) -> None:
        loads = [self._rate is not None, self._arrivals is not None, self._find_peak]
        if not any(loads) or (self._arrivals is not None and sum(loads) > 1):
            raise _refused("poisson needs a rate, arrivals to replay, or a peak to find")
        if self._find_peak and self.target_ns is None:
            raise _refused("a peak is found for a target latency, and there is none")

    def run(self, subject: Subject) -> ScenarioOutcome:
        """Warm up in a closed loop, find the peak if that is asked for, then measure."""
        emitter = subject.emitter
        with quiet_interpreter():
            emitter.phase("warm-up", "begun")
            warm_up = Load(subject.call, Order(subject.batches, subject.seed))
            settled = run_warm_up(warm_up, self._warm_up, emitter)
            floor = _floor(warm_up.timings())
            search = _Search(self, subject, floor) if self._find_peak else None
            if search is not None:
                search.run(self._rate)
            else:
                self._warn_of_overload(subject, floor)
            emitter.phase("warm-up", "done")
            emitter.phase("measure", "begun")
            schedule, measured = self.measure(subject, self._rate) if search is None else search.confirm()
            emitter.phase("measure", "done")
            overhead_ns = open_loop_overhead_ns()
        values = {
            "warm_up_settled": settled,
            "warm_up_queries": len(warm_up.starts),
            "loop_overhead_ns": overhead_ns,
            "floor_ns": floor.latency_ns,
            **({} if search is None else {"peak": search.to_document()}),
        }
        found = {"horizon_ns": schedule.horizon_ns, "rate_per_s": schedule.rate_per_s, **served(measured)}
        passes = (
            PassOutcome("warm-up", warm_up.timings()),
            PassOutcome(measured_kind(subject), measured, headline=True, values=found),
        )
        return ScenarioOutcome(passes, values)

    def _warn_of_overload(self, subject: Subject, floor: _Floor) -> None:
        """Say beforehand that a measurement will take longer than was asked for, and what it is going to show."""
        rate = self._rate or 0.0
        if rate <= floor.throughput_per_s:
            return
        planned_s = self._duration_s if self._queries is None else self._queries / rate
        subject.emitter.event(overload(rate, floor.throughput_per_s, planned_s))

    def measure(
        self, subject: Subject, rate: float | None, attempt: int = 0, most_s: float | None = None
    ) -> tuple[Schedule, Timings]:
        """Measure at a rate, or the replay, as long as was asked for; another attempt gets other arrivals.

        `most_s` cuts it short.
        """
        schedule = self._schedule(rate, (subject.seed, 0, attempt))
        if rate is not None and most_s is not None and schedule.horizon_ns > most_s * 1e9:
            schedule = drawn_schedule(rate, (subject.seed, 0, attempt), most_s)
        return schedule, self._run(subject, schedule, MeasureReports(subject.emitter, schedule))

    def try_rate(self, subject: Subject, rate: float, number: int, left: int) -> Trial:
        """Try a rate for a short while; `left` is how many trials there can be, with this one."""
        tail = TRIAL_TAIL / (1 - self.percentile / 100)
        assert self.target_ns is not None
        fitting_s = max(TRIAL_S, tail / rate, TRIAL_TARGETS * self.target_ns / 1e9)
        duration_s = min(self._duration_s, fitting_s)
        schedule = drawn_schedule(rate, (subject.seed, 1, number), duration_s)

        def progress(share: float) -> Progress:
            done, eta_s = number + share, (left - share) * duration_s
            return Progress(phase="warm-up", done=done, total=number + left, unit="trials", eta_s=eta_s)

        timings = self._run(subject, schedule, ShareReports(subject.emitter, schedule, progress))
        return self.judge(schedule, timings, nearest_rank)

    def judge(self, schedule: Schedule, timings: Timings, rank: Callable[[int, float], int]) -> Trial:
        """Say whether a load was held and the latency at the rank of the percentile kept to the target."""
        assert timings.scheduled_ns is not None
        assert self.target_ns is not None
        assert schedule.rate_per_s is not None
        latencies = np.sort(as_int64(timings.ends_ns) - as_int64(timings.scheduled_ns))
        latency_ns = int(latencies[rank(len(latencies), self.percentile)])
        kept = was_held(schedule, timings) and latency_ns <= self.target_ns
        return Trial(schedule.rate_per_s, latency_ns, kept)

    def _schedule(self, rate: float | None, seed: Sequence[int]) -> Schedule:
        if rate is None:
            arrivals = replayed_arrivals(self._arrivals or (), self._queries)
            return Schedule(arrivals, arrivals[-1], None)
        if self._queries is not None:
            arrivals = poisson_arrivals(rate, seed, count=self._queries)
            return Schedule(arrivals, arrivals[-1], rate)
        return drawn_schedule(rate, seed, self._duration_s)

    def _run(self, subject: Subject, schedule: Schedule, reports: Reports) -> Timings:
        order = Order(subject.batches, subject.seed)
        return OpenLoop(subject.call, order, self._clock, reports).run(
            schedule.arrivals_ns, schedule.horizon_ns
        )


class _Search:
    """The search for a peak: its trials, then the measurement that confirms it."""

    def __init__(self, scenario: PoissonScenario, subject: Subject, floor: _Floor) -> None:
        self._scenario = scenario
        self._subject = subject
        self._floor = floor
        self._trials: list[Trial] = []
        self._peak: float | None = None
        self._rate = 0.0
        self._done, self._left = 0, MOST_TRIALS

    def run(self, first_per_s: float | None) -> None:
        """Search for the rate at which to measure, which is a peak only if one was found."""
        highest = self._floor.throughput_per_s
        target_ns = self._scenario.target_ns
        if target_ns is None or target_ns > self._floor.latency_ns:
            self._peak, trials = find_peak(self._try, highest, first_per_s, self._told)
            self._trials.extend(trials)
        self._rate = self._peak or min(
            (trial.rate_per_s for trial in self._trials), default=highest * _UNREACHABLE
        )

    def confirm(self) -> tuple[Schedule, Timings]:
        """Measure at the rate that was found; a peak that is not confirmed is lowered and measured again.

        It is confirmed by the bound of the percentile, where its queries are enough for one.
        """
        attempts = 1 if self._peak is None else MOST_CONFIRMATIONS
        # Without a trial no rate can keep to the target: what is measured then is no more than a look.
        most_s = None if self._trials else TRIAL_S
        for attempt in range(attempts):
            schedule, timings = self._scenario.measure(self._subject, self._rate, attempt, most_s)
            judged = self._scenario.judge(schedule, timings, judged_rank)
            if judged.kept:
                self._peak = self._rate
                break
            self._peak = None
            if attempt + 1 < attempts:
                self._trials.append(judged)
                self._rate *= STEP_DOWN
                message = "the peak was not confirmed, measuring again at {:,.5g} samples a second"
                self._subject.emitter.event(Log(level=NOTICE, message=message.format(self._rate)))
        return schedule, timings

    def to_document(self) -> dict[str, Any]:
        """Return what is said of the search; `rate_per_s` is null where no rate kept to the target."""
        trials = [
            {"rate_per_s": trial.rate_per_s, "latency_ns": trial.latency_ns, "kept": trial.kept}
            for trial in self._trials
        ]
        return {"rate_per_s": self._peak, "trials": trials}

    def _try(self, rate: float) -> Trial:
        trial = self._scenario.try_rate(self._subject, rate, self._done, max(1, self._left))
        message = "trial {}: {:,.5g} samples a second, p{:g} {}: {}"
        self._subject.emitter.event(
            Log(
                level=NOTICE,
                message=message.format(
                    self._done + 1,
                    rate,
                    self._scenario.percentile,
                    duration(trial.latency_ns),
                    "kept" if trial.kept else "not kept",
                ),
            )
        )
        return trial

    def _told(self, done: int, left: int) -> None:
        self._done, self._left = done, left
        self._subject.emitter.event(
            Progress(phase="warm-up", done=done, total=done + left, unit="trials", eta_s=None if left else 0)
        )


def _floor(warm_up: Timings) -> _Floor:
    services = np.sort(as_int64(warm_up.ends_ns[-TAIL:]) - as_int64(warm_up.starts_ns[-TAIL:]))
    mean_ns = max(1.0, float(services.mean()))
    return _Floor(int(services[nearest_rank(len(services), 50)]), 1e9 / mean_ns)


def _refused(message: str) -> WorkerError:
    return WorkerError(
        "scenario-options-refused", message, fault="environment", hint="--rate, or --find-peak"
    )
