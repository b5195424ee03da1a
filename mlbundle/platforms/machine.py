"""What this machine is: facts that stay the same from run to run."""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.platforms.cpu import cpu_facts, cpu_info, cpu_model
from mlbundle.platforms.names import this_architecture
from mlbundle.platforms.sysfs import ROOT, children, read_table, read_text

if TYPE_CHECKING:
    from mlbundle.platforms.cpu import CpuFacts


@dataclass(frozen=True)
class MachineFacts:
    """What this machine is; every field may go into a run record that is shared with others.

    `product` names the maker and the model of the machine or of the virtual machine, nothing else of its firmware's
    tables, which hold serial numbers.
    """

    system: str
    kernel: str
    architecture: str
    cpu_model: str
    cpu_count: int
    cpu_usable: int
    memory_bytes: int
    python: str
    governor: str | None
    smt: str | None
    cgroup: str
    cpu: CpuFacts
    swap_bytes: int | None
    transparent_hugepages: str | None
    product: str | None
    interconnects: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the facts as JSON-ready values."""
        return {
            **self.__dict__,
            "cpu": self.cpu.to_document(),
            "interconnects": list(self.interconnects),
        }


def usable_cpus() -> list[int]:
    """Return the numbers of the CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def machine_facts(root: Path = Path(ROOT)) -> MachineFacts:
    """Collect the facts about this machine; unknown ones are None or 'unknown', never an error."""
    pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in os.sysconf_names else 0
    swap_kib = read_table(root / "proc/meminfo").get("SwapTotal")
    return MachineFacts(
        system=platform.system(),
        kernel=platform.release(),
        architecture=this_architecture(),
        cpu_model=cpu_model(cpu_info(root)),
        cpu_count=os.cpu_count() or 1,
        cpu_usable=len(usable_cpus()),
        memory_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        python=platform.python_version(),
        governor=read_text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        smt=read_text(root / "sys/devices/system/cpu/smt/control"),
        cgroup="v2" if (root / "sys/fs/cgroup/cgroup.controllers").exists() else "v1",
        cpu=cpu_facts(root),
        swap_bytes=None if swap_kib is None else swap_kib << 10,
        transparent_hugepages=_chosen(read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        product=_product(root),
        interconnects=_interconnects(root),
    )


def free_bytes(folder: Path) -> int:
    """Return the free space in bytes where `folder` lies or would lie."""
    probe = folder
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    return shutil.disk_usage(probe).free


def _chosen(text: str | None) -> str | None:
    """Return the word in brackets: the kernel writes `always [madvise] never`."""
    match = re.search(r"\[(\w+)\]", text or "")
    return match.group(1) if match else None


def _product(root: Path) -> str | None:
    folder = root / "sys/class/dmi/id"
    named = [read_text(folder / "sys_vendor"), read_text(folder / "product_name")]
    # Machines without such tables (POWER, boards) say it in the device tree.
    return " ".join(part for part in named if part) or read_text(root / "proc/device-tree/model")


def _interconnects(root: Path) -> tuple[str, ...]:
    found = set()
    for port in children(root / "sys/class/infiniband", "*/ports/*"):
        layer, rate = read_text(port / "link_layer"), read_text(port / "rate")
        if layer and rate and (read_text(port / "state") or "").endswith("ACTIVE"):
            found.add(f"{layer} {rate}")
    return tuple(sorted(found))
