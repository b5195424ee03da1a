"""Numbers in the words of reasons and tables."""

from __future__ import annotations

_TIME = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))


def duration(nanoseconds: float) -> str:
    """Return a duration with three significant digits: `14.1 us`."""
    for factor, unit in _TIME:
        if nanoseconds >= factor:
            return f"{significant(nanoseconds / factor)} {unit}"
    return f"{nanoseconds:.0f} ns"


def significant(value: float) -> str:
    """Return a number with three significant digits, or all before the point."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}"


def rate(per_second: float) -> str:
    """Return a rate with thousands separators: `70,912 /s`."""
    return f"{per_second:,.0f} /s" if per_second >= 100 else f"{significant(per_second)} /s"


def counted(number: int, one: str, many: str) -> str:
    """Return how many there are of something: `1 query`, `2,000 queries`."""
    return f"1 {one}" if number == 1 else f"{number:,} {many}"
