"""Makes slices nest: the order of their begins and ends on a track, and lanes for those that overlap.

Perfetto pairs the events of a track as a stack. Slices that overlap without one holding the other come out with
wrong ends and no error, so they go to another lane: a sibling track of the same name.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64Array = NDArray[np.int64]

# Perfetto's importer drops what is deeper than 512.
MAX_DEPTH = 500
NO_PARENT = -1


class EventOrder(NamedTuple):
    """The events of one lane in the order in which they are written: the row of each, and whether it begins."""

    row: Int64Array
    begins: NDArray[np.bool_]


class _Sorted(NamedTuple):
    """Rows in nesting order (by start, the longer first), and where their events fall."""

    order: Int64Array
    depth: Int64Array
    begin_at: Int64Array
    end_at: Int64Array
    lasting: NDArray[np.bool_]
    nested: bool


def event_order(start: Int64Array, end: Int64Array) -> EventOrder:
    """Return in which order begins and ends of slices that nest are to be written.

    At equal times a parent begins before its child and a child ends before its parent; what ends at a time
    ends before anything else begins there; a slice of no duration ends at once.
    """
    found = _sort(start, end)
    count = len(start)
    row = np.empty(2 * count, np.int64)
    begins = np.zeros(2 * count, np.bool_)
    row[found.begin_at] = found.order
    row[found.end_at] = found.order
    begins[found.begin_at] = True
    return EventOrder(row, begins)


def assign_lanes(start: Int64Array, end: Int64Array, parent: Int64Array | None = None) -> Int64Array:
    """Return the lane of each slice, so that the slices of every lane nest.

    `parent` holds row indices, each smaller than the row's own, or -1: a slice then lies in its parent's lane if
    it fits, and slices that are not parent and child never hold one another. Without it any slice may hold
    another.
    """
    found = _sort(start, end)
    fits = found.nested and (len(start) == 0 or int(found.depth.max()) < MAX_DEPTH)
    if fits and (parent is None or _parents_agree(found, parent)):
        return np.zeros(len(start), np.int64)
    if parent is None:
        parent = _enclosing(found.order, start, end)
    return _spread(found.order, start, end, parent)


def _sort(start: Int64Array, end: Int64Array) -> _Sorted:
    order = np.lexsort((-end, start))
    starts, ends = start[order], end[order]
    lasting = ends > starts
    long_starts, long_ends = starts[lasting], ends[lasting]
    count = len(long_starts)
    index = np.arange(count, dtype=np.int64)
    # Of equal ends the slice that began last ends first.
    by_end = (count - 1 - np.argsort(long_ends[::-1], kind="stable")).astype(np.int64)
    rank = np.empty(count, np.int64)
    rank[by_end] = index
    sorted_ends = long_ends[by_end]
    ended_before = np.searchsorted(sorted_ends, starts, side="right")
    begun_before = np.searchsorted(long_starts, long_ends, side="left")

    depth = np.searchsorted(long_starts, starts, side="right") - ended_before
    depth[lasting] = index - ended_before[lasting]
    nested = bool((depth[lasting] == begun_before - rank - 1).all())

    begin_at, end_at = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    begin_at[lasting] = index + ended_before[lasting]
    end_at[lasting] = rank + begun_before
    instant = ~lasting
    if instant.any():
        # What lasts no time comes after everything else of its time.
        slot = np.searchsorted(long_starts, starts[instant], side="right") + ended_before[instant]
        for positions in (begin_at, end_at):
            positions[lasting] += 2 * np.searchsorted(slot, positions[lasting], side="right")
        begin_at[instant] = slot + 2 * np.arange(len(slot))
        end_at[instant] = begin_at[instant] + 1
    return _Sorted(order, depth, begin_at, end_at, lasting, nested)


def _parents_agree(found: _Sorted, parent: Int64Array) -> bool:
    """Return whether the slice that holds each slice in time is the one that is declared."""
    declared = parent[found.order]
    if (declared[found.depth == 0] != NO_PARENT).any():
        return False
    for depth in range(1, int(found.depth.max(initial=0)) + 1):
        inner = np.flatnonzero(found.depth == depth)
        outer = np.flatnonzero((found.depth == depth - 1) & found.lasting)
        held_by = outer[np.searchsorted(outer, inner) - 1]
        if (declared[inner] != found.order[held_by]).any():
            return False
    return True


def _enclosing(order: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
    """Return the row that holds each row; -1 for one that none holds or that overlaps one in part."""
    parent = np.full(len(order), NO_PARENT, np.int64)
    starts, ends = start.tolist(), end.tolist()
    stack: list[int] = []
    for row in order.tolist():
        while stack and ends[stack[-1]] <= starts[row]:
            stack.pop()
        if stack and ends[row] > ends[stack[-1]]:
            continue
        if stack:
            parent[row] = stack[-1]
        stack.append(row)
    return parent


def _spread(order: Int64Array, start: Int64Array, end: Int64Array, parent: Int64Array) -> Int64Array:
    """Assign lanes row by row: into the parent where it is free, else into the first lane that is."""
    starts, ends, parents = start.tolist(), end.tolist(), parent.tolist()
    lane, depth, free_at = [-1] * len(starts), [0] * len(starts), starts.copy()
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for row in order.tolist():
        above = parents[row]
        if (
            above != NO_PARENT
            and lane[above] >= 0
            and free_at[above] <= starts[row] < ends[above]
            and ends[row] <= ends[above]
            and depth[above] + 1 < MAX_DEPTH
        ):
            lane[row], depth[row], free_at[above] = lane[above], depth[above] + 1, ends[row]
            continue
        while busy and busy[0][0] <= starts[row]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane[row] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (ends[row], lane[row]))
    return np.array(lane, np.int64)
