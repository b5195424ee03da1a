"""What the CPUs are: model, flags, level, caches, clocks, and which of them share a core or a memory node."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.platforms.sysfs import ROOT, children, cpu_list, cpu_ranges, read_number, read_size, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The levels of the x86-64 psABI, by the names that Linux gives to what each adds.
_X86_LEVELS = (
    ("x86-64-v1", {"lm", "cmov", "cx8", "fpu", "fxsr", "mmx", "syscall", "sse", "sse2"}),
    ("x86-64-v2", {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}),
    ("x86-64-v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}),
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
)


@dataclass(frozen=True)
class Cache:
    """A cache of CPU 0 and how many CPUs share it."""

    level: int
    type: str
    size_bytes: int | None
    shared_by: int


@dataclass(frozen=True)
class CpuFacts:
    """What the CPUs are; clocks in kHz, as the kernel has them.

    `virtual` says whether a hypervisor lies below, None where the architecture does not tell.
    """

    vendor: str | None
    flags: tuple[str, ...]
    level: str | None
    sockets: int | None
    cores: int | None
    numa_nodes: int | None
    caches: tuple[Cache, ...]
    scaling_driver: str | None
    min_khz: int | None
    max_khz: int | None
    turbo: bool | None
    isolated: str | None
    virtual: bool | None

    def to_document(self) -> dict[str, Any]:
        """Return the facts as JSON-ready values."""
        return {
            **asdict(self),
            "flags": list(self.flags),
            "caches": [asdict(cache) for cache in self.caches],
        }


@dataclass(frozen=True)
class Topology:
    """Which CPUs there are, and for each its socket, its memory node and the CPUs of its core (itself among them)."""

    online: tuple[int, ...]
    sockets: Mapping[int, int] = field(default_factory=dict)
    nodes: Mapping[int, int] = field(default_factory=dict)
    siblings: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def cores(self, cpus: Iterable[int]) -> set[tuple[int, ...]]:
        """Return the cores that CPUs belong to; one that does not say so is a core of its own."""
        return {self.siblings.get(cpu, (cpu,)) for cpu in cpus}

    def sharing(self, cpus: Iterable[int]) -> list[tuple[int, ...]]:
        """Return the groups of these CPUs that share a core."""
        chosen = set(cpus)
        groups = [tuple(sorted(chosen & set(core))) for core in self.cores(chosen)]
        return sorted(group for group in groups if len(group) > 1)

    def describe(self, cpus: Iterable[int]) -> dict[str, Any]:
        """Return where CPUs lie, for a run record: `{"list": "0-3", "cores": 2, "nodes": [0], ...}`."""
        chosen = sorted(set(cpus))
        return {
            "list": cpu_ranges(chosen),
            "count": len(chosen),
            "cores": len(self.cores(chosen)),
            "sockets": sorted({self.sockets[cpu] for cpu in chosen if cpu in self.sockets}),
            "nodes": sorted({self.nodes[cpu] for cpu in chosen if cpu in self.nodes}),
            "sharing_a_core": [cpu_ranges(group) for group in self.sharing(chosen)],
        }


def cpu_info(root: Path = Path(ROOT)) -> dict[str, str]:
    """Return what /proc/cpuinfo says of the first CPU and, after it, of the machine; names in lower case."""
    found: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip().lower(), value.strip())
    return found


def cpu_model(info: Mapping[str, str]) -> str:
    """Return the name of the CPU; `unknown` when the machine does not say it."""
    # x86 says "model name", POWER "cpu"; arm64 gives only numbers, which name the core for those who look them up.
    named = info.get("model name") or info.get("cpu")
    if named:
        return named
    parts = [info[key] for key in ("cpu implementer", "cpu part") if key in info]
    return " ".join(parts) or platform.processor() or "unknown"


def cpu_facts(root: Path = Path(ROOT)) -> CpuFacts:
    """Return what the CPUs below `root` are."""
    info, map_ = cpu_info(root), topology(root)
    flags = tuple(sorted((info.get("flags") or info.get("features") or "").split()))
    scaling = root / "sys/devices/system/cpu/cpu0/cpufreq"
    return CpuFacts(
        vendor=info.get("vendor_id") or info.get("cpu implementer"),
        flags=flags,
        level=_x86_level(set(flags)),
        sockets=len(set(map_.sockets.values())) or None,
        cores=len(map_.cores(map_.online)) if map_.siblings else None,
        numa_nodes=len(set(map_.nodes.values())) or None,
        caches=tuple(_caches(root)),
        scaling_driver=read_text(scaling / "scaling_driver"),
        min_khz=read_number(scaling / "cpuinfo_min_freq"),
        max_khz=read_number(scaling / "cpuinfo_max_freq"),
        turbo=_turbo(root),
        isolated=read_text(root / "sys/devices/system/cpu/isolated"),
        virtual=_virtual(root, set(flags)),
    )


def topology(root: Path = Path(ROOT)) -> Topology:
    """Return which CPUs are online below `root` and how they lie."""
    folder = root / "sys/devices/system/cpu"
    online = cpu_list(read_text(folder / "online"))
    sockets, siblings = {}, {}
    for cpu in online:
        place = folder / f"cpu{cpu}" / "topology"
        socket, text = read_number(place / "physical_package_id"), read_text(place / "thread_siblings_list")
        # Some boards write -1 where they do not know.
        if socket is not None and socket >= 0:
            sockets[cpu] = socket
        if text is not None:
            siblings[cpu] = cpu_list(text)
    nodes = {
        cpu: int(node.name.removeprefix("node"))
        for node in children(root / "sys/devices/system/node", "node[0-9]*")
        for cpu in cpu_list(read_text(node / "cpulist"))
    }
    return Topology(online, sockets, nodes, siblings)


def _x86_level(flags: set[str]) -> str | None:
    reached = None
    for name, needed in _X86_LEVELS:
        if not needed <= flags:
            break
        reached = name
    return reached


def _caches(root: Path) -> list[Cache]:
    found = []
    for place in children(root / "sys/devices/system/cpu/cpu0/cache", "index[0-9]*"):
        level = read_number(place / "level")
        if level is not None:
            shared = cpu_list(read_text(place / "shared_cpu_list"))
            kind = (read_text(place / "type") or "unknown").lower()
            found.append(Cache(level, kind, read_size(place / "size"), max(1, len(shared))))
    return found


def _turbo(root: Path) -> bool | None:
    folder = root / "sys/devices/system/cpu"
    off = read_number(folder / "intel_pstate/no_turbo")
    if off is not None:
        return off == 0
    on = read_number(folder / "cpufreq/boost")
    return None if on is None else on == 1


def _virtual(root: Path, flags: set[str]) -> bool | None:
    told = (root / "proc/device-tree/hypervisor").exists() or read_text(root / "sys/hypervisor/type")
    if told or "hypervisor" in flags:
        return True
    # Only x86 promises the flag; elsewhere its absence says nothing.
    return False if "lm" in flags else None
