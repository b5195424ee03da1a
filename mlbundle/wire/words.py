"""Times and rates in words: of reasons, of tables, and of what a worker says on its way."""

from __future__ import annotations

TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))


def duration(nanoseconds: float) -> str:
    """Return a duration with three significant digits: `14.1 us`."""
    for factor, unit in TIME_UNITS:
        if nanoseconds >= factor:
            return "{} {}".format(significant(nanoseconds / factor), unit)
    return "{:.0f} ns".format(nanoseconds)


def significant(value: float) -> str:
    """Return a number with three significant digits, or all before the point."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return "{:.{}f}".format(value, digits)


def counted(number: int, one: str, many: str) -> str:
    """Return how many there are of something: `1 query`, `2,000 queries`."""
    return "1 {}".format(one) if number == 1 else "{:,} {}".format(number, many)


def rate(per_second: float) -> str:
    """Return a rate with thousands separators: `70,912 /s`."""
    return "{:,.0f} /s".format(per_second) if per_second >= 100 else "{} /s".format(significant(per_second))
