"""Makes slices nest: the order of their begins and ends on a track, and lanes for those that overlap.

Perfetto pairs the events of a track as a stack. Slices that overlap without one holding the other come out with
wrong ends and no error, so they go to another lane: a sibling track of the same name.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Int64Array = NDArray[np.int64]

# Perfetto's importer drops what is deeper than 512.
MAX_DEPTH = 500
# More tracks of one name say nothing to anybody, and a trace of thousands of them can't be shown.
MAX_LANES = 64
NO_PARENT = -1
NO_LANE = -1
# Slices without parents that overlap may still hold others in so many lanes; in further ones each stands alone, or
# the time would grow with the square of the slices.
_HOLDING_LANES = 8


class EventOrder(NamedTuple):
    """The events of one lane in the order in which they are written: the row of each, and whether it begins."""

    row: Int64Array
    begins: NDArray[np.bool_]


class _Sweep(NamedTuple):
    """Slices in nesting order (by start, the longer first), and what a walk through time meets.

    Only slices that last count as begun or ended; one that does not is met after all else of its time.
    """

    order: Int64Array
    lasting: NDArray[np.bool_]
    # For each slice: how many began before it in this order, and how many had ended when it began.
    begun: Int64Array
    ended: Int64Array
    # For each slice that lasts: how many began before its end, and how many end before it.
    begun_at_end: Int64Array
    ended_at_end: Int64Array

    def depth(self) -> Int64Array:
        """Return how many slices are open when each begins."""
        return self.begun - self.ended

    def nests(self) -> bool:
        """Return whether a stack can follow: each slice ends at the depth at which it began."""
        return bool((self.depth()[self.lasting] == self.begun_at_end - self.ended_at_end - 1).all())


def nesting_order(start: Int64Array, end: Int64Array) -> Int64Array:
    """Return the rows by start, at equal starts the longer first, at equal ends as they come; cheap if they are so."""
    order = np.argsort(start, kind="stable")
    starts, ends = start[order], end[order]
    if ((starts[1:] == starts[:-1]) & (ends[1:] > ends[:-1])).any():
        return np.lexsort((-end, start))
    return order


def parts(start: Int64Array, end: Int64Array, least: int) -> Iterator[Int64Array]:
    """Yield all rows in nesting order, in parts of at least so many (but the last), cut where no slice is open.

    No lane and no event of a part depends on another part.
    """
    order = nesting_order(start, end)
    latest = np.maximum.accumulate(end[order])
    cuts = np.flatnonzero(start[order[1:]] >= latest[:-1]) + 1
    del latest
    first = 0
    while first < len(order):
        at = int(np.searchsorted(cuts, first + least))
        last = int(cuts[at]) if at < len(cuts) else len(order)
        yield order[first:last]
        first = last


def event_order(start: Int64Array, end: Int64Array) -> EventOrder:
    """Return in which order begins and ends of slices that nest are to be written.

    At equal times a parent begins before its child and a child ends before its parent; what ends at a time
    ends before anything else begins there; a slice of no duration ends at once.
    """
    sweep = _sweep(start, end)
    lasting = sweep.lasting
    begin_at, end_at = sweep.begun + sweep.ended, np.empty(len(start), np.int64)
    end_at[lasting] = sweep.begun_at_end + sweep.ended_at_end
    if not lasting.all():
        # Two events more for each that does not last, at its place among the others.
        slot = begin_at[~lasting]
        for positions in (begin_at, end_at):
            positions[lasting] += 2 * np.searchsorted(slot, positions[lasting], side="right")
        begin_at[~lasting] = slot + 2 * np.arange(len(slot))
        end_at[~lasting] = begin_at[~lasting] + 1
    row = np.empty(2 * len(start), np.int64)
    begins = np.zeros(2 * len(start), np.bool_)
    row[begin_at] = sweep.order
    row[end_at] = sweep.order
    begins[begin_at] = True
    return EventOrder(row, begins)


def assign_lanes(
    start: Int64Array, end: Int64Array, parent: Int64Array | None = None, *, most: int | None = None
) -> Int64Array:
    """Return the lane of each slice, so that the slices of every lane nest; -1 for what `most` lanes do not hold.

    `parent` holds row indices, each smaller than the row's own, or -1: a slice then lies in its parent's lane if
    it fits, and slices that are not parent and child never hold one another. Without it any slice may hold
    another, and each lies in the first lane where it nests.
    """
    sweep = _sweep(start, end)
    fits = sweep.nests() and int(sweep.depth().max(initial=0)) < MAX_DEPTH
    if fits and (parent is None or _parents_agree(sweep, parent)):
        return np.zeros(len(start), np.int64)
    most = len(start) if most is None else most
    if parent is None:
        return _first_fit(sweep.order, start, end, most)
    return _spread(sweep.order, start, end, parent, most)


def _sweep(start: Int64Array, end: Int64Array) -> _Sweep:
    order = nesting_order(start, end)
    starts, ends = start[order], end[order]
    lasting = ends > starts
    long_starts, long_ends = starts[lasting], ends[lasting]
    count = len(long_starts)
    # Of equal ends the slice that began last ends first.
    by_end = count - 1 - np.argsort(long_ends[::-1], kind="stable")
    ended_at_end = np.empty(count, np.int64)
    ended_at_end[by_end] = np.arange(count)
    return _Sweep(
        order=order,
        lasting=lasting,
        begun=np.cumsum(lasting) - lasting,
        ended=np.searchsorted(long_ends[by_end], starts, side="right"),
        begun_at_end=np.searchsorted(long_starts, long_ends, side="left"),
        ended_at_end=ended_at_end,
    )


def _parents_agree(sweep: _Sweep, parent: Int64Array) -> bool:
    """Return whether the slice that holds each slice in time is the one that is declared."""
    declared, depths = parent[sweep.order], sweep.depth()
    if (declared[depths == 0] != NO_PARENT).any():
        return False
    for depth in range(1, int(depths.max(initial=0)) + 1):
        inner = np.flatnonzero(depths == depth)
        outer = np.flatnonzero((depths == depth - 1) & sweep.lasting)
        held_by = outer[np.searchsorted(outer, inner) - 1]
        if (declared[inner] != sweep.order[held_by]).any():
            return False
    return True


class _SingleLanes:
    """Lanes that hold one slice at a time, numbered from `first` to below `most`; slices come in order of time."""

    def __init__(self, first: int, most: int) -> None:
        self._first, self._most = first, most
        self._free: list[int] = []
        self._busy: list[tuple[int, int]] = []

    def take(self, start: int, end: int) -> int:
        """Return the first lane that is free, and keep it until the end; NO_LANE where all are taken."""
        while self._busy and self._busy[0][0] <= start:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        lane = heapq.heappop(self._free) if self._free else self._first + len(self._busy)
        if lane >= self._most:
            return NO_LANE
        heapq.heappush(self._busy, (end, lane))
        return lane


def _first_fit(order: Int64Array, start: Int64Array, end: Int64Array, most: int) -> Int64Array:
    """Assign lanes row by row: the first where the row lies inside what is open there."""
    starts, ends = start.tolist(), end.tolist()
    lane = [0] * len(starts)
    holding: list[list[int]] = [[]]
    others = _SingleLanes(_HOLDING_LANES, most)
    for row in order.tolist():
        begin, until = starts[row], ends[row]
        for number, open_ends in enumerate(holding):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            if not open_ends or (until <= open_ends[-1] and len(open_ends) < MAX_DEPTH):
                open_ends.append(until)
                lane[row] = number
                break
        else:
            if len(holding) < min(_HOLDING_LANES, most):
                lane[row] = len(holding)
                holding.append([until])
            else:
                lane[row] = others.take(begin, until)
    return np.array(lane, np.int64)


def _spread(
    order: Int64Array, start: Int64Array, end: Int64Array, parent: Int64Array, most: int
) -> Int64Array:
    """Assign lanes row by row: into the parent where it is free, else into the first lane that is."""
    starts, ends, parents = start.tolist(), end.tolist(), parent.tolist()
    lane, depth, free_at = [NO_LANE] * len(starts), [0] * len(starts), starts.copy()
    others = _SingleLanes(0, most)
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
        else:
            lane[row] = others.take(starts[row], ends[row])
    return np.array(lane, np.int64)
