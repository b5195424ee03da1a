"""Slices of a lane nest; begins and ends come in an order that a stack can follow."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlbundle.trace.nesting import MAX_DEPTH, assign_lanes, event_order, nesting_order, parts


def columns(*intervals):
    array = np.array(intervals, np.int64).reshape(-1, 2)
    return array[:, 0].copy(), array[:, 1].copy()


def events(*intervals):
    order = event_order(*columns(*intervals))
    return [f"{'B' if begins else 'E'}{row}" for row, begins in zip(order.row, order.begins, strict=True)]


def lanes(*intervals, parent=None):
    found = assign_lanes(*columns(*intervals), None if parent is None else np.array(parent, np.int64))
    return found.tolist()


def test_nothing_has_no_events() -> None:
    assert events() == []
    assert lanes() == []


def test_a_parent_begins_before_and_ends_after_its_child_at_equal_times() -> None:
    assert events((0, 10), (0, 10)) == ["B0", "B1", "E1", "E0"]
    assert events((0, 5), (0, 10)) == ["B1", "B0", "E0", "E1"]
    assert events((5, 10), (0, 10)) == ["B1", "B0", "E0", "E1"]


def test_what_ends_at_a_time_ends_before_the_next_begins() -> None:
    assert events((0, 5), (5, 9), (9, 12)) == ["B0", "E0", "B1", "E1", "B2", "E2"]


def test_a_slice_without_duration_ends_at_once_inside_what_is_open() -> None:
    assert events((0, 10), (0, 0), (4, 4), (10, 10)) == ["B0", "B1", "E1", "B2", "E2", "E0", "B3", "E3"]
    assert events((3, 3), (3, 3)) == ["B0", "E0", "B1", "E1"]


def test_slices_that_nest_share_a_lane() -> None:
    assert lanes((0, 10), (1, 4), (4, 9), (10, 12)) == [0, 0, 0, 0]


def test_a_partial_overlap_goes_to_another_lane() -> None:
    assert lanes((0, 10), (5, 15), (10, 20)) == [0, 1, 0]


def test_a_lane_is_used_again_when_it_is_free() -> None:
    assert lanes((0, 10), (5, 15), (12, 20), (16, 30), parent=[-1] * 4) == [0, 1, 0, 1]


def test_slices_that_are_not_parent_and_child_never_hold_one_another() -> None:
    assert lanes((0, 10), (2, 5)) == [0, 0]
    assert lanes((0, 10), (2, 5), parent=[-1, -1]) == [0, 1]
    assert lanes((0, 10), (2, 5), parent=[-1, 0]) == [0, 0]


def test_children_follow_their_parent_into_its_lane() -> None:
    # Two queries overlap; the child of the second would fit into the first.
    assert lanes((0, 10), (0, 10), (5, 15), (5, 8), parent=[-1, 0, -1, 2]) == [0, 0, 1, 1]


def test_children_that_overlap_each_other_are_parted() -> None:
    assert lanes((0, 10), (1, 5), (4, 8), parent=[-1, 0, 0]) == [0, 0, 1]


def test_a_child_outside_its_parent_stands_alone() -> None:
    assert lanes((0, 10), (20, 25), (8, 12), parent=[-1, 0, 0]) == [0, 0, 1]


def test_a_child_without_duration_at_the_end_of_its_parent_is_not_put_into_the_next_slice() -> None:
    found = lanes((0, 10), (10, 10), (10, 20), parent=[-1, 0, -1])
    assert found[0] == found[2] == 0
    assert found[1] != 0


def test_a_pile_that_is_too_deep_is_cut() -> None:
    deep = [(i, 10_000 - i) for i in range(2 * MAX_DEPTH)]
    found = lanes(*deep)
    assert [found.count(lane) for lane in sorted(set(found))] == [MAX_DEPTH, MAX_DEPTH]


def test_many_slices_at_once_each_get_a_lane() -> None:
    count = 40_000
    start = np.arange(count, dtype=np.int64)
    end = start + 10 * count
    assert assign_lanes(start, end).tolist() == list(range(count))


intervals = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=40,
)


@st.composite
def intervals_with_parents(draw):
    found = draw(intervals)
    return found, [draw(st.integers(-1, row - 1)) for row in range(len(found))]


def follow(rows):
    """Play the events of slices on a stack, as Perfetto does; return the row that holds each row."""
    stack, holder = [], {}
    order = event_order(*columns(*rows))
    last = 0
    for row, begins in zip(order.row.tolist(), order.begins.tolist(), strict=True):
        at = rows[row][0 if begins else 1]
        assert at >= last
        last = at
        if begins:
            holder[row] = stack[-1] if stack else -1
            stack.append(row)
        else:
            assert stack.pop() == row
    assert not stack
    return holder


@settings(max_examples=300)
@given(intervals)
def test_every_lane_can_be_followed_by_a_stack(rows) -> None:
    found = lanes(*rows)
    for lane in set(found):
        members = [rows[i] for i in range(len(rows)) if found[i] == lane]
        assert sorted(follow(members)) == list(range(len(members)))


@settings(max_examples=300)
@given(intervals_with_parents())
def test_no_slice_is_held_by_one_that_is_not_its_parent(given_rows) -> None:
    rows, parent = given_rows
    found = lanes(*rows, parent=parent)
    for lane in set(found):
        members = [i for i in range(len(rows)) if found[i] == lane]
        for inner, outer in follow([rows[i] for i in members]).items():
            assert outer == -1 or members[outer] == parent[members[inner]]


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_back_to_back_slices_need_one_lane(count: int) -> None:
    start = np.arange(count, dtype=np.int64) * 5
    assert not assign_lanes(start, start + 5, np.full(count, -1, np.int64)).any()


@settings(max_examples=300)
@given(intervals)
def test_the_nesting_order_is_by_start_then_the_longer_then_as_they_come(rows) -> None:
    found = nesting_order(*columns(*rows)).tolist()
    assert found == sorted(range(len(rows)), key=lambda row: (rows[row][0], -rows[row][1], row))


@settings(max_examples=300)
@given(intervals, st.integers(1, 10))
def test_parts_are_cut_where_nothing_is_open(rows, least: int) -> None:
    start, end = columns(*rows)
    found = [part.tolist() for part in parts(start, end, least)]
    assert [row for part in found for row in part] == nesting_order(start, end).tolist()
    assert all(len(part) >= least for part in found[:-1])
    for before, after in pairwise(found):
        assert max(end[before]) <= min(start[after])


def test_lanes_without_parents_hold_what_lies_in_them() -> None:
    # The second overlaps the first; what lies in the second, but not in the first, goes with it.
    assert lanes((0, 10), (5, 20), (11, 12), (15, 16), (6, 18)) == [0, 1, 0, 0, 1]
