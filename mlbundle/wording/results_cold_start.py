"""The lines of a result table that `cold-start` adds: the first start, and the phases of those after it."""

from __future__ import annotations

from typing import Any

from mlbundle.wording import units


def lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return name and text of each line for the `result` of a record."""
    found = result["cold_start"]
    median, starts = found["median"], len(found["starts"])
    phases = "  ".join(f"{name} {units.duration(time)}" for name, time in median["phases"].items())
    later = f"median of the {starts - 1} after it" if starts > 1 else "the only one"
    return [
        ("first start", units.duration(found["first_ns"])),
        ("cold start", f"{units.duration(median['total_ns'])} to the first answer, {later}"),
        ("", phases),
    ]
