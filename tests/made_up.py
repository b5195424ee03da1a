"""Machines that are made up: the few files of /proc and /sys that tell what they are."""

from __future__ import annotations

from pathlib import Path

CPU = "sys/devices/system/cpu"
MEMINFO = "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\nSwapTotal: 2000000 kB\nSwapFree: 2000000 kB\n"
LAPTOP_FLAGS = (
    "lm cmov cx8 fpu fxsr mmx syscall sse sse2 cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 "
    "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
)


def tree(root: Path, files: dict[str, str | int]) -> Path:
    """Write files below a folder; returns the folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def laptop(root: Path) -> Path:
    """Two cores of two threads each, on battery, powersave, its clock limited, slowed down by heat before."""
    files: dict[str, str | int] = {
        "proc/cpuinfo": f"vendor_id : GenuineIntel\nmodel name : Some Laptop CPU\nflags : {LAPTOP_FLAGS}",
        "proc/meminfo": MEMINFO,
        "proc/vmstat": "pswpin 10\npswpout 20",
        "proc/stat": stat(4),
        "proc/pressure/cpu": "some avg10=12.50 avg60=3.00 avg300=1.00 total=99\nfull avg10=0.00 avg60=0 avg300=0 total=0",
        f"{CPU}/online": "0-3",
        f"{CPU}/isolated": "",
        f"{CPU}/intel_pstate/no_turbo": 0,
        f"{CPU}/cpu0/thermal_throttle/core_throttle_count": 7,
        f"{CPU}/cpu1/thermal_throttle/core_throttle_count": 3,
        f"{CPU}/cpu0/cache/index0/level": 1,
        f"{CPU}/cpu0/cache/index0/type": "Data",
        f"{CPU}/cpu0/cache/index0/size": "48K",
        f"{CPU}/cpu0/cache/index0/shared_cpu_list": "0,2",
        "sys/devices/system/node/node0/cpulist": "0-3",
        "sys/class/power_supply/AC/type": "Mains",
        "sys/class/power_supply/AC/online": 0,
        "sys/class/power_supply/BAT0/type": "Battery",
        "sys/class/power_supply/BAT0/status": "Discharging",
        "sys/firmware/acpi/platform_profile": "low-power",
        "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp",
        "sys/class/thermal/thermal_zone0/temp": 91500,
        "sys/class/hwmon/hwmon0/name": "coretemp",
        "sys/class/hwmon/hwmon0/temp1_input": 88000,
        "sys/class/hwmon/hwmon0/temp2_input": 93000,
        "sys/class/hwmon/hwmon0/temp3_input": -274000,
        "sys/class/dmi/id/sys_vendor": "Somebody",
        "sys/class/dmi/id/product_name": "Lap 14",
        "sys/class/dmi/id/product_serial": "SECRET-SERIAL",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    }
    for cpu in range(4):
        files |= {
            f"{CPU}/cpu{cpu}/topology/physical_package_id": 0,
            f"{CPU}/cpu{cpu}/topology/thread_siblings_list": "0,2" if cpu % 2 == 0 else "1,3",
            f"{CPU}/cpu{cpu}/cpufreq/scaling_governor": "powersave",
            f"{CPU}/cpu{cpu}/cpufreq/scaling_cur_freq": 800_000 + cpu,
            f"{CPU}/cpu{cpu}/cpufreq/scaling_max_freq": 2_000_000,
            f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq": 4_000_000,
            f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_min_freq": 400_000,
            f"{CPU}/cpu{cpu}/cpufreq/scaling_driver": "intel_pstate",
        }
    return tree(root, files)


def power_server(root: Path) -> Path:
    """A POWER9: two sockets on two nodes, four threads to a core, nothing that x86 has."""
    files: dict[str, str | int] = {
        "proc/cpuinfo": "processor : 0\ncpu : POWER9, altivec supported\nclock : 3800.000000MHz\n\nplatform : PowerNV",
        "proc/meminfo": MEMINFO,
        "proc/device-tree/model": "9006-12C\0",
        f"{CPU}/online": "0-15",
        "sys/devices/system/node/node0/cpulist": "0-7",
        "sys/devices/system/node/node8/cpulist": "8-15",
    }
    for cpu in range(16):
        first = cpu // 4 * 4
        files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = 0 if cpu < 8 else 8
        files[f"{CPU}/cpu{cpu}/topology/thread_siblings_list"] = f"{first}-{first + 3}"
    return tree(root, files)


def board(root: Path) -> Path:
    """An arm64 board that tells its core by numbers and has no clocks to read."""
    return tree(
        root,
        {
            "proc/cpuinfo": "processor : 0\nFeatures : fp asimd aes\nCPU implementer : 0x41\nCPU part : 0xd0b",
            f"{CPU}/online": "0-3",
            f"{CPU}/cpu0/topology/physical_package_id": -1,
        },
    )


def stat(cpus: int, *, busy: int = 100, idle: int = 900, stolen: int = 0) -> str:
    """Return /proc/stat of a machine whose CPUs have all done the same."""
    lines = [f"cpu{cpu} {busy} 0 0 {idle} 0 0 0 {stolen} 0 0" for cpu in range(cpus)]
    return "\n".join(
        [f"cpu  {cpus * busy} 0 0 {cpus * idle} 0 0 0 {cpus * stolen} 0 0", *lines, "intr 1 2 3"]
    )
