"""Numbers in the words of reasons and tables."""

from __future__ import annotations

from mlbundle.wire.words import TIME_UNITS, duration, rate, significant

__all__ = ["counted", "duration", "rate", "seconds", "significant"]


def counted(number: int, one: str, many: str) -> str:
    """Return how many there are of something: `1 query`, `2,000 queries`."""
    return f"1 {one}" if number == 1 else f"{number:,} {many}"


def seconds(value_s: float) -> str:
    """Return a duration as an option takes it: `10us`, `1.5s`."""
    for factor, unit in TIME_UNITS:
        if value_s * 1e9 >= factor * (1 - 1e-9):
            return f"{value_s * 1e9 / factor:.10g}{unit}"
    return f"{value_s:g}s"
