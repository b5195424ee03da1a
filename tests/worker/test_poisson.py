"""The open loop on a clock that calls move on: arrivals, waiting times that theory gives, reports, the peak."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlbundle.analysis.intervals import mean_interval
from mlbundle.wire import frames
from mlbundle.wire.judging import judged_rank, nearest_rank
from mlbundle.worker.arrivals import MOST_ARRIVALS, poisson_arrivals, replayed_arrivals
from mlbundle.worker.emit import Emitter
from mlbundle.worker.errors import WorkerError
from mlbundle.worker.scenarios import poisson as poisson_module
from mlbundle.worker.scenarios.base import Subject, Timings
from mlbundle.worker.scenarios.closed import Order
from mlbundle.worker.scenarios.open_loop import REPORT_IDLE_NS, SILENT_NS, MonotonicClock, OpenLoop
from mlbundle.worker.scenarios.peak import MOST_TRIALS, RESOLUTION, Trial, find_peak
from mlbundle.worker.scenarios.poisson import PoissonScenario
from mlbundle.worker.scenarios.schedule import Schedule, served, was_held

SERVICE_NS = 1_000_000


class VirtualClock:
    """Time passes where somebody waits and where the model works, and nowhere else."""

    def __init__(self) -> None:
        self.time_ns = 1_000_000_000_000

    def now_ns(self) -> int:
        return self.time_ns

    def wait_until(self, due_ns: int) -> None:
        self.time_ns = max(self.time_ns, due_ns)

    def model(self, service_ns: Callable[[], int]) -> Callable[[Any], None]:
        def call(_batch: Any) -> None:
            self.time_ns += service_ns()

        return call


class Recorded:
    """Reports, with the time of each."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.windows: list[tuple[int, int, int]] = []
        self.signs: list[int] = []

    def window(self, _due_ns: Any, ends_ns: Any, begun: int) -> None:
        self.windows.append((self.clock.now_ns(), begun, len(ends_ns)))

    def alive(self, _done: int) -> None:
        self.signs.append(self.clock.now_ns())

    def times(self) -> list[int]:
        return sorted([*self.signs, *(when for when, _, _ in self.windows)])


@pytest.fixture
def emitted(tmp_path):
    path = tmp_path / "frames"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)

    def read() -> list[dict]:
        return [json.loads(frame.payload) for frame in frames.FrameDecoder().feed(path.read_bytes())]

    yield Emitter(descriptor), read
    os.close(descriptor)


def _subject(emitter: Emitter, call: Callable[[Any], Any], seed: int = 0) -> Subject:
    return Subject(call=call, batches=[0, 1, 2], emitter=emitter, seed=seed)


def _measured(
    emitter: Emitter, rate: float, queries: int, service_ns: Callable[[], int], seed: int
) -> Timings:
    clock = VirtualClock()
    scenario = PoissonScenario({"rate_per_s": rate, "queries": queries}, clock)
    _, timings = scenario.measure(_subject(emitter, clock.model(service_ns), seed), rate)
    return timings


def _distance(sorted_shares: Any) -> float:
    """The Kolmogorov-Smirnov distance of sorted values of a distribution function from what they should be."""
    steps = np.arange(len(sorted_shares) + 1) / len(sorted_shares)
    return float(max((steps[1:] - sorted_shares).max(), (sorted_shares - steps[:-1]).max()))


@pytest.mark.parametrize("seed", range(5))
def test_arrivals_pass_a_kolmogorov_smirnov_test(seed: int) -> None:
    times = np.asarray(poisson_arrivals(2000, (seed,), duration_s=10))
    gaps = np.diff(times, prepend=0)
    critical = 1.628 / math.sqrt(len(gaps))  # 1 %
    assert _distance(np.sort(-np.expm1(-gaps * 2000 / 1e9))) < critical
    assert _distance(np.sort(times / 10e9)) < critical, "given their number, arrivals are uniform"
    assert _distance(np.sort(-np.expm1(-np.full(len(gaps), 1 / 2000) * 2000))) > critical, (
        "even gaps must fail"
    )


def test_counts_of_arrivals_vary_as_much_as_they_should() -> None:
    counts = [len(poisson_arrivals(500, (seed,), duration_s=1)) for seed in range(400)]
    assert np.mean(counts) == pytest.approx(500, abs=3 * math.sqrt(500 / 400))
    assert 0.8 < np.var(counts) / 500 < 1.25


def test_the_seed_gives_the_arrivals_and_more_time_only_adds_to_them() -> None:
    short, long = (poisson_arrivals(1000, (1, 0), duration_s=duration) for duration in (1, 200))
    assert list(long[: len(short)]) == list(short)
    assert list(poisson_arrivals(1000, (1, 0), count=100)) == list(short[:100])
    assert list(poisson_arrivals(1000, (2, 0), count=100)) != list(short[:100])
    assert list(poisson_arrivals(1000, (-1, 0), count=100)) != list(short[:100])
    assert len(poisson_arrivals(1e-3, (0,), duration_s=0.001)) == 1


def test_more_arrivals_than_memory_are_refused() -> None:
    with pytest.raises(WorkerError, match="at most"):
        poisson_arrivals(1e7, (0,), duration_s=86_400)
    with pytest.raises(WorkerError, match="at most"):
        poisson_arrivals(1, (0,), count=MOST_ARRIVALS + 1)


@pytest.mark.parametrize("times", [[], [3, 2], [-1, 2], ["a"], [[1], [2]], [1 << 70]])
def test_arrivals_that_can_not_be_are_refused(times: list) -> None:
    with pytest.raises(WorkerError, match="no rising times"):
        replayed_arrivals(times)


@pytest.mark.parametrize(
    ("name", "waiting_s"),
    [
        # Mean waiting times at 800 a second and a mean service of 1 ms: rho / (mu - lambda), and half of it
        # for a constant service (Pollaczek and Khinchine).
        ("M/M/1", 0.8 / 200),
        ("M/D/1", 0.8 / 400),
    ],
)
def test_waiting_times_are_those_of_theory(emitted, name: str, waiting_s: float) -> None:
    emitter, _ = emitted
    means, waited = [], []
    for seed in range(12):
        draws = iter(np.random.default_rng([7, seed]).exponential(SERVICE_NS, 20_000).astype(int).tolist())
        service = (lambda draws=draws: next(draws)) if name == "M/M/1" else (lambda: SERVICE_NS)
        timings = _measured(emitter, 800, 20_000, service, seed)
        waits = np.asarray(timings.starts_ns) - np.asarray(timings.scheduled_ns)
        means.append(float(waits.mean()) / 1e9)
        waited.append(1 - served(timings)["late_ns"]["queries"] / 20_000)
    low, high = mean_interval(means, 0.95)
    assert low <= waiting_s <= high
    assert high - low < 0.2 * waiting_s, "the interval must say something"
    low, high = mean_interval(waited, 0.99)
    assert low <= 0.8 <= high, "arrivals at random find the model busy as often as it is"


def test_a_slow_answer_is_felt_by_those_that_wait_for_it() -> None:
    clock = VirtualClock()
    services = iter([50, 1, 1, 1])
    loop = OpenLoop(clock.model(lambda: next(services) * 1_000_000), Order([0], 0), clock, Recorded(clock))
    timings = loop.run([0, 10_000_000, 20_000_000, 90_000_000])
    latencies = np.asarray(timings.ends_ns) - np.asarray(timings.scheduled_ns)
    assert latencies.tolist() == [50_000_000, 41_000_000, 32_000_000, 1_000_000]
    assert timings.busy_ns == 91_000_000


def test_a_schedule_lasts_as_long_as_it_says() -> None:
    clock = VirtualClock()
    timings = OpenLoop(clock.model(lambda: 1), Order([0], 0), clock, Recorded(clock)).run([5], 10_000_000)
    assert timings.busy_ns == 10_000_000


def test_the_real_clock_never_begins_early_and_does_wait() -> None:
    due = [number * 1_000_000 for number in range(30)] + [29_000_000] * 3
    timings = OpenLoop(lambda _b: None, Order([0], 0), MonotonicClock(), Recorded(VirtualClock())).run(due)
    assert all(start >= at for start, at in zip(timings.starts_ns, timings.scheduled_ns or (), strict=True))
    assert timings.busy_ns >= 29_000_000


def test_every_query_is_in_one_window_and_windows_are_told_only_where_nothing_is_due() -> None:
    clock = VirtualClock()
    reports = Recorded(clock)
    arrivals = poisson_arrivals(100, (0,), duration_s=20)
    loop = OpenLoop(clock.model(lambda: SERVICE_NS), Order([0], 0), clock, reports)
    due = np.asarray(loop.run(arrivals, 20_000_000_000).scheduled_ns)
    spans = [(begun, end) for _, begun, end in reports.windows]
    assert spans[0][0] == 0
    assert spans[-1][1] == len(arrivals)
    assert all(a[1] == b[0] for a, b in zip(spans, spans[1:], strict=False))
    for when, _, end in reports.windows[:-1]:
        assert end == len(due) or due[end] - when >= REPORT_IDLE_NS, "a report stood in the way of a query"
    told = [when for when, _, _ in reports.windows[:-1]]
    assert len(told) > 10
    assert min(np.diff(told)) >= 450_000_000, "at most twice a second"


def test_there_are_signs_of_life_where_nothing_comes_and_where_no_pause_comes() -> None:
    clock = VirtualClock()
    quiet = Recorded(clock)
    begun = clock.now_ns()
    OpenLoop(clock.model(lambda: 1), Order([0], 0), clock, quiet).run([0, 60_000_000_000])
    assert max(np.diff([begun, *quiet.times()])) < 1e9
    busy = Recorded(clock)
    begun = clock.now_ns()
    OpenLoop(clock.model(lambda: SERVICE_NS), Order([0], 0), clock, busy).run([0] * 30_000)
    times = [begun, *busy.times()]
    assert max(np.diff(times)) < 2 * SILENT_NS
    assert len(times) < 20


def test_a_run_tells_its_passes_its_progress_and_how_late_the_loop_was(emitted) -> None:
    emitter, read = emitted
    clock = VirtualClock()
    scenario = PoissonScenario({"rate_per_s": 200, "duration_s": 5, "warmup": 0.001}, clock)
    outcome = scenario.run(_subject(emitter, clock.model(lambda: SERVICE_NS)))
    warm_up, measured = outcome.passes
    assert (warm_up.kind, measured.kind, measured.headline) == ("warm-up", "measure", True)
    assert measured.values["horizon_ns"] == 5_000_000_000
    assert measured.values["service_ns"] == SERVICE_NS * len(measured.timings.starts_ns)
    assert measured.values["late_ns"]["max"] == 0
    assert measured.timings.busy_ns >= 5_000_000_000
    assert outcome.values["loop_overhead_ns"] > 0
    events = read()
    windows = [event for event in events if event["kind"] == "window"]
    assert sum(window["queries"] for window in windows) == len(measured.timings.starts_ns)
    progress = [e for e in events if e["kind"] == "progress" and e["phase"] == "measure"]
    assert [e["done"] for e in progress] == sorted(e["done"] for e in progress)
    assert progress[-1]["done"] == progress[-1]["total"] == 5
    assert progress[-1]["eta_s"] == 0


def test_an_arrival_after_the_duration_makes_it_longer(emitted) -> None:
    emitter, read = emitted
    clock = VirtualClock()
    scenario = PoissonScenario({"rate_per_s": 0.01, "duration_s": 1.0}, clock)
    schedule, timings = scenario.measure(_subject(emitter, clock.model(lambda: 1)), 0.01)
    assert len(timings.starts_ns) == 1
    assert schedule.horizon_ns == schedule.arrivals_ns[0] > 1_000_000_000
    assert all(0 <= e["done"] <= e["total"] for e in read() if e["kind"] == "progress")


def test_a_replay_keeps_to_the_trace_and_a_number_of_queries_cuts_it(emitted) -> None:
    emitter, _ = emitted
    clock = VirtualClock()
    scenario = PoissonScenario({"arrivals": [0, 5, 5, 900], "queries": 3, "duration_s": 10.0}, clock)
    schedule, timings = scenario.measure(_subject(emitter, clock.model(lambda: 1)), None)
    due = np.asarray(timings.scheduled_ns)
    assert (due - due[0]).tolist() == [0, 5, 5]
    assert schedule.rate_per_s is None


@pytest.mark.parametrize(
    "options",
    [{}, {"find_peak": True}, {"arrivals": [1], "rate_per_s": 1.0}, {"arrivals": [1], "find_peak": True}],
)
def test_options_that_make_no_sense_are_refused(options: dict) -> None:
    with pytest.raises(WorkerError):
        PoissonScenario(options)


@pytest.mark.parametrize("peak", [3.0, 77.7, 512.0, 999.0])
def test_the_search_ends_close_below_the_peak(peak: float) -> None:
    told: list[tuple[int, int]] = []
    found, trials = find_peak(
        lambda rate: Trial(rate, 1, rate <= peak), 1000.0, told=lambda done, left: told.append((done, left))
    )
    assert len(trials) <= MOST_TRIALS
    assert found is not None
    assert peak - found <= max(RESOLUTION * peak, 1000 / 2**MOST_TRIALS)
    assert found <= peak
    assert told[-1] == (len(trials), 0)
    assert all(done + left >= len(trials) for done, left in told), "never fewer trials promised than come"


def test_the_search_begins_where_it_is_told_and_finds_nothing_where_there_is_nothing() -> None:
    found, trials = find_peak(lambda rate: Trial(rate, 1, False), 1000.0, first_per_s=100.0)
    assert found is None
    assert trials[0].rate_per_s == 100.0
    assert len(trials) == MOST_TRIALS


def _lindley_peak(limit_s: float, percent: float) -> float:
    """The highest rate of an M/D/1 queue with 1 ms whose percentile of the time in it is within a limit."""
    gaps = np.random.default_rng(99).exponential(1.0, 400_000)
    low, high = 0.0, 1000.0
    while high - low > 1:
        rate = (low + high) / 2
        # Lindley: the waiting time is the walk of (service - gap), less its lowest point so far.
        walk = np.concatenate(([0.0], np.cumsum(1e-3 - gaps[1:] / rate)))
        sojourn = walk - np.minimum.accumulate(walk) + 1e-3
        low, high = (rate, high) if np.percentile(sojourn, percent) <= limit_s else (low, rate)
    return low


@pytest.fixture
def virtual(monkeypatch):
    """A virtual clock that the warm-up goes by, too."""
    clock = VirtualClock()
    monkeypatch.setattr(poisson_module, "open_loop_overhead_ns", lambda: 1.0)
    monkeypatch.setattr(time, "monotonic_ns", clock.now_ns)
    return clock


def test_the_peak_is_that_of_theory(emitted, virtual) -> None:
    emitter, read = emitted
    options = {"find_peak": True, "target_latency_s": 0.004, "percentile": 90.0, "duration_s": 60.0}
    outcome = PoissonScenario({**options, "warmup": 0.5}, virtual).run(
        _subject(emitter, virtual.model(lambda: SERVICE_NS))
    )
    peak = outcome.values["peak"]
    assert peak["rate_per_s"] == pytest.approx(_lindley_peak(0.004, 90), rel=0.12)
    measured = outcome.passes[1]
    assert measured.values["rate_per_s"] == peak["rate_per_s"]
    latencies = np.asarray(measured.timings.ends_ns) - np.asarray(measured.timings.scheduled_ns)
    assert np.percentile(latencies, 90) <= 4_000_000
    assert 3 <= len(peak["trials"]) <= MOST_TRIALS + 2
    said = [e["message"] for e in read() if e["kind"] == "log" and e["level"] == "notice"]
    assert re.match(r"trial 1: [\d.,]+ samples a second, p90 [\d.]+ ms: (not )?kept", said[0])
    assert sum(text.startswith("trial ") for text in said) <= len(peak["trials"])
    trials = [e for e in read() if e["kind"] == "progress" and e["unit"] == "trials"]
    assert trials[-1]["done"] == trials[-1]["total"]
    shares = [e["done"] for e in trials]
    assert shares == sorted(shares)
    totals = [e["total"] for e in trials]
    assert totals == sorted(totals, reverse=True), "what remains is never more than was said"
    assert all(e["eta_s"] is None or e["eta_s"] >= 0 for e in trials)


def test_a_target_below_the_floor_is_not_searched_for(emitted, virtual) -> None:
    emitter, _ = emitted
    options = {"find_peak": True, "target_latency_s": 0.0009, "duration_s": 2.0, "warmup": 0.5}
    outcome = PoissonScenario(options, virtual).run(_subject(emitter, virtual.model(lambda: SERVICE_NS)))
    assert outcome.values["peak"] == {"rate_per_s": None, "trials": []}
    assert outcome.values["floor_ns"] == SERVICE_NS
    headline = next(part for part in outcome.passes if part.headline)
    assert headline.values["horizon_ns"] <= 1_100_000_000, "no more than a look"
    assert outcome.passes[1].headline


def test_more_than_the_model_can_do_is_told_before_it_is_measured(emitted, virtual) -> None:
    emitter, events = emitted
    for rate in (900.0, 5000.0):
        options = {"rate_per_s": rate, "duration_s": 0.5, "warmup": 0.1}
        PoissonScenario(options, virtual).run(_subject(emitter, virtual.model(lambda: SERVICE_NS)))
    warned = [event for event in events() if event["kind"] == "warning"]
    assert [event["reference"] for event in warned] == ["overload"]
    assert "takes at least 2 s instead of 0.5 s" in warned[0]["message"]


def test_a_peak_that_its_measurement_does_not_confirm_is_lowered(emitted, virtual) -> None:
    emitter, _ = emitted

    def service() -> int:
        # Faster in the trials than in the measurement, as a machine that heats up.
        return SERVICE_NS if scenario.measuring == 0 else 1_040_000

    class Scenario(PoissonScenario):
        measuring = 0

        def measure(self, *args: Any) -> Any:
            self.measuring += 1
            return super().measure(*args)

    options = {"find_peak": True, "target_latency_s": 0.005, "percentile": 90.0, "duration_s": 60.0}
    scenario = Scenario({**options, "warmup": 0.5}, virtual)
    outcome = scenario.run(_subject(emitter, virtual.model(service)))
    peak = outcome.values["peak"]
    assert scenario.measuring > 1
    kept = max(trial["rate_per_s"] for trial in peak["trials"] if trial["kept"])
    missed = [trial["rate_per_s"] for trial in peak["trials"][1 - scenario.measuring :]]
    assert missed == [pytest.approx(kept * 0.95**step) for step in range(scenario.measuring - 1)]
    assert not peak["trials"][-1]["kept"], "a measurement that missed is among the trials"
    assert peak["rate_per_s"] == pytest.approx(missed[-1] * 0.95)
    assert outcome.passes[1].values["rate_per_s"] == peak["rate_per_s"]


def test_ranks_are_those_of_the_decimal_that_was_written() -> None:
    assert [nearest_rank(1000, percent) for percent in (50, 99, 99.9, 99.99)] == [499, 989, 998, 999]
    assert nearest_rank(1, 50) == 0


def test_a_percentile_is_judged_by_its_bound_where_there_is_one() -> None:
    assert judged_rank(661, 99) == nearest_rank(661, 99)
    assert judged_rank(662, 99) == 661, "the slowest of all"
    assert nearest_rank(100_000, 99) < judged_rank(100_000, 99) < nearest_rank(100_000, 99.2)


def test_the_search_goes_on_upwards_where_every_rate_was_kept() -> None:
    told: list[tuple[int, int]] = []
    found, trials = find_peak(
        lambda rate: Trial(rate, 1, rate <= 1100), 1000.0, told=lambda done, left: told.append((done, left))
    )
    assert found is not None
    assert 1050 < found <= 1100
    assert any(not trial.kept for trial in trials), "an upper end was seen"
    assert all(done + left >= len(trials) for done, left in told)


@pytest.mark.parametrize(("service_ns", "is_held"), [(900_000, True), (1_100_000, False)])
def test_a_load_that_piles_up_was_not_held_however_late_the_target(service_ns: int, is_held: bool) -> None:
    clock = VirtualClock()
    arrivals = [number * 1_000_000 for number in range(2000)]
    loop = OpenLoop(clock.model(lambda: service_ns), Order([0], 0), clock, Recorded(clock))
    timings = loop.run(arrivals, 2_000_000_000)
    schedule = Schedule(arrivals, 2_000_000_000, 1000.0)
    assert was_held(schedule, timings) is is_held
    options = {"find_peak": True, "target_latency_s": 60.0}
    assert PoissonScenario(options).judge(schedule, timings, nearest_rank).kept is is_held
