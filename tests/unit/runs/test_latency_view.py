"""The latencies of a run as they are looked at, against what was put in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mlbundle.errors import ProtocolBroken, ReferenceNotFound
from mlbundle.runs.counters import counter_series
from mlbundle.runs.latencies import latency_view

MEASURE = {"kind": "measure", "files": ["passes/01-measure/latencies.npy"], "headline": True}


def record(*passes: dict, duration_s: float | None = None) -> dict:
    result = None if duration_s is None else {"duration_s": duration_s}
    return {"run_id": "r", "passes": list(passes), "result": result}


def put(folder: Path, times: object, name: str = "passes/01-measure/latencies.npy") -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    np.save(folder / name, times)


def test_a_spike_is_seen_where_it_was(tmp_path: Path) -> None:
    times = np.full(1000, 1_000_000, np.int64)
    times[500] = 50_000_000
    put(tmp_path, times)
    view = latency_view(tmp_path, record(MEASURE, duration_s=2.0), points=20, bars=5)
    assert (view.source, view.kind, view.queries) == ("queries", "measure", 1000)
    assert view.duration_s == pytest.approx(1.049)
    spike = max(view.buckets, key=lambda bucket: bucket.most_ns)
    assert (spike.most_ns, spike.p50_ns) == (50_000_000, 1_000_000)
    assert spike.t_s == pytest.approx(0.5, abs=0.06)
    assert sum(bucket.queries for bucket in view.buckets) == 1000
    assert sum(bar.queries for bar in view.bars) == 1000
    assert view.percentiles == {
        50.0: 1_000_000,
        90.0: 1_000_000,
        95.0: 1_000_000,
        99.0: 1_000_000,
        99.9: 1_000_000,
    }
    assert (view.least_ns, view.most_ns) == (1_000_000, 50_000_000)


def test_queries_of_an_open_loop_are_where_they_were_due(tmp_path: Path) -> None:
    put(tmp_path, np.array([1_000, 1_000, 1_000], np.int64))
    put(tmp_path, np.array([5, 5 + 12 * 10**8, 5 + 4 * 10**9], np.int64), "passes/01-measure/scheduled.npy")
    view = latency_view(tmp_path, record(MEASURE, duration_s=4.0), points=4)
    assert [round(bucket.t_s, 1) for bucket in view.buckets] == [0.5, 1.5, 3.5]
    assert view.percentiles == {50.0: 1_000}


def test_queries_that_overlap_are_spread_over_the_time(tmp_path: Path) -> None:
    put(tmp_path, np.full(100, 10**9, np.int64))
    view = latency_view(tmp_path, record(MEASURE, duration_s=10.0), points=10)
    assert [bucket.queries for bucket in view.buckets] == pytest.approx([11] * 9 + [1], abs=1)
    assert view.duration_s == pytest.approx(10.9)


def test_a_histogram_counts_each_query_once(tmp_path: Path) -> None:
    times = np.random.default_rng(1).lognormal(10, 1, 5000).astype(np.int64)
    put(tmp_path, times)
    view = latency_view(tmp_path, record(MEASURE), bars=30)
    edges = [bar.from_ns for bar in view.bars]
    assert edges == sorted(set(edges))
    for bar, end in zip(view.bars, [*edges[1:], 1 << 62], strict=True):
        assert bar.queries == ((times >= bar.from_ns) & (times < end)).sum()


def test_a_run_that_broke_off_shows_what_it_has(tmp_path: Path) -> None:
    passes = [
        {"kind": "warm-up", "files": ["passes/00-warm-up/latencies.npy"], "headline": False},
        {"kind": "measure", "files": ["passes/01-measure/spans.npz"], "headline": False},
    ]
    put(tmp_path, np.array([7], np.int64), "passes/00-warm-up/latencies.npy")
    view = latency_view(tmp_path, record(*passes))
    assert (view.kind, view.queries, [bar.queries for bar in view.bars]) == ("warm-up", 1, [1])


def test_windows_are_shown_where_no_latencies_were_kept(tmp_path: Path) -> None:
    windows = [
        {"kind": "window", "seq": i, "t_ns": i * 500_000_000, "source": "worker", "phase": "measure", "queries": 10,
         "throughput": 20.0, "p50_ns": 100 + i, "p90_ns": 150, "p99_ns": 200 + i}
        for i in range(3)
    ]  # fmt: skip
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(window) + "\n" for window in windows))
    view = latency_view(tmp_path, record())
    assert (view.source, view.queries, view.duration_s, list(view.bars)) == ("windows", 30, 1.0, [])
    assert [(b.t_s, b.p50_ns, b.most_ns) for b in view.buckets] == [
        (0, 100, 200),
        (0.5, 101, 201),
        (1, 102, 202),
    ]


def test_files_that_are_no_latencies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReferenceNotFound):
        latency_view(tmp_path, record())
    for times in (np.array([-1], np.int64), np.array([1.5]), np.array([[1]], np.int64)):
        put(tmp_path, times)
        with pytest.raises(ProtocolBroken):
            latency_view(tmp_path, record(MEASURE))
    (tmp_path / "passes/01-measure/latencies.npy").write_bytes(b"no array")
    with pytest.raises(ProtocolBroken):
        latency_view(tmp_path, record(MEASURE))
    outside = {"kind": "measure", "files": ["../../passes/01-measure/latencies.npy", "/etc/latencies.npy"]}
    with pytest.raises(ReferenceNotFound):
        latency_view(tmp_path, record(outside))


def test_counters_are_values_or_rates(tmp_path: Path) -> None:
    names = np.array(["cpu_time_s", "memory_bytes", "idle_w"], np.str_)
    rows = [(0, i, 0.5 * i) for i in range(11)] + [(1, i, 100.0 + i) for i in range(11)] + [(2, 0, 0.0)]
    np.savez(
        tmp_path / "samples.npz",
        strings=names,
        counter=np.array([row[0] for row in rows], np.int64),
        t_ns=np.array([10**9 * row[1] for row in rows], np.int64),
        value=np.array([row[2] for row in rows], np.float64),
    )
    cpu, memory = counter_series(tmp_path, points=5)
    assert (cpu.name, cpu.unit, cpu.is_rate) == ("cpu_time", "s", True)
    assert (cpu.least, cpu.mean, cpu.most, len(cpu.points)) == (0.5, 0.5, 0.5, 5)
    assert (memory.name, memory.unit, memory.is_rate) == ("memory", "bytes", False)
    assert (memory.least, memory.mean, memory.most) == (100, 105, 110)
    assert [t_s for t_s, _ in memory.points] == [1, 3.5, 5.5, 7.5, 9.5]
    with pytest.raises(ReferenceNotFound):
        counter_series(tmp_path / "none")
