"""How much memory this process may have, as far as the system says.

A container's limit kills without a word, so what does not fit has to be foreseen. The limit of a process makes
allocations fail, which can be caught, and is not looked at here.
"""

from __future__ import annotations

# Control groups version 2 and 1, as a container sees its own.
_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def limit_bytes() -> int | None:
    """Return how much this process may have in all before something kills it; None where the system does not say."""
    limits = [limit for limit in map(_number, _GROUP_LIMITS) if limit is not None]
    had = _kilobytes("/proc/self/status").get("VmRSS")
    available = _kilobytes("/proc/meminfo").get("MemAvailable")
    if had is not None and available is not None:
        limits.append(had + available)
    return min(limits) if limits else None


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
