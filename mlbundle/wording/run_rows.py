"""A row of the index of runs, in words: status, form, runtime, headline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Mapping


def status_word(row: Mapping[str, Any]) -> str:
    """Return what a run is called by: `invalid` or `quick` of a completed one whose numbers say less."""
    if row["status"] != "completed":
        return str(row["status"])
    return "invalid" if not row["valid"] else "quick" if row["quick"] else "completed"


def form_text(framework: str, version: str, variant: str | None) -> str:
    """Return `onnxruntime 1.31.1`, or `torch-export (torch) 2.13.0` of a form with a name of its own."""
    named = framework if variant in {None, framework} else f"{variant} ({framework})"
    return f"{named} {version}".strip()


def runtime_text(runtime: str, isolation: str | None) -> str:
    """Return `docker`, or `process (unpinned)` where nobody knows what exactly the run ran in."""
    return f"{runtime} (unpinned)" if isolation == "unpinned" else runtime


def measure_text(value: float, unit: str) -> str:
    """Return a headline's value: a duration or a rate."""
    return units.rate(value) if unit == "per_s" else units.duration(value)


def headline_text(row: Mapping[str, Any]) -> str:
    """Return the headline of a row of runs: `9.52 us trimmed mean`, `8,100 /s peak`; nothing where it has none."""
    if row["headline_value"] is None:
        return ""
    return f"{measure_text(row['headline_value'], row['headline_unit'])} {row['headline']}"
