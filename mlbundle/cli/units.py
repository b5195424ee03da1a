"""Numbers as people read them; JSON keeps the raw ones."""

from __future__ import annotations

_TIME = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_SIZE = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def duration(nanoseconds: float) -> str:
    """Return a duration with three significant digits: `14.1 us`."""
    for factor, unit in _TIME:
        if nanoseconds >= factor:
            return f"{_significant(nanoseconds / factor)} {unit}"
    return f"{nanoseconds:.0f} ns"


def size(size_bytes: int) -> str:
    """Return a size: `1.50 MiB`."""
    for factor, unit in _SIZE:
        if size_bytes >= factor:
            return f"{_significant(size_bytes / factor)} {unit}"
    return f"{size_bytes} B"


def rate(per_second: float) -> str:
    """Return a rate with thousands separators: `70,912 /s`."""
    return f"{per_second:,.0f} /s" if per_second >= 100 else f"{_significant(per_second)} /s"


def ratio(value: float) -> str:
    """Return how many times something is another, with two digits at least: `x1.00`, `x0.071`."""
    return f"x{_significant(value)}" if value >= 0.1 else f"x{value:.2g}"


def _significant(value: float) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}"
