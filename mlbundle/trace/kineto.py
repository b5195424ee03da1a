"""Reads what PyTorch's profiler exports (Kineto's JSON): operators, kernels and copies, tied by their correlation.

The form is Chrome's trace events with `baseTimeNanoseconds`, to which all `ts` (in us) are relative:
https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from mlbundle.errors import IntegrityError
from mlbundle.trace.foreign import MAX_ARGS, ForeignSlice, ForeignTrace, short
from mlbundle.trace.jsonwalk import JSONBroken, members

KIND = "kineto"
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime"})
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


def looks_like_kineto(text: str) -> bool:
    """Return whether a text may be such an export."""
    return '"traceEvents"' in text and '"baseTimeNanoseconds"' in text


def read_kineto(text: str, *, where: str) -> ForeignTrace:
    """Return the complete events of an export; what is cut short is read as far as it goes.

    Raises IntegrityError when there is no event in it, or nothing to relate its times by.
    """
    trace, names, base_ns = ForeignTrace(KIND), _Names(), None
    events: list[dict[str, Any]] = []
    try:
        for key, value in members(text, "traceEvents"):
            if key == "baseTimeNanoseconds" and isinstance(value, int) and not isinstance(value, bool):
                base_ns = value
            elif key == "traceEvents" and isinstance(value, dict):
                if not names.take(value) and value.get("ph") == "X":
                    events.append(value)
            elif key == "traceEvents":
                trace.skipped += 1
    except JSONBroken as error:
        if not events:
            raise IntegrityError(f"the file is no Kineto trace: {error}", where=where) from error
        trace.skipped += 1
    if base_ns is None:
        base_ns = _base_of(text)
    if base_ns is None:
        raise IntegrityError(
            "the trace has no baseTimeNanoseconds: its times can't be related to a run",
            where=where,
            hint="export it with prof.export_chrome_trace() of PyTorch 2.1 or later",
        )
    for event in events:
        trace.add(_slice(event, names, base_ns))
    _drop_backward_arrows(trace)
    return trace


def _drop_backward_arrows(trace: ForeignTrace) -> None:
    """Untie what began before it was launched: clocks of devices may be off, and no arrow leads back in time."""
    launched: dict[int, int] = {}
    for one in trace.slices:
        for flow in one.flows:
            launched[flow] = min(one.start_ns, launched.get(flow, one.start_ns))
    backward = 0
    for row, one in enumerate(trace.slices):
        if any(one.start_ns < launched.get(flow, one.start_ns) for flow in one.ends_flows):
            trace.slices[row] = replace(one, ends_flows=())
            backward += 1
    if backward:
        trace.notes.append(f"{backward} arrows are left out: what they lead to began before it was launched")


def _base_of(text: str) -> int | None:
    """Return the base of times where the file was cut before its end, at which it is written."""
    _, found, rest = text.rpartition('"baseTimeNanoseconds"')
    digits = rest.lstrip(" :\t\r\n")[:24]
    number = digits[: len(digits) - len(digits.lstrip("0123456789"))]
    return int(number) if found and number else None


class _Names:
    """What processes and threads are called."""

    def __init__(self) -> None:
        self._processes: dict[str, str] = {}
        self._threads: dict[tuple[str, str], str] = {}

    def take(self, event: dict[str, Any]) -> bool:
        """Take a name; returns whether the event was one."""
        if event.get("ph") != "M":
            return False
        arguments = event.get("args")
        name = arguments.get("name") if isinstance(arguments, dict) else None
        pid, tid = str(event.get("pid")), str(event.get("tid"))
        if event.get("name") == "process_name" and name is not None:
            self._processes[pid] = short(name)
        elif event.get("name") == "thread_name" and name is not None:
            self._threads[pid, tid] = short(name)
        return True

    def of(self, event: dict[str, Any]) -> tuple[str, str]:
        """Return how process and thread of an event are shown."""
        pid, tid = str(event.get("pid")), str(event.get("tid"))
        process = self._processes.get(pid)
        shown = short(pid) if process is None else f"{process} {short(pid)}"
        return shown, self._threads.get((pid, tid), f"thread {short(tid)}")


def _slice(event: dict[str, Any], names: _Names, base_ns: int) -> ForeignSlice | None:
    start_ns, duration_ns = _ns(event.get("ts")), _ns(event.get("dur"))
    if start_ns is None or duration_ns is None or duration_ns < 0:
        return None
    given = event.get("args")
    arguments = given if isinstance(given, dict) else {}
    category, correlation = short(event.get("cat", "")), arguments.get("correlation")
    flow = (correlation,) if isinstance(correlation, int) and not isinstance(correlation, bool) else ()
    process, track = names.of(event)
    return ForeignSlice(
        process,
        track,
        short(event.get("name", "")),
        base_ns + start_ns,
        base_ns + start_ns + duration_ns,
        category,
        plain(arguments),
        flows=flow if category in _LAUNCHES else (),
        ends_flows=flow if category in _ON_DEVICE else (),
    )


def _ns(us: object) -> int | None:
    """Return ns of a number of us; Kineto writes three decimals."""
    if isinstance(us, bool) or not isinstance(us, int | float):
        return None
    if isinstance(us, int):
        return us * 1000
    nanoseconds = us * 1000
    return round(nanoseconds) if math.isfinite(nanoseconds) else None


def plain(arguments: dict[str, Any]) -> dict[str, str | int | float | bool]:
    """Return arguments as the trace takes them; what is no single value as text."""
    return {
        short(name): value
        if isinstance(value, bool | int | float) and not (isinstance(value, int) and abs(value) >= 1 << 63)
        else short(value)
        for name, value in list(arguments.items())[:MAX_ARGS]
    }
