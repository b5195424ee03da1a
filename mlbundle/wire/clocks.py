"""Snapshots of the clocks, taken as close together as the interpreter allows."""

from __future__ import annotations

import time


def clock_snapshot() -> dict[str, int]:
    """Return nanoseconds of CLOCK_MONOTONIC, CLOCK_REALTIME and, where there is one, CLOCK_BOOTTIME.

    The monotonic clock is read before and after the others; the pair's middle stands for it.
    """
    before = time.monotonic_ns()
    realtime = time.time_ns()
    boottime = time.clock_gettime_ns(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else None
    after = time.monotonic_ns()
    snapshot = {"monotonic": (before + after) // 2, "realtime": realtime}
    if boottime is not None:
        snapshot["boottime"] = boottime
    return snapshot
