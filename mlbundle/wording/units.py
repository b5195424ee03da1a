"""Numbers as people read them; JSON keeps the raw ones."""

from __future__ import annotations

from mlbundle.runs.words import duration, rate, significant

__all__ = ["duration", "rate", "ratio", "size"]

_SIZE = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size(size_bytes: int) -> str:
    """Return a size: `1.50 MiB`."""
    for factor, unit in _SIZE:
        if size_bytes >= factor:
            return f"{significant(size_bytes / factor)} {unit}"
    return f"{size_bytes} B"


def ratio(value: float) -> str:
    """Return how many times something is another, with two digits at least: `x1.00`, `x0.071`."""
    return f"x{significant(value)}" if value >= 0.1 else f"x{value:.2g}"
