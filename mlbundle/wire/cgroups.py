"""What a process may use, as its control groups say (Linux cgroups(7), versions 1 and 2).

Both sides look: the worker at what it was given, the host at what it has itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterator

# Version 1 says "no limit" by the largest number of pages that fits.
_UNLIMITED_BYTES = 1 << 60


def cgroup_limits(root: Path = Path("/")) -> dict[str, Any]:
    """Return the limits of this process, None for each that is not set.

    `version` ("v1", "v2"), `memory_bytes`, `cpu_quota` (CPUs' worth of time), `cpus` (the kernel's list, `0-3`),
    `pids`, and `throttled`: how often the quota has stopped the group so far. A limit of a group above counts too.
    """
    places = _groups(root)
    if "" in places and len(places) == 1:
        return _version_2(list(_upwards(root / "sys/fs/cgroup", places[""])))
    return _version_1(
        {name: list(_upwards(_mount(root, name), path)) for name, path in places.items() if name}
    )


def _version_2(folders: list[Path]) -> dict[str, Any]:
    quotas = [_quota(*(_read(folder, "cpu.max").split() + [""] * 2)[:2]) for folder in folders]
    return {
        "version": "v2" if folders else None,
        "memory_bytes": _least([_number(_read(folder, "memory.max")) for folder in folders]),
        "cpu_quota": _least(quotas),
        "cpus": _first([_read(folder, "cpuset.cpus.effective") for folder in folders]),
        "pids": _least([_number(_read(folder, "pids.max")) for folder in folders]),
        "throttled": _throttled(folders),
    }


def _version_1(folders: dict[str, list[Path]]) -> dict[str, Any]:
    cpu, sets = folders.get("cpu", []), folders.get("cpuset", [])
    memory = [_number(_read(folder, "memory.limit_in_bytes")) for folder in folders.get("memory", [])]
    quotas = [_quota(_read(f, "cpu.cfs_quota_us"), _read(f, "cpu.cfs_period_us")) for f in cpu]
    cpus = [_read(f, "cpuset.effective_cpus") or _read(f, "cpuset.cpus") for f in sets]
    return {
        "version": "v1" if any(folders.values()) else None,
        "memory_bytes": _least(
            [None if size is None or size >= _UNLIMITED_BYTES else size for size in memory]
        ),
        "cpu_quota": _least(quotas),
        "cpus": _first(cpus),
        "pids": _least([_number(_read(folder, "pids.max")) for folder in folders.get("pids", [])]),
        "throttled": _throttled(cpu),
    }


def _groups(root: Path) -> dict[str, str]:
    """Return controller -> path of this process's group; "" stands for version 2."""
    found = {}
    for line in _read(root / "proc/self", "cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for name in parts[1].split(","):
                if "=" not in name:
                    found[name] = parts[2]
    return found


def _mount(root: Path, controller: str) -> Path:
    """Return where a controller of version 1 is mounted; some come in pairs (`cpu,cpuacct`)."""
    top = root / "sys/fs/cgroup"
    for name in (controller, "{0},{0}acct".format(controller), "{0}acct,{0}".format(controller)):
        if (top / name).is_dir():
            return top / name
    return top / controller


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield the folders of a group and of those above it, inside out.

    Inside a container the path may be the host's; there the mount itself is the container's group.
    """
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for length in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:length])
        if folder.is_dir():
            yield folder


def _read(folder: Path, name: str) -> str:
    try:
        with (folder / name).open("rb") as stream:
            return stream.read(1 << 16).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(text: str) -> Any:
    return int(text) if re.match(r"\d{1,20}\Z", text) else None


def _quota(quota: str, period: str) -> Any:
    allowed, of = _number(quota), _number(period)
    return round(allowed / of, 3) if allowed is not None and of else None


def _least(values: list[Any]) -> Any:
    return min((value for value in values if value is not None), default=None)


def _first(texts: list[str]) -> Any:
    return next((text for text in texts if text), None)


def _throttled(folders: list[Path]) -> Any:
    for folder in folders:
        match = re.search(r"^nr_throttled (\d{1,18})$", _read(folder, "cpu.stat"), re.MULTILINE)
        if match:
            return int(match.group(1))
    return None
