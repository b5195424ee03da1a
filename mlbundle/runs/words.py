"""Numbers in the words of reasons and tables."""

from __future__ import annotations

from mlbundle.wire.words import TIME_UNITS, counted, duration, rate, significant

__all__ = ["counted", "duration", "rate", "seconds", "significant"]


def seconds(value_s: float) -> str:
    """Return a duration as an option takes it: `10us`, `1.5s`."""
    for factor, unit in TIME_UNITS:
        if value_s * 1e9 >= factor * (1 - 1e-9):
            return f"{value_s * 1e9 / factor:.10g}{unit}"
    return f"{value_s:g}s"
