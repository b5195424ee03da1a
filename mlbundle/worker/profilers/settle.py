"""What a profiler added, held against the queries that it was added for: what can't be is left out, and noted.

A profile can be anything: truncated, from a clock that was set meanwhile, or from code that is not ours. Nothing of it
may spoil the run, so what goes to the host has been looked at here; the host looks again, and believes no worker.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from mlbundle.wire import columns
from mlbundle.worker.profilers.base import Profile, Run
from mlbundle.worker.profilers.rows import Rows

# Clocks of profilers are whole microseconds: less than this is no loss.
_ROUNDING_NS = 10_000


def settle(profile: Profile, runs: Sequence[Run]) -> None:
    """Leave only rows that belong to a query, layers within it; nothing can be added afterwards."""
    queries = _Queries(runs)
    layers = _settle_layers(profile, queries)
    _settle_kernels(profile, queries, layers)
    for rows, what in ((profile.layer_rows, "layers"), (profile.kernel_rows, "kernels or operators")):
        _note(profile, rows.left_out, what, "more than a table holds", "left out")
        _note(profile, rows.nameless, "texts of " + what, "more than a table holds", "left empty")
        _note(profile, rows.too_long(), "texts of " + what, "longer than a table holds", "cut")


class _Queries:
    """When each query began and ended."""

    def __init__(self, runs: Sequence[Run]) -> None:
        # There is always one, which nothing is in: an index of an array of none would be an error.
        self._count = len(runs)
        self._starts = np.array([run.start_ns for run in runs] or [0], np.int64)
        self._ends = np.array([run.end_ns for run in runs] or [-1], np.int64)

    def within(self, rows: Rows) -> tuple[Any, Any, Any, Any]:
        """Return which rows are of a query, and which of those touch it, and when they begin and end within it."""
        run, start, duration = rows.arrays("run", "start_ns", "duration_ns")
        sound = (run >= 0) & (run < self._count) & (start >= 0) & (duration >= 0)
        place = np.where(sound, run, 0)
        begin = np.maximum(start, self._starts[place])
        end = np.minimum(start + duration, self._ends[place])
        return sound, sound & (begin <= end), begin, end

    def on_device(self, rows: Rows) -> Any:
        """Return which rows can have been asked for by their query and be done when the last one is."""
        run, start, duration = rows.arrays("run", "start_ns", "duration_ns")
        asked = self._starts[np.clip(run, 0, len(self._starts) - 1)] - columns.DEVICE_CLOCK_NS
        latest = self._ends.max() + columns.DEVICE_MARGIN_NS
        return (start >= asked) & (start + duration <= latest)


def _settle_layers(profile: Profile, queries: _Queries) -> Any:
    """Return the keys of the layers that are left."""
    rows = profile.layer_rows
    (duration,) = rows.arrays("duration_ns")
    sound, touches, begin, end = queries.within(rows)
    key, numbered = _keys(rows, "index")
    sound &= numbered
    touches &= numbered
    cut = touches & (duration - (end - begin) > _ROUNDING_NS)
    first = np.zeros(len(key), np.bool_)
    chosen = np.flatnonzero(touches)
    first[chosen[np.unique(key[chosen], return_index=True)[1]]] = True
    _note(profile, ~sound, "layers", "of no query, or with times that can't be", "left out")
    _note(profile, sound & ~touches, "layers", "outside of their query", "left out")
    _note(profile, cut, "layers", "that went on outside of their query", "cut")
    _note(profile, touches & ~first, "layers", "with the number of another one", "left out")
    rows.keep(first, {"start_ns": begin, "duration_ns": end - begin})
    return key[first]


def _settle_kernels(profile: Profile, queries: _Queries, layers: Any) -> None:
    rows, what = profile.kernel_rows, "kernels or operators"
    start, duration, layer = rows.arrays("start_ns", "duration_ns", "layer_index")
    sound, touches, begin, end = queries.within(rows)
    # What a device does may go on after the query that asked for it; what a processor does for it may not.
    is_operator = rows.is_text("kind", "operator")
    kept = np.where(is_operator, touches, sound & queries.on_device(rows))
    key, numbered = _keys(rows, "layer_index")
    known = numbered & np.isin(key, layers)
    _note(profile, ~sound, what, "of no query, or with times that can't be", "left out")
    _note(profile, sound & ~kept & is_operator, what, "outside of their query", "left out")
    _note(
        profile,
        sound & ~kept & ~is_operator,
        what,
        "before their query or long after all of them",
        "left out",
    )
    _note(profile, kept & (layer >= 0) & ~known, what, "of layers that are not there", "shown apart")
    rows.keep(
        kept,
        {
            "layer_index": np.where(known, layer, columns.UNKNOWN),
            "start_ns": np.where(is_operator, begin, start),
            "duration_ns": np.where(is_operator, end - begin, duration),
        },
    )


def _keys(rows: Rows, name: str) -> tuple[Any, Any]:
    """Return one number for query and layer, and in which rows it is a number."""
    run, index = rows.arrays("run", name)
    numbered = (index >= 0) & (index < columns.MAX_ROWS) & (run >= 0) & (run < columns.MAX_ROWS)
    return np.where(numbered, run * columns.MAX_ROWS + index, columns.UNKNOWN), numbered


def _note(profile: Profile, count: Any, what: str, which: str, done: str) -> None:
    """Note how many rows (a number, or a mask) something was done to."""
    number = int(np.sum(count))
    if number:
        profile.note("{} {} {}: {}".format(number, what, which, done))
