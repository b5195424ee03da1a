"""What is made of an open loop's files and words: numbers, reasons, and lies that are refused."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlbundle.errors import ProtocolBroken
from mlbundle.runs.measured import read_measure
from mlbundle.runs.open_loop import add
from mlbundle.runs.repeats import add_online
from mlbundle.wording.results_poisson import lines

SERVICE_NS = 1_000_000


def _queue(rate: float, queries: int, seed: int = 0, service_ns: int = SERVICE_NS) -> tuple[Any, Any]:
    """Return arrivals and latencies of a single server with a constant service."""
    due = np.cumsum(np.random.default_rng(seed).exponential(1e9 / rate, queries)).astype(np.int64) + 10**12
    ends, free = [], 0
    for at in due.tolist():
        free = max(free, at) + service_ns
        ends.append(free)
    return due, np.array(ends) - due


class Worker:
    """The files and words of measuring processes that served a queue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.values: list[dict[str, Any]] = []

    def process(self, due: Any, latencies: Any, **more: Any) -> Worker:
        """Add a process with its files."""
        name = f"passes/{len(self.values):02d}-{'repeat' if self.values else 'measure'}"
        (self.folder / name).mkdir(parents=True)
        np.save(self.folder / name / "latencies.npy", latencies)
        np.save(self.folder / name / "scheduled.npy", due)
        begun = int(due[0])
        ends = due + latencies
        found = {
            "folder": name,
            "kind": name[10:],
            "headline": True,
            "queries": len(due),
            "samples": len(due),
            "busy_ns": max(1, int(ends[-1]) - begun),
            "traced_queries": 0,
            "horizon_ns": int(due[-1]) - begun,
            "late_ns": {
                "queries": 1 + int((ends[:-1] <= due[1:]).sum()),
                "p50": 100,
                "p99": 2000,
                "max": 9000,
            },
        }
        self.values.append(
            {
                "passes": [found],
                "loop_overhead_ns": 300.0,
                "warm_up_queries": 1,
                "warm_up_settled": True,
                "peak_memory_bytes": 1,
                "floor_ns": SERVICE_NS,
                **more,
            }
        )
        return self

    def result(self, **options: Any) -> tuple[dict[str, Any], list[str]]:
        """Return what is added to the result, and the reasons."""
        return add(self.folder, [read_measure(copy.deepcopy(values)) for values in self.values], options)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def test_a_rate_that_is_held_has_its_numbers_and_no_reason(worker: Worker) -> None:
    due, latencies = _queue(500, 5000)
    added, reasons = worker.process(due, latencies).result(target_latency_s=0.006, percentile=90.0)
    assert reasons == []
    found = added["poisson"]
    assert found["offered_rate_per_s"] == pytest.approx(500, rel=0.05)
    assert found["achieved_rate_per_s"] == pytest.approx(found["offered_rate_per_s"], rel=0.001)
    assert found["waited_share"] == pytest.approx(0.5, abs=0.03), "as large as rate x service"
    assert found["percentile_latency_ns"] == int(np.sort(latencies)[4499])
    assert found["percentile_bound_ns"] >= found["percentile_latency_ns"]
    within = (latencies <= 6_000_000).mean()
    assert found["share_within_target"] == within
    assert found["goodput_per_s"] == pytest.approx(found["achieved_rate_per_s"] * within)
    assert found["kept"] is True
    assert added["percentiles"]["p99_ns"] is not None
    assert "repeats" not in added
    assert "peak" not in added


def test_a_target_that_is_missed_is_a_reason(worker: Worker) -> None:
    added, reasons = worker.process(*_queue(500, 5000)).result(target_latency_s=0.0015, percentile=90.0)
    assert added["poisson"]["kept"] is False
    (reason,) = reasons
    assert re.fullmatch(r"target missed: p90 is [23]\.\d\d ms, 1\.50 ms is wanted", reason)


def test_a_peak_below_the_time_of_a_sample_has_one_reason(worker: Worker) -> None:
    worker.process(*_queue(500, 100), peak={"rate_per_s": None, "trials": []})
    _, reasons = worker.result(find_peak=True, target_latency_s=0.0005, percentile=50.0)
    assert reasons == ["no rate can keep to 500 us: a sample alone takes 1.00 ms"]


def test_a_rate_beyond_what_the_model_can_is_not_held(worker: Worker) -> None:
    due, latencies = _queue(1500, 5000)
    added, reasons = worker.process(due, latencies).result()
    assert added["poisson"]["achieved_rate_per_s"] == pytest.approx(1000, rel=0.01)
    assert added["poisson"]["backlog_at_end"] == pytest.approx(5000 / 3, rel=0.1)
    assert len(reasons) == 1
    assert "could not be held" in reasons[0]
    assert "still waited" in reasons[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_busy_queue_that_is_held_is_no_reason(tmp_path: Path, seed: int) -> None:
    _, reasons = Worker(tmp_path).process(*_queue(900, 9000, seed)).result()
    assert reasons == []


def test_queries_that_are_too_few_for_the_percentile_are_told(worker: Worker) -> None:
    added, reasons = worker.process(*_queue(10, 661)).result(percentile=99.0)
    assert reasons == ["661 queries, at least 662 are needed for percentile 99"]
    assert added["poisson"]["percentile_bound_ns"] is None


def test_a_target_that_a_sample_alone_misses_is_told(worker: Worker) -> None:
    _, reasons = worker.process(*_queue(100, 1000)).result(target_latency_s=0.0005)
    assert reasons == ["no rate can keep to 500 us: a sample alone takes 1.00 ms"]


def test_arrivals_of_one_moment_have_a_rate(worker: Worker) -> None:
    added, _ = worker.process(np.full(1, 10**12), np.full(1, 5)).result(arrivals=[0])
    assert added["poisson"]["arrivals"] == "replayed"
    assert added["poisson"]["offered_rate_per_s"] == added["poisson"]["achieved_rate_per_s"] == 2e8


def test_repeats_have_an_interval_over_processes(worker: Worker) -> None:
    for seed in range(4):
        worker.process(*_queue(500, 2000, seed))
    added, _ = worker.result()
    repeats = added["repeats"]
    assert repeats["processes"] == 4
    assert len(set(repeats["trimmed_mean_ns"])) == 4
    low, high = repeats["trimmed_mean_interval_ns"]
    assert low < repeats["trimmed_mean_mean_ns"] < high
    assert repeats["percentile_ns"][0] == added["poisson"]["percentile_latency_ns"]


PEAK = {
    "rate_per_s": 500.0,
    "trials": [
        {"rate_per_s": 500.0, "latency_ns": 10, "kept": True},
        {"rate_per_s": 900.0, "latency_ns": 10**8, "kept": False},
    ],
}
SOUGHT: dict[str, Any] = {"find_peak": True, "target_latency_s": 0.01}


def test_a_peak_is_told(worker: Worker) -> None:
    worker.process(*_queue(500, 2000), peak=PEAK)
    added, reasons = worker.result(**SOUGHT)
    assert added["peak"] == {**PEAK, "percentile": 99.0, "target_latency_s": 0.01}
    assert reasons == []


@pytest.mark.parametrize(
    ("rate", "queries", "target_s"),
    [(1200, 5000, 10.0), (500, 2000, 0.0045)],
    ids=["not held", "only its bound misses"],
)
def test_a_rate_that_its_measurement_does_not_bear_out_is_no_peak(
    worker: Worker, rate: float, queries: int, target_s: float
) -> None:
    due, latencies = _queue(rate, queries)
    worker.process(due, latencies, peak={**PEAK, "rate_per_s": rate})
    added, reasons = worker.result(find_peak=True, target_latency_s=target_s)
    assert added["poisson"]["kept"], "by its percentile alone"
    assert added["peak"]["rate_per_s"] is None
    assert any("not confirmed" in reason for reason in reasons)


def test_no_peak_is_a_reason(worker: Worker) -> None:
    missed = {**PEAK, "rate_per_s": None}
    _, reasons = worker.process(*_queue(500, 2000), peak=missed).result(**SOUGHT)
    assert reasons == [
        "the peak that trials found was not confirmed by its measurement: latencies vary too much"
    ]
    worker.values[0]["peak"] = {"rate_per_s": None, "trials": PEAK["trials"][1:]}
    _, reasons = worker.result(**SOUGHT)
    assert reasons == ["no rate that was tried keeps percentile 99 to 10.0 ms"]


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("late_ns", None),
        ("late_ns", {"queries": 1, "p50": 1, "p99": 1}),
        ("late_ns", {"queries": 10**6, "p50": 1, "p99": 1, "max": 1}),
        ("late_ns", {"queries": -1, "p50": 1, "p99": 1, "max": 1}),
        ("horizon_ns", 1.5),
        ("horizon_ns", -1),
        ("busy_ns", 1),
    ],
)
def test_lies_about_a_pass_are_refused(worker: Worker, where: str, value: Any) -> None:
    worker.process(*_queue(500, 100)).values[0]["passes"][0][where] = value
    with pytest.raises(ProtocolBroken):
        worker.result()


@pytest.mark.parametrize(
    "peak",
    [
        None,
        [],
        {"rate_per_s": "fast", "trials": []},
        {"rate_per_s": float("nan"), "trials": []},
        {"rate_per_s": 1.0, "trials": None},
        {"rate_per_s": 1.0, "trials": [1]},
        {"rate_per_s": 1.0, "trials": [{"rate_per_s": 1.0, "latency_ns": 1, "kept": 1}]},
        {"rate_per_s": 1.0, "trials": [{"rate_per_s": -1.0, "latency_ns": 1, "kept": True}]},
        {"rate_per_s": 1.0, "trials": PEAK["trials"] * 100},
        {**PEAK, "rate_per_s": 900.0},
    ],
)
def test_lies_about_a_peak_are_refused(worker: Worker, peak: Any) -> None:
    worker.process(*_queue(500, 1000), peak=peak)
    with pytest.raises(ProtocolBroken):
        worker.result(**SOUGHT)


@pytest.mark.parametrize(
    ("due", "latencies"),
    [
        ([5, 4], [1, 9]),
        ([5, 6], [9, 1]),
        ([-5, 6], [1, 1]),
        ([1, 2], [1, 1 << 62]),
        ([1 << 62, (1 << 62) + 5], [1, 1]),
        ([1, 2], [-1, 1]),
    ],
    ids=["fall", "overtake", "before time", "endless", "too late", "answered before"],
)
def test_times_that_can_not_be_are_refused(worker: Worker, due: list[int], latencies: list[int]) -> None:
    worker.process(np.array(due), np.array(latencies))
    with pytest.raises(ProtocolBroken):
        worker.result()


def test_a_missing_schedule_is_refused(worker: Worker) -> None:
    worker.process(*_queue(500, 100))
    (worker.folder / "passes/00-measure/scheduled.npy").unlink()
    with pytest.raises(ProtocolBroken):
        worker.result()


def test_online_gets_bounds_and_is_not_valid_where_it_changed_its_pace(worker: Worker) -> None:
    due = np.arange(1200) * 10_000_000 + 10**12
    worker.process(due, np.full(1200, 1000)).process(due, np.full(1200, 1100))
    found = [read_measure(values) for values in worker.values]
    added, reasons = add_online(worker.folder, found, {})
    assert reasons == []
    assert added["stability"]["stable"]
    assert added["repeats"]["trimmed_mean_ns"] == [1000, 1100]
    np.save(worker.folder / "passes/00-measure/latencies.npy", np.repeat([1000, 3000], 600))
    _, reasons = add_online(worker.folder, found[:1], {})
    assert len(reasons) == 1
    assert "did not hold still" in reasons[0]


def test_the_table_tells_rates_target_peak_and_repeats(worker: Worker) -> None:
    for seed in range(2):
        worker.process(*_queue(500, 2000, seed), peak=PEAK)
    added, _ = worker.result(**SOUGHT)
    shown = dict(lines(added))
    assert "offered" in shown["rate"]
    assert "kept" in shown["target"]
    assert "% within 10.0 ms" in shown["goodput"]
    assert shown["peak"].startswith("500 /s with p99 within 10.0 ms (2 ")
    assert "2 processes" in shown["repeats"]
    assert "99 % sure" in shown["at most"]
    added["peak"]["rate_per_s"] = None
    assert dict(lines(added))["peak"].startswith(
        "none confirmed with p99 within 10.0 ms; the best trial was 500 /s"
    )
    assert lines({}) == []
