"""Names of architectures and accelerators, and facts about this machine."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlbundle.errors import UsageError

ARCHITECTURES = ("amd64", "arm64", "ppc64le")
ACCELERATORS = ("cpu", "gpu")
_ALIASES = {
    "x86_64": "amd64",
    "x64": "amd64",
    "aarch64": "arm64",
    "arm64/v8": "arm64",
    "powerpc64le": "ppc64le",
}


def normalise_architecture(name: str) -> str:
    """Return our name of an architecture (`x86_64` -> `amd64`); unknown names come back in lower case."""
    lowered = name.strip().lower()
    return _ALIASES.get(lowered, lowered)


def check_accelerator(name: str) -> str:
    """Return `name` if it is an accelerator we know; raises UsageError otherwise."""
    if name not in ACCELERATORS:
        raise UsageError(f"unknown accelerator {name!r}", hint=f"one of: {', '.join(ACCELERATORS)}")
    return name


def this_architecture() -> str:
    """Return the architecture of this machine by our name."""
    return normalise_architecture(platform.machine())


@dataclass(frozen=True)
class MachineFacts:
    """What this machine is; every field may go into a run record that is shared with others."""

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

    def to_document(self) -> dict[str, Any]:
        """Return the facts as JSON-ready values."""
        return dict(self.__dict__)


def _read_text(path: str) -> str | None:
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError:
        return None


def _cpu_model() -> str:
    found: dict[str, str] = {}
    for line in (_read_text("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip().lower(), value.strip())
    # x86 says "model name", POWER "cpu"; arm64 gives only numbers, which name the core for those who look them up.
    named = found.get("model name") or found.get("cpu")
    if named:
        return named
    parts = [found[key] for key in ("cpu implementer", "cpu part") if key in found]
    return " ".join(parts) or platform.processor() or "unknown"


def usable_cpus() -> list[int]:
    """Return the numbers of the CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def machine_facts() -> MachineFacts:
    """Collect the facts about this machine; unknown ones are None or 'unknown', never an error."""
    pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in os.sysconf_names else 0
    return MachineFacts(
        system=platform.system(),
        kernel=platform.release(),
        architecture=this_architecture(),
        cpu_model=_cpu_model(),
        cpu_count=os.cpu_count() or 1,
        cpu_usable=len(usable_cpus()),
        memory_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        python=platform.python_version(),
        governor=_read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        smt=_read_text("/sys/devices/system/cpu/smt/control"),
        cgroup="v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1",
    )


def free_bytes(folder: Path) -> int:
    """Return the free space in bytes where `folder` lies or would lie."""
    probe = folder
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    return shutil.disk_usage(probe).free
