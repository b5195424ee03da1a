"""What machines of several kinds are, read from made-up /proc and /sys."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import board, laptop, power_server, tree

from mlbundle.platforms import cpu_facts, cpu_list, cpu_ranges, machine_facts, machine_state, topology
from mlbundle.platforms.state import cpu_times


def test_a_laptop(tmp_path) -> None:
    facts = machine_facts(laptop(tmp_path))
    assert (facts.cpu_model, facts.product, facts.governor) == (
        "Some Laptop CPU",
        "Somebody Lap 14",
        "powersave",
    )
    assert facts.transparent_hugepages == "madvise"
    assert facts.swap_bytes == 2_000_000 << 10
    cpu = facts.cpu
    assert (cpu.level, cpu.sockets, cpu.cores, cpu.numa_nodes) == ("x86-64-v3", 1, 2, 1)
    assert (cpu.turbo, cpu.virtual, cpu.isolated) == (True, False, None)
    assert (cpu.min_khz, cpu.max_khz, cpu.scaling_driver) == (400_000, 4_000_000, "intel_pstate")
    assert [(c.level, c.type, c.size_bytes, c.shared_by) for c in cpu.caches] == [(1, "data", 48 << 10, 2)]


def test_serial_numbers_are_not_read(tmp_path) -> None:
    assert "SECRET" not in json.dumps(machine_facts(laptop(tmp_path)).to_document())


def test_a_power_machine(tmp_path) -> None:
    facts = machine_facts(power_server(tmp_path))
    assert facts.cpu_model == "POWER9, altivec supported"
    assert facts.product == "9006-12C"
    assert (facts.cpu.sockets, facts.cpu.cores, facts.cpu.numa_nodes) == (2, 4, 2)
    assert (facts.cpu.level, facts.cpu.virtual) == (None, None)
    assert topology(tmp_path).describe([0, 1, 4, 8]) == {
        "list": "0-1,4,8",
        "count": 4,
        "cores": 3,
        "sockets": [0, 8],
        "nodes": [0, 8],
        "sharing_a_core": ["0-1"],
    }


def test_an_arm_board_without_clocks(tmp_path) -> None:
    facts = machine_facts(board(tmp_path))
    assert facts.cpu_model == "0x41 0xd0b"
    assert facts.cpu.flags == ("aes", "asimd", "fp")
    # -1 is what the firmware writes where it does not know.
    assert (facts.cpu.sockets, facts.cpu.virtual, facts.cpu.max_khz) == (None, None, None)


@pytest.mark.parametrize(
    ("flags", "level"),
    [("lm cmov", None), ("", None), ("lm cmov cx8 fpu fxsr mmx syscall sse sse2", "x86-64-v1")],
)
def test_levels_that_are_not_reached(tmp_path, flags, level) -> None:
    assert cpu_facts(tree(tmp_path, {"proc/cpuinfo": f"flags : {flags}"})).level == level


def test_a_guest_is_told_from_a_host(tmp_path) -> None:
    assert cpu_facts(tree(tmp_path / "a", {"proc/cpuinfo": "flags : lm hypervisor"})).virtual is True
    assert cpu_facts(tree(tmp_path / "b", {"sys/hypervisor/type": "xen"})).virtual is True


def test_an_empty_tree_tells_nothing_and_raises_nothing(tmp_path) -> None:
    facts = machine_facts(tmp_path)
    json.dumps(facts.to_document())
    assert (facts.cpu.flags, facts.cpu.caches, facts.product, facts.interconnects) == ((), (), None, ())
    state = machine_state([0, 1], tmp_path)
    assert state.to_document()["clock_khz"] is None
    assert not state.on_battery


def test_files_of_nonsense_are_passed_over(tmp_path) -> None:
    nonsense = "\x00\xff; 12 monkeys -1-\n::"
    folder = laptop(tmp_path)
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        path.write_bytes(nonsense.encode("latin-1"))
    json.dumps([machine_facts(folder).to_document(), machine_state([0], folder).to_document()])
    assert cpu_times(folder) == {}


def test_the_state_of_a_laptop(tmp_path) -> None:
    state = machine_state(range(4), laptop(tmp_path))
    assert state.on_battery
    assert state.throttled == 10
    assert state.pressure == {"cpu": 12.5}
    assert state.governors == ("powersave",)
    # Of the sensors of a chip the hottest counts, and one that is not connected does not.
    assert state.temperatures_c == {"x86_pkg_temp": 91.5, "coretemp": 93.0}
    assert state.to_document()["clock_khz"] == {"min": 800_000, "median": 800_001, "max": 800_003}


@pytest.mark.parametrize(
    ("changed", "on_battery"),
    [
        ({"sys/class/power_supply/AC/online": 1}, False),
        ({"sys/class/power_supply/BAT0/status": "Full"}, False),
        ({"sys/class/power_supply/BAT0/scope": "Device"}, False),
        ({}, True),
    ],
)
def test_when_a_machine_is_on_battery(tmp_path, changed, on_battery) -> None:
    assert machine_state([0], tree(laptop(tmp_path), changed)).on_battery is on_battery


def test_fast_networks_are_listed(tmp_path) -> None:
    port = "sys/class/infiniband/mlx5_0/ports/1"
    files = {f"{port}/link_layer": "InfiniBand", f"{port}/rate": "200 Gb/sec (4X HDR)"}
    up, down = {f"{port}/state": "4: ACTIVE"}, {f"{port}/state": "1: DOWN"}
    assert machine_facts(tree(tmp_path / "a", files | up)).interconnects == (
        "InfiniBand 200 Gb/sec (4X HDR)",
    )
    assert machine_facts(tree(tmp_path / "b", files | down)).interconnects == ()


@given(st.sets(st.integers(0, 300)))
def test_lists_of_cpus_are_read_as_they_are_written(numbers) -> None:
    assert cpu_list(cpu_ranges(numbers)) == tuple(sorted(numbers))


@given(st.text())
def test_any_text_is_a_list_of_cpus_or_none(text) -> None:
    assert all(isinstance(number, int) for number in cpu_list(text))


def test_this_machine_is_described() -> None:
    facts = machine_facts()
    assert facts.cpu_count >= facts.cpu_usable >= 1
    assert facts.memory_bytes > 0
