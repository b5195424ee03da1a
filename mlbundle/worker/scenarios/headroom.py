"""How much memory this process may still take, as far as the system says.

A container's limit kills without a word, so what does not fit has to be foreseen.
"""

from __future__ import annotations

import resource

# Control groups version 2 and 1, as a container sees its own.
_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def headroom_bytes() -> int | None:
    """Return how much more memory there is for this process; None where the system does not say."""
    status = _kilobytes("/proc/self/status")
    rooms = []
    data_limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if data_limit != resource.RLIM_INFINITY and "VmData" in status:
        rooms.append(data_limit - status["VmData"])
    if "VmRSS" in status:
        rooms += [limit - status["VmRSS"] for limit in map(_number, _GROUP_LIMITS) if limit is not None]
    available = _kilobytes("/proc/meminfo").get("MemAvailable")
    if available is not None:
        rooms.append(available)
    return max(0, min(rooms)) if rooms else None


def high_water_bytes() -> int | None:
    """Return the most memory that this process has had; None where the system does not say."""
    return _kilobytes("/proc/self/status").get("VmHWM")


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as stream:
            return int(stream.read())
    except (OSError, ValueError):  # not there, or `max`
        return None


def _kilobytes(path: str) -> dict[str, int]:
    """Return name -> bytes of the lines `Name: 123 kB` of a file of /proc; empty where there is none."""
    found = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                name, _, rest = line.partition(":")
                if rest.endswith(" kB\n"):
                    found[name] = int(rest.split()[0]) * 1024
    except OSError:
        pass
    return found
