"""What disturbs a measurement is seen before and after a run, on machines that are made up."""

from __future__ import annotations

import json
import time

import pytest
from made_up import CPU, laptop, power_server, stat, tree

from mlbundle.runs.quiet import Demand, Quiet
from mlbundle.runtime.devices import Gpu, GpuState


def quiet(root, demand=None, *, during=None, gpus=()):
    """Look at a made-up machine; `during` is written while it looks, as others' work would be."""

    def sleep(_seconds: float) -> None:
        tree(root, during or {})

    return Quiet(demand or Demand(), root=root, gpus=lambda: tuple(gpus), sleep=sleep)


def names(notices) -> set[str]:
    return {notice.reference for notice in notices}


def test_a_throttled_laptop_on_battery(tmp_path) -> None:
    look = quiet(laptop(tmp_path), Demand(cpus=(0, 1)))
    found = {notice.reference: notice for notice in look.before()}
    assert set(found) == {"on-battery", "power-profile", "cpu-governor", "clock-limited"}
    assert "2000 MHz of 4000 MHz" in found["clock-limited"].message
    assert all(notice.hint for notice in found.values())
    tree(tmp_path, {f"{CPU}/cpu1/thermal_throttle/core_throttle_count": 8, "proc/vmstat": "pswpin 4000"})
    # What was told before is not told again.
    assert names(look.after()) == {"cpu-throttled", "machine-swapped"}
    document = look.to_document()
    json.dumps(document)
    assert [w["reference"] for w in document["warnings"]][-2:] == ["cpu-throttled", "machine-swapped"]
    assert document["state"]["before"]["temperatures_c"]["coretemp"] == 93.0


def test_machines_that_tell_little_are_not_complained_about(tmp_path) -> None:
    for root in (power_server(tmp_path / "power"), tmp_path / "nothing"):
        look = quiet(root, Demand(cpus=(0,)))
        assert look.before() == []
        assert look.after() == []


@pytest.mark.parametrize(
    ("demand", "reference"),
    [
        (Demand(threads=3, cpus=(0, 1)), "more-threads-than-cpus"),
        (Demand(threads=4, cpus=(0, 1, 2, 3)), "threads-share-cores"),
        (Demand(threads=2, cpus=(0, 1, 4)), "threads-share-cores"),
        (Demand(threads=2, cpus=(0, 8)), "cpus-span-nodes"),
        (Demand(threads=2, cpus=(0, 4)), None),
        (Demand(threads=1, cpus=(0, 1)), None),
    ],
)
def test_threads_and_the_cpus_they_get(tmp_path, demand, reference) -> None:
    found = names(quiet(power_server(tmp_path), demand).before())
    assert found == ({reference} if reference else set())


def test_cpus_that_are_kept_free_are_pointed_out(tmp_path) -> None:
    root = tree(power_server(tmp_path), {f"{CPU}/isolated": "4-7"})
    (notice,) = quiet(root, Demand(cpus=(0,))).before()
    assert (notice.reference, notice.hint) == ("isolated-cpus-unused", "--cpus 4-7")
    assert quiet(root, Demand(cpus=(4,))).before() == []


def test_others_at_work_are_seen(tmp_path) -> None:
    root = tree(tmp_path, {"proc/stat": stat(4, busy=100, idle=900)})
    look = quiet(root, Demand(), during={"proc/stat": stat(4, busy=105, idle=905)})
    (notice,) = look.before()
    assert notice.reference == "machine-loaded"
    assert "2.0 of 4 CPUs" in notice.message


def test_only_the_load_of_the_pinned_cpus_counts(tmp_path) -> None:
    idle, loaded = "cpu0 100 0 0 909 0 0 0 0 0 0", "cpu1 109 0 0 900 0 0 0 0 0 0"
    for cpu, expected in ((0, set()), (1, {"machine-loaded"})):
        root = tree(tmp_path / str(cpu), {"proc/stat": stat(2)})
        look = quiet(root, Demand(cpus=(cpu,)), during={"proc/stat": f"{idle}\n{loaded}"})
        assert names(look.before()) == expected


@pytest.mark.parametrize(
    ("end", "threads", "expected"),
    [
        (stat(8, busy=250, idle=1750), 1, set()),  # 1.2 of 8 CPUs: the run itself
        (stat(8, busy=600, idle=1400), 1, {"machine-loaded"}),
        (stat(8, busy=600, idle=1400), 4, set()),
        (stat(8, busy=600, idle=1400), 8, set()),
        (stat(8, busy=101, idle=1860, stolen=39), 1, {"cpu-stolen"}),
    ],
)
def test_the_time_of_the_run_itself_is_looked_at_afterwards(tmp_path, end, threads, expected) -> None:
    look = quiet(tree(tmp_path, {"proc/stat": stat(8)}), Demand(threads=threads, cpus=tuple(range(8))))
    assert look.before() == []
    tree(tmp_path, {"proc/stat": end})
    assert names(look.after()) == expected


def test_a_quota_of_our_own_is_told_and_counted(tmp_path) -> None:
    group = "sys/fs/cgroup"
    files = {
        "proc/self/cgroup": "0::/",
        f"{group}/cpu.max": "100000 100000",
        f"{group}/cpu.stat": "nr_throttled 4",
    }
    root = tree(tmp_path, files)
    assert names(quiet(root, Demand(threads=1)).before()) == {"cpu-quota"}
    # A container has a group of its own.
    assert quiet(root, Demand(threads=1, own_group=False)).before() == []
    tree(root, {f"{group}/cpu.max": "800000 100000"})
    look = quiet(root, Demand(threads=1))
    assert look.before() == []
    tree(root, {f"{group}/cpu.stat": "nr_throttled 6"})
    (notice,) = look.after()
    assert "2 times" in notice.message


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 524288 kB"},
            "memory is short on this machine: 0.5 GiB are available of 8.0",
        ),
        (
            {
                "proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 7340032 kB",
                "proc/pressure/memory": "some avg10=7.00 avg60=0.00 avg300=0.00 total=1",
            },
            "something waited for memory in 7 % of the last 10 s, though 7.0 GiB are available",
        ),
    ],
)
def test_short_memory_is_told(tmp_path, files, message) -> None:
    (notice,) = quiet(tree(tmp_path, files)).before()
    assert (notice.reference, notice.message) == ("memory-pressure", message)


def test_a_clock_far_below_its_highest_is_told(tmp_path) -> None:
    place = f"{CPU}/cpu0/cpufreq"
    files = {
        f"{place}/scaling_governor": "performance",
        f"{place}/scaling_cur_freq": 900_000,
        f"{place}/scaling_max_freq": 3_000_000,
        f"{place}/cpuinfo_max_freq": 3_000_000,
    }
    root = tree(tmp_path, files)
    assert names(quiet(root, Demand(cpus=(0,))).before()) == {"clock-low"}
    assert quiet(tree(root, {f"{place}/scaling_cur_freq": 2_900_000}), Demand(cpus=(0,))).before() == []


def test_gpus_that_are_busy_or_held_down(tmp_path) -> None:
    hot = Gpu("H", state=GpuState(utilisation_percent=70, throttled_by=("heat (hardware)",)))
    look = quiet(tmp_path, Demand(gpu=True), gpus=[hot])
    assert names(look.before()) == {"gpu-busy"}
    assert names(look.after()) == {"gpu-throttled"}
    assert look.to_document()["state"]["after"]["gpus"][0]["utilisation_percent"] == 70
    # Nobody asks the GPUs about a run that does not use them.
    assert quiet(tmp_path, Demand(), gpus=[hot]).before() == []


def test_a_notice_becomes_an_event(tmp_path) -> None:
    notice = quiet(laptop(tmp_path), Demand(cpus=(0,))).before()[0]
    event = notice.to_event()
    assert (event.kind, event.reference, event.hint) == ("warning", notice.reference, notice.hint)


def test_after_without_before_says_nothing(tmp_path) -> None:
    assert quiet(laptop(tmp_path)).after() == []


def test_this_machine_is_looked_at_quickly() -> None:
    def computed_s(look: Quiet) -> float:
        begun = time.process_time()
        look.before()
        look.after()
        return time.process_time() - begun

    looks = [Quiet(Demand()) for _ in range(3)]
    # The wall time is the sample's 0.09 s; what we compute must not come near it. Other threads and cold caches count
    # as well, now and then.
    assert min(map(computed_s, looks)) < 0.15
    look = looks[-1]
    assert set(look.to_document()["state"]) == {"before", "after"}
