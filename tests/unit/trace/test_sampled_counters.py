"""Counters while a run goes on and afterwards: of the time of their look, under one name each, without the profiles."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlbundle.runs.partial_trace import write_partial_trace
from mlbundle.runs.sampled import SAMPLES, Sampling, resources, said_columns, save_samples
from mlbundle.runtime.sampling import Reading, Samples
from mlbundle.runtime.sampling_gpu import GpuSource
from mlbundle.runtime.sampling_perf import EVENTS
from mlbundle.runtime.sampling_sources import ControlGroup, ProcessTree
from mlbundle.trace.counters import shown_counter
from mlbundle.wire.events import Counter

SECOND = 1_000_000_000


def test_a_share_of_the_cpu_is_of_the_time_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    # One CPU is busy; looks are five seconds apart, and it is asked for twice a second.
    now = [100.0]
    monkeypatch.setattr("mlbundle.runs.sampled.time", SimpleNamespace(monotonic=lambda: now[0]))

    def latest() -> dict[str, Reading]:
        look = int(now[0] / 5) * 5
        return {
            "cpu_time_s": Reading(look * SECOND, float(look)),
            "memory_bytes": Reading(look * SECOND, 7.0),
        }

    sampling = Sampling(gpus=False)
    monkeypatch.setattr(sampling, "_sampler", SimpleNamespace(latest=latest))
    said: list[Counter] = []
    for _ in range(120):
        now[0] += 0.25
        said += sampling.events()
    assert {event.value for event in said if event.name == "cpu"} == {1.0}
    assert 5 <= sum(event.name == "cpu" for event in said) <= 6
    assert sum(event.name == "memory" for event in said) <= 7, (
        "what was not looked at again is not said again"
    )


def gpu_names(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    class NoAnswer(Exception):
        pass

    answers = {
        "nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": 2, "nvmlDeviceGetHandleByIndex": "gpu",
        "nvmlDeviceGetPowerUsage": 1, "nvmlDeviceGetTotalEnergyConsumption": 1, "nvmlDeviceGetClockInfo": 1,
        "nvmlDeviceGetTemperature": 1, "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=1),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=1),
    }  # fmt: skip
    functions = {name: (lambda *_, found=found: found) for name, found in answers.items()}
    constants = dict.fromkeys(("NVML_CLOCK_SM", "NVML_CLOCK_MEM", "NVML_TEMPERATURE_GPU"), 0)
    nvml = SimpleNamespace(NVMLError=NoAnswer, **functions, **constants)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return set(GpuSource().read())


def group_names(folder: Path) -> set[str]:
    folder.mkdir()
    (folder / "cpu.stat").write_text("usage_usec 1\nnr_throttled 1\nthrottled_usec 1\n")
    for name in ("memory.current", "memory.peak"):
        (folder / name).write_text("1\n")
    return set(ControlGroup({"": folder}).read())


def test_no_two_counters_have_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = gpu_names(monkeypatch) | group_names(tmp_path / "group") | set(EVENTS)
    # Every process has these; those of the energy of processors can be read by few.
    names |= set(ProcessTree(1).read()) | {"energy_package_0_j", "energy_package_1_j", "energy_dram_0_0_j"}
    assert len(names) > 30
    shown = [shown_counter(name)[0] for name in sorted(names)]
    assert len(set(shown)) == len(names), sorted(name for name in shown if shown.count(name) > 1)


def samples_of(rows: dict[str, list[tuple[float, float]]]) -> Samples:
    samples = Samples(looks=1, duration_s=1.0)
    for name, points in rows.items():
        for t_s, value in points:
            samples.add(round(t_s * 1e9), {name: value})
    return samples


def test_profiling_is_no_part_of_what_a_run_used() -> None:
    rows = {
        "cpu_time_s": [(0, 0.0), (2, 2.0), (4, 2.0), (5, 50.0), (6, 90.0), (8, 91.0), (10, 92.0)],
        "memory_bytes": [(0, 100), (5, 9000), (10, 200)],
    }
    phases = [("measure", 0, 2 * SECOND), ("profile", 4 * SECOND, 6 * SECOND)]
    found = resources(samples_of(rows), phases)
    assert (found["cpu_s"], found["memory_peak_bytes"]) == (3.0, 200)
    assert (found["measure"]["cpu_s"], found["measure"]["cpu_share_mean"]) == (2.0, 1.0)
    assert (found["profile"]["cpu_s"], found["profile"]["memory_peak_bytes"]) == (88.0, 9000)
    assert "profile" not in resources(samples_of(rows), phases[:1])


def test_a_run_that_ended_early_has_all_samples_in_its_trace(tmp_path: Path, judge) -> None:
    from mlbundle.runs.folder import RunFolder
    from mlbundle.wire.events import Hello

    folder = RunFolder(tmp_path, "a-run")
    clocks = {"monotonic": 70 * SECOND, "realtime": 10**18}
    folder.append(Hello(t_ns=70 * SECOND, versions={}, clocks=clocks, facts={}), source="worker")
    for t_s, value in ((71, 1.5), (72, 0.5)):
        folder.append(Counter(t_ns=t_s * SECOND, name="cpu", value=value, unit="cpus"), source="host")
        folder.append(Counter(t_ns=t_s * SECOND, name="gpu0_power", value=70.0, unit="w"), source="host")
    files = write_partial_trace(folder.path, {})
    trace = judge(folder.path / files["trace"])
    assert {name: [value for _, value in values] for name, values in trace.counters().items()} == {
        "cpu": [1.5, 0.5], "gpu0_power": [70.0, 70.0],
    }  # fmt: skip
    assert units(trace) >= {("cpu", "CPUs"), ("gpu0_power", "W")}
    rows = {"page_faults_minor": [(71, 0.0), (72, 8.0)], "memory_bytes": [(71, 5.0)]}
    assert save_samples(folder.path, samples_of(rows)) == SAMPLES
    trace = judge(folder.path / write_partial_trace(folder.path, {})["trace"])
    assert set(trace.counters()) == {"page_faults_minor", "memory"}
    (folder.path / SAMPLES).write_bytes(b"no samples")
    trace = judge(folder.path / write_partial_trace(folder.path, {})["trace"])
    assert set(trace.counters()) == {"cpu", "gpu0_power"}, "what was said is still there"
    assert said_columns([]) is None


def units(trace) -> set[tuple[str, str]]:
    return {(row["name"], row["unit"]) for row in trace.query("select name, unit from counter_track")}
