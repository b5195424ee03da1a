"""In what state this machine is at one moment: who is busy, clocks, heat, memory, power."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.platforms.sysfs import ROOT, children, read_number, read_table, read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

# A reading of a clock can make the kernel wait 10 ms, so only some of many CPUs are asked.
_CLOCKS_READ = 4
_MOST_SENSORS = 32
_ACPI_PROFILE = "sys/firmware/acpi/platform_profile"


@dataclass(frozen=True)
class CpuTimes:
    """Ticks since the start of the machine: of work, of waiting for a hypervisor, and all of them."""

    busy: int
    stolen: int
    total: int


@dataclass(frozen=True)
class MachineState:
    """The state of a machine at one moment; a mapping or a number that can't be read is empty or None.

    `times` is by CPU. `pressure` is the share of the last 10 s, in percent, in which something waited for `cpu` or
    `memory` (PSI). `clocks_khz` is of at most four of the CPUs asked for; of the first, `limit_khz` is what its clock
    may reach now and `max_khz` what it can. `throttled` counts events since the start.
    """

    times: dict[int, CpuTimes]
    pressure: dict[str, float]
    clocks_khz: tuple[int, ...]
    limit_khz: int | None
    max_khz: int | None
    governors: tuple[str, ...]
    temperatures_c: dict[str, float]
    throttled: int | None
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    swapped_pages: int | None
    on_battery: bool
    power_profile: str | None

    def to_document(self) -> dict[str, Any]:
        """Return what a run record keeps of the state."""
        clocks = sorted(self.clocks_khz)
        return {
            "clock_khz": {"min": clocks[0], "median": int(statistics.median(clocks)), "max": clocks[-1]}
            if clocks
            else None,
            "limit_khz": self.limit_khz,
            "governors": list(self.governors),
            "temperatures_c": self.temperatures_c,
            "throttle_events": self.throttled,
            "pressure": self.pressure,
            "memory_available_bytes": self.memory_available_bytes,
            "on_battery": self.on_battery,
            "power_profile": self.power_profile,
        }


def machine_state(cpus: Sequence[int], root: Path = Path(ROOT)) -> MachineState:
    """Return the state of the machine below `root`, its clocks and governors those of `cpus`."""
    memory = read_table(root / "proc/meminfo")
    paged = read_table(root / "proc/vmstat")
    scaling = [root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq" for cpu in cpus]
    clocks = [read_number(place / "scaling_cur_freq") for place in scaling[:_CLOCKS_READ]]
    governors = {read_text(place / "scaling_governor") for place in scaling}
    swapped = [paged[name] for name in ("pswpin", "pswpout") if name in paged]
    return MachineState(
        times=cpu_times(root),
        pressure={kind: share for kind in ("cpu", "memory") if (share := _pressure(root, kind)) is not None},
        clocks_khz=tuple(clock for clock in clocks if clock),
        limit_khz=read_number(scaling[0] / "scaling_max_freq") if scaling else None,
        max_khz=read_number(scaling[0] / "cpuinfo_max_freq") if scaling else None,
        governors=tuple(sorted(governor for governor in governors if governor)),
        temperatures_c=_temperatures(root),
        throttled=_throttled(root),
        memory_total_bytes=_kib(memory.get("MemTotal")),
        memory_available_bytes=_kib(memory.get("MemAvailable")),
        swapped_pages=sum(swapped) if swapped else None,
        on_battery=_on_battery(root),
        power_profile=read_text(root / _ACPI_PROFILE),
    )


def cpu_times(root: Path = Path(ROOT)) -> dict[int, CpuTimes]:
    """Return the ticks of each CPU (`/proc/stat`, proc_stat(5): user nice system idle iowait irq softirq steal)."""
    found = {}
    for line in (read_text(root / "proc/stat") or "").splitlines():
        match = re.match(r"cpu(\d{1,5})((?: \d+){4,})", line)
        if match:
            # What comes after the eighth, the guests' share, is in the first two already.
            ticks = ([int(word) for word in match.group(2).split()] + [0] * 4)[:8]
            idle, stolen = ticks[3] + ticks[4], ticks[7]
            found[int(match.group(1))] = CpuTimes(sum(ticks) - idle - stolen, stolen, sum(ticks))
    return found


def _kib(value: int | None) -> int | None:
    return None if value is None else value << 10


def _pressure(root: Path, kind: str) -> float | None:
    match = re.search(r"^some avg10=(\d+\.\d+)", read_text(root / "proc/pressure" / kind) or "", re.MULTILINE)
    return float(match.group(1)) if match else None


def _throttled(root: Path) -> int | None:
    places = children(root / "sys/devices/system/cpu", "cpu[0-9]*/thermal_throttle/*_throttle_count")
    counts = [count for place in places if (count := read_number(place)) is not None]
    return sum(counts) if counts else None


def _temperatures(root: Path) -> dict[str, float]:
    """Return the highest temperature by name of the zone or chip, in degrees Celsius."""
    zones = [
        (read_text(zone / "type"), zone / "temp")
        for zone in children(root / "sys/class/thermal", "thermal_zone*")
    ]
    chips = [
        (read_text(chip / "name"), sensor)
        for chip in children(root / "sys/class/hwmon", "hwmon*")
        for sensor in children(chip, "temp*_input")
    ]
    found: dict[str, float] = {}
    for name, place in (*zones, *chips):
        thousandths = read_number(place) if name else None
        # Sensors that are not connected give nonsense such as -274000.
        if (
            name
            and thousandths is not None
            and -60_000 < thousandths < 200_000
            and len(found) < _MOST_SENSORS
        ):
            found[name[:80]] = max(found.get(name[:80], -273.0), thousandths / 1000)
    return found


def _on_battery(root: Path) -> bool:
    discharging = False
    for supply in children(root / "sys/class/power_supply", "*"):
        kind = read_text(supply / "type")
        if kind in {"Mains", "USB"} and read_number(supply / "online") == 1:
            return False
        # The battery of a mouse (scope "Device") does not feed this machine.
        if kind == "Battery" and read_text(supply / "scope") != "Device":
            discharging = discharging or read_text(supply / "status") == "Discharging"
    return discharging
