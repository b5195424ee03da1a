"""Counters of the processor and of the kernel for a worker, by perf_event_open(2), where the kernel allows them.

They count, they do not interrupt: what it costs is a few instructions at each switch between threads. A virtual machine
often has no counters of the processor; then there are those of the kernel alone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Numbers of the system call, by `uname -m`: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h.
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "riscv64": 241}
_HARDWARE, _SOFTWARE = 0, 1
# Name -> type and config of perf_event_attr (include/uapi/linux/perf_event.h).
EVENTS = {
    "perf_cycles_count": (_HARDWARE, 0),
    "perf_instructions_count": (_HARDWARE, 1),
    "perf_cache_misses_count": (_HARDWARE, 3),
    "perf_branch_misses_count": (_HARDWARE, 5),
    "perf_page_faults_count": (_SOFTWARE, 2),
    "perf_migrations_count": (_SOFTWARE, 4),
}
# perf_event_attr of version 5: type, size, config, period, sample_type, read_format, flags, and nothing in the rest.
_ATTRIBUTES_BYTES = 112
_ATTRIBUTES = struct.Struct("IIQQQQQ")
_TIME_ENABLED, _TIME_RUNNING = 1, 2
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_CLOSE_ON_EXEC = 8
_ANY_CPU, _NO_GROUP = -1, -1
_VALUES = struct.Struct("QQQ")


class PerfCounters:
    """Counts what a process and those that it will start do; counters that can't be had are left out."""

    every = 1

    def __init__(self, pid: int) -> None:
        self._open: dict[str, int] = {}
        for name, (kind, config) in EVENTS.items():
            descriptor = _open_event(kind, config, pid)
            if descriptor is not None:
                self._open[name] = descriptor

    def read(self) -> Mapping[str, float]:
        """Return the counters; where the processor had fewer than were asked for, projected on the whole time."""
        found = {}
        for name, descriptor in self._open.items():
            with suppress(OSError, struct.error):
                value, enabled, running = _VALUES.unpack(os.read(descriptor, _VALUES.size))
                # Enabled and never running: the processor had no counter for it. Neither: the worker has not run yet.
                if running or not enabled:
                    found[name] = value * enabled / running if running else 0.0
        return found

    def close(self) -> None:
        """Stop counting."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


def _open_event(kind: int, config: int, pid: int) -> int | None:
    """Return the descriptor of a counter; None where the kernel has it not or does not give it to us."""
    number = _SYSTEM_CALL.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    # What the kernel does for a process may be counted by few; what it does itself by many.
    for flags in (_INHERIT, _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR):
        head = _ATTRIBUTES.pack(kind, _ATTRIBUTES_BYTES, config, 0, 0, _TIME_ENABLED | _TIME_RUNNING, flags)
        attributes = ctypes.create_string_buffer(head, _ATTRIBUTES_BYTES)
        descriptor = libc.syscall(
            ctypes.c_long(number), attributes, pid, _ANY_CPU, _NO_GROUP, ctypes.c_ulong(_CLOSE_ON_EXEC)
        )
        if descriptor >= 0:
            return int(descriptor)
    return None
