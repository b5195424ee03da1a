"""What the host sees of a worker from outside, and what the looking costs."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlbundle.runs.sampled import Sampling, resources, save_samples
from mlbundle.runtime.base import Place
from mlbundle.runtime.sampling import MOST_INTERVAL_S, Sampler, Samples, sampler_of
from mlbundle.runtime.sampling_gpu import GpuSource
from mlbundle.runtime.sampling_sources import ControlGroup, PackageEnergy, ProcessTree
from mlbundle.wire.events import Counter

WAIT_S = 60.0
GRANDCHILD = (
    "x = bytearray(64 << 20)\n"
    "import time\n"
    "end = time.process_time() + 0.3\n"
    "while time.process_time() < end: pass\n"
    "print('busy', flush=True)\n"
    "input()"
)
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {GRANDCHILD!r}])"


class Fake:
    """A source of values that a test knows; each look can be made dear."""

    every = 1

    def __init__(self, *values: float, cost_s: float = 0.0) -> None:
        self._values = list(values)
        self._cost_s = cost_s
        self.closed = False

    def read(self) -> Mapping[str, float]:
        end = time.thread_time() + self._cost_s
        while time.thread_time() < end:
            pass
        if not self._values:
            raise OSError("gone")
        return {"value": self._values.pop(0)}

    def close(self) -> None:
        self.closed = True


def until(told: Callable[[], Any]) -> Any:
    """Wait until something is told, and return it."""
    deadline = time.monotonic() + WAIT_S
    while not (found := told()):
        assert time.monotonic() < deadline, "nothing is told"
        time.sleep(0.01)
    return found


@pytest.fixture
def family():
    """A process with a child that holds 64 MiB and has used 0.3 s of a CPU."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"busy\n"
    yield process
    process.communicate(b"\n")


def samples_of(rows: Mapping[str, list[tuple[float, float]]]) -> Samples:
    samples = Samples(looks=1, duration_s=1.0)
    for name, points in rows.items():
        for t_s, value in points:
            samples.add(round(t_s * 1e9), {name: value})
    return samples


def test_what_a_process_started_counts_as_its_own(family) -> None:
    found = ProcessTree(family.pid).read()
    assert found["processes"] == 2
    assert found["memory_bytes"] > 64 << 20
    assert found["cpu_time_s"] >= 0.28
    assert found["page_faults_minor"] > 1000
    assert found["context_switches_voluntary"] + found["context_switches_involuntary"] > 0


def test_the_time_of_children_that_ended_is_kept(family) -> None:
    tree = ProcessTree(family.pid)
    before = tree.read()["cpu_time_s"]
    assert family.stdin is not None
    family.stdin.write(b"\n")
    family.stdin.flush()
    deadline = time.monotonic() + WAIT_S
    while (found := tree.read()) and time.monotonic() < deadline:
        assert found["cpu_time_s"] >= before
        if found["processes"] == 1:
            break
    family.wait()
    assert tree.read() == {}, "the process is gone"


def test_kernels_that_do_not_list_children_are_searched_by_session(tmp_path: Path) -> None:
    def process(pid: int, parent: int, session: int, ticks: int) -> None:
        folder = tmp_path / "proc" / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True)
        head = f"{pid} (a) b) S {parent} {session} {session} 0 -1 0 10 0 1 0 {ticks} 0 0 0 20 0 3 0 0 0 100 0"
        (folder / "stat").write_text(head)
        (folder / "task" / str(pid) / "status").write_text(
            "Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t2\n"
        )

    process(100, 1, 100, 200)
    process(101, 100, 100, 300)
    process(102, 1, 50, 900)
    found = ProcessTree(100, root=tmp_path).read()
    assert found["processes"] == 2
    assert found["cpu_time_s"] == pytest.approx(500 / os.sysconf("SC_CLK_TCK"))
    assert found["memory_bytes"] == 200 * os.sysconf("SC_PAGESIZE")
    assert (found["threads"], found["page_faults_minor"], found["page_faults_major"]) == (6, 20, 2)
    assert (found["context_switches_voluntary"], found["context_switches_involuntary"]) == (14, 4)


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_is_seen_through_its_control_group(tmp_path: Path, version: int) -> None:
    group, top = "docker/abc123", tmp_path / "sys/fs/cgroup"
    (tmp_path / "proc/7").mkdir(parents=True)
    if version == 2:
        (tmp_path / "proc/7/cgroup").write_text(f"0::/{group}\n")
        files = {
            f"{group}/cpu.stat": "usage_usec 2500000\nuser_usec 1\nnr_periods 9\nnr_throttled 3\nthrottled_usec 400000\n",
            f"{group}/memory.current": "1000\n",
            f"{group}/memory.peak": "3000\n",
        }
    else:
        (tmp_path / "proc/7/cgroup").write_text(
            f"4:memory:/{group}\n2:cpu,cpuacct:/{group}\n1:name=systemd:/x\n"
        )
        files = {
            f"cpu,cpuacct/{group}/cpuacct.usage": "2500000000\n",
            f"cpu,cpuacct/{group}/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 400000000\n",
            f"memory/{group}/memory.usage_in_bytes": "1000\n",
            f"memory/{group}/memory.max_usage_in_bytes": "3000\n",
        }
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    found = ControlGroup.of_container(7, "abc123", root=tmp_path)
    assert found is not None
    assert found.read() == {
        "cgroup_cpu_time_s": 2.5,
        "cgroup_memory_bytes": 1000,
        "cgroup_memory_peak_bytes": 3000,
        "throttled_s": 0.4,
        "throttled_periods": 3,
    }


def test_a_process_that_is_not_in_the_container_is_somebody_elses(family) -> None:
    # An engine on another machine tells process ids that here belong to anybody.
    sampler = sampler_of(Place(family.pid, "0" * 64)).start()
    assert "memory_bytes" not in sampler.stop().names


def test_energy_counters_that_begin_anew_go_on(tmp_path: Path) -> None:
    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:1": "psys",
    }
    for zone, name in zones.items():
        folder = tmp_path / "sys/class/powercap" / zone
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy_uj").write_text("9000000\n")
        (folder / "max_energy_range_uj").write_text("10000000\n")
    energy = PackageEnergy(root=tmp_path)
    assert energy.read() == {"energy_package_0_j": 0.0, "energy_dram_0_1_j": 0.0}
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").write_text("500000\n")
    assert energy.read() == {"energy_package_0_j": 1.5, "energy_dram_0_1_j": 0.0}


class NoAnswer(Exception):
    """What NVML raises."""


def made_up_nvml(energies_mj: list[int], closed: list[bool]) -> SimpleNamespace:
    """As much of NVML as is asked: one GPU that tells all, one that tells its temperature."""

    def told(value: Any) -> Any:
        def answer(handle: int, *_which: int) -> Any:
            if handle:
                raise NoAnswer
            return value(*_which) if callable(value) else value

        return answer

    return SimpleNamespace(
        NVMLError=NoAnswer,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: closed.append(True),
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetTemperature=lambda handle, _sensor: 40 + handle,
        nvmlDeviceGetPowerUsage=told(250_500),
        nvmlDeviceGetTotalEnergyConsumption=told(lambda: energies_mj.pop(0)),
        nvmlDeviceGetUtilizationRates=told(SimpleNamespace(gpu=87, memory=3)),
        nvmlDeviceGetMemoryInfo=told(SimpleNamespace(used=1 << 30, total=80 << 30)),
        nvmlDeviceGetClockInfo=told(lambda domain: {1: 1980, 2: 2619}[domain]),
    )


def test_gpus_tell_what_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    monkeypatch.setitem(sys.modules, "pynvml", made_up_nvml([5_000, 6_500], closed))
    source = GpuSource()
    assert source.read()["gpu0_energy_j"] == 0
    assert source.read() == {
        "gpu0_power_w": 250.5,
        "gpu0_energy_j": 1.5,
        "gpu0_utilisation_percent": 87,
        "gpu0_memory_bytes": 1 << 30,
        "gpu0_sm_mhz": 1980,
        "gpu0_memory_mhz": 2619,
        "gpu0_temperature_c": 40,
        "gpu1_temperature_c": 41,
    }
    source.close()
    assert closed == [True]


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NoAnswer

    nvml = made_up_nvml([], [])
    nvml.nvmlInit = refuse
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    source = GpuSource()
    assert source.read() == {}
    source.close()


def test_it_looks_at_most_ten_times_a_second_and_says_what_that_cost(family) -> None:
    sampler = sampler_of(Place(family.pid), interval_s=0.1).start()
    until(sampler.latest)
    time.sleep(0.75)
    samples = sampler.stop()
    # The first look and the last one come when they are asked for.
    assert 2 <= samples.looks <= samples.duration_s / 0.1 + 2, "never more than ten times a second"
    assert 0 < samples.cpu_s < samples.duration_s


def test_a_look_that_is_dear_is_taken_less_often() -> None:
    source = Fake(*range(1000), cost_s=0.02)
    sampler = Sampler([source], interval_s=0.0).start()
    until(sampler.latest)
    time.sleep(0.7)
    samples = sampler.stop()
    assert 0.2 <= samples.interval_s <= MOST_INTERVAL_S
    assert samples.looks <= 3 + math.log2(samples.duration_s / 0.1), (
        "each waits twice as long as the one before"
    )
    assert source.closed


def test_a_source_that_fails_does_not_end_the_others() -> None:
    sampler = Sampler([Fake(), Fake(1.0, 2.0)]).start()
    assert list(sampler.stop().value)[:1] == [1.0]
    assert sampler.latest()["value"].value in {1.0, 2.0}


def test_a_sampler_that_never_began_has_seen_nothing() -> None:
    assert not Sampler([Fake(1.0)]).stop().t_ns
    assert resources(Samples()) == {}


def test_rows_are_thinned_evenly() -> None:
    samples = samples_of({"a": [(t, t) for t in range(10)], "b": [(t, -t) for t in range(10)]})
    samples.thin()
    assert list(samples.value) == [0, 2, 4, 6, 8, 0, -2, -4, -6, -8]
    assert len(samples.counter) == len(samples.t_ns) == 10


def test_resources_say_what_happened_and_what_while_measuring() -> None:
    samples = samples_of({
        "cpu_time_s": [(0, 1.0), (1, 1.5), (2, 2.5), (3, 3.5), (4, 3.6)],
        "memory_bytes": [(0, 100), (2, 300), (4, 200)],
        "energy_package_0_j": [(0, 0.0), (4, 40.0)],
        "gpu0_energy_j": [(0, 0.0), (4, 8.0)],
        "gpu0_memory_bytes": [(0, 5), (2, 9)],
        "gpu0_power_w": [(0, 100.0), (2, 200.0)],
    })  # fmt: skip
    found = resources(samples, [("load", 0, 1), ("measure", 1_000_000_000, 3_000_000_000)])
    assert found["cpu_s"] == pytest.approx(2.6)
    assert found["cpu_share_mean"] == pytest.approx(0.65)
    assert (found["memory_mean_bytes"], found["memory_peak_bytes"]) == (200, 300)
    assert (found["energy_j"], found["power_mean_w"]) == (48.0, 12.0)
    assert len(found["energy_how"]) == 2
    assert found["gpus"] == [
        {"energy_j": 8.0, "memory_peak_bytes": 9, "power_mean_w": 150.0, "power_max_w": 200.0}
    ]
    assert found["measure"]["cpu_share_mean"] == pytest.approx(1.0)
    assert "energy_j" not in found["measure"], "one look says nothing of energy"


def test_what_is_measured_in_several_processes_is_added_up() -> None:
    samples = samples_of({
        "cpu_time_s": [(0, 0.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 3.0)],
        "memory_bytes": [(0, 100), (2, 900), (4, 200)],
        "energy_package_0_j": [(0, 0.0), (1, 10.0), (3, 1000.0), (4, 1020.0)],
    })  # fmt: skip
    second = 1_000_000_000
    found = resources(
        samples, [("measure", 0, second), ("load", 0, second), ("measure", 3 * second, 4 * second)]
    )
    measured = found["measure"]
    assert (measured["cpu_s"], measured["cpu_share_mean"]) == (3.0, 1.5), "what was between them is left out"
    assert (measured["memory_mean_bytes"], measured["memory_peak_bytes"]) == (150, 200)
    assert (measured["energy_j"], measured["power_mean_w"]) == (30.0, 15.0)


def test_samples_are_kept_as_columns_with_their_names(tmp_path: Path) -> None:
    samples = samples_of({"cpu_time_s": [(0, 1.0), (1, 1.5)], "memory_bytes": [(0, 100)]})
    assert save_samples(tmp_path, Samples()) is None
    assert save_samples(tmp_path, samples) == "samples.npz"
    with np.load(tmp_path / "samples.npz", allow_pickle=False) as file:
        assert file["strings"].tolist() == ["cpu_time_s", "memory_bytes"]
        assert file["counter"].tolist() == [0, 0, 1]
        assert file["t_ns"].tolist() == [0, 10**9, 0]
        assert file["value"].tolist() == [1.0, 1.5, 100.0]


class Placed:
    def __init__(self, place: Place | None) -> None:
        self._place = place

    def place(self) -> Place | None:
        return self._place


def test_counters_are_events_at_most_twice_a_second(family, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("mlbundle.runs.sampled.time", SimpleNamespace(monotonic=lambda: now[0]))
    sampling = Sampling(gpus=False)
    assert list(sampling.events()) == [], "not begun"
    sampling.begin(Placed(Place(family.pid)))  # type: ignore[arg-type]

    def later() -> list[Counter]:
        now[0] += 0.5
        return list(sampling.events())

    events = until(later)
    assert [(event.name, event.unit) for event in events] == [("memory", "bytes")], "a share needs two looks"
    now[0] += 0.49
    time.sleep(0.15)
    assert list(sampling.events()) == []
    assert {event.name for event in until(later)} == {"cpu", "memory"}
    assert sampling.end().looks >= 1
    assert sampling.end() is sampling.end()


def test_a_worker_that_can_not_be_seen_is_no_error() -> None:
    sampling = Sampling(gpus=False)
    sampling.begin(Placed(None))  # type: ignore[arg-type]
    samples = sampling.end()
    assert not [name for name in samples.names if not name.startswith("energy_")]


def test_context_switches_of_threads_that_ended_are_kept_and_new_ones_counted(tmp_path: Path) -> None:
    tasks = tmp_path / "proc/100/task"

    def thread(number: int, voluntary: int) -> None:
        (tasks / str(number)).mkdir(parents=True, exist_ok=True)
        (tasks / str(number) / "children").touch()
        text = f"Name:\tx\nvoluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t1\n"
        (tasks / str(number) / "status").write_text(text)

    def look(tree: ProcessTree) -> tuple[float, float]:
        for _ in range(4):  # only each fifth look reads them
            tree.read()
        found = tree.read()
        return found["context_switches_voluntary"], found["context_switches_involuntary"]

    thread(100, 5)
    (tmp_path / "proc/100/stat").write_text("100 (a) S 1 100 100 0 -1 0 10 0 1 0 5 0 0 0 20 0 3 0 0 0 100 0")
    tree = ProcessTree(100, root=tmp_path)
    assert tree.read()["context_switches_voluntary"] == 5
    # More threads than are looked at, none of which lives long.
    for generation in range(3):
        numbers = range(1000 * (generation + 1), 1000 * (generation + 1) + 600)
        for number in numbers:
            thread(number, 10)
        assert look(tree) == (5 + 6000 * (generation + 1), 1 + 600 * (generation + 1))
        for number in numbers:
            shutil.rmtree(tasks / str(number))
    thread(100, 2)
    assert look(tree)[0] == 5 + 2 + 6000 * 3, "the number was given to another thread"
