"""The runs that were marked: in Runs, for Compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.app import App

MOST_COMPARED = 6


def marked_runs(app: App[Any]) -> list[str]:
    """Return the ids of the marked runs in the order in which they were marked; the list itself, to be changed."""
    marks: list[str] = app.__dict__.setdefault("_marked_runs", [])
    return marks
