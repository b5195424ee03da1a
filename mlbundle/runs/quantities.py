"""Sizes, durations and lists of CPUs as users write them, wherever they write them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mlbundle.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECONDS = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")
_MOST = 1e18
_CPUS = re.compile(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*")


def parse_duration_s(text: str) -> float:
    """Return a duration in seconds: `3s`, `500ms`. Raises UsageError for anything else, zero included."""
    return _quantity(text, "duration", _SECONDS, "3s, 500ms or 2m")


def parse_bytes(text: str) -> int:
    """Return a size in whole bytes: `2GiB`. Raises UsageError for anything else, zero included."""
    return int(_quantity(text, "size", _BYTES, "512MiB or 2GiB"))


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the numbers of CPUs in order, each once: `0`, `0,2`, `0-3`. Raises UsageError."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = _CPUS.fullmatch(part)
        if match is None:
            raise UsageError(f"{text!r} is no list of CPUs", hint="write for example 0 or 0,2 or 0-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"{part!r} counts backwards", hint="write for example 0-3")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def bytes_text(size_bytes: int) -> str:
    """Return a size as `parse_bytes` reads it: `2GiB`, `1500000B`; nothing is rounded."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    return f"{size_bytes}B"


def _quantity(text: str, name: str, units: Mapping[str, float], example: str) -> float:
    match = _QUANTITY.match(text)
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None or not 0 < float(match[1]) < _MOST:
        raise UsageError(f"{text!r} is no {name}", hint=f"write for example {example}")
    return float(match[1]) * factor
