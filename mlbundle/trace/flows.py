"""Which spans belong together: the way of one query or sample through the pipeline, as chains of flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlbundle.trace.spans import SpanColumns

    Int64Array = NDArray[np.int64]

QUERY_TRACK = "query"
_NONE = -1


def flow_chains(spans: SpanColumns) -> Int64Array:
    """Return the chain of each span, numbered from 1 in order of time; 0 for a span that stands alone.

    A chain is a query with all that lies inside it: its descendants, and spans of the same number and pass on other
    tracks within its time. Spans outside any query are chained by number and pass, so the steps of one sample are
    linked, but a sample that was prepared is not taken for the query that happens to have its number.
    """
    rows = np.arange(len(spans), dtype=np.int64)
    group = _groups(spans)
    top = _tops(spans.parent)
    query_text = spans.strings.index(QUERY_TRACK) if QUERY_TRACK in spans.strings else _NONE
    is_query = (spans.track == query_text) & (spans.parent == _NONE) & (spans.query >= 0)

    query_of_group = np.full(len(spans) + 1, _NONE, np.int64)
    query_of_group[group[is_query]] = rows[is_query]
    candidate = query_of_group[group]
    inside = (
        (candidate != _NONE)
        & (spans.start_ns >= spans.start_ns[candidate])
        & (spans.end_ns <= spans.end_ns[candidate])
    )
    anchor = np.where(is_query[top], top, np.where(inside, candidate, _NONE))
    key = np.where(anchor != _NONE, anchor, len(spans) + group)
    linked = (anchor != _NONE) | (spans.query >= 0)
    return _number_chains(key, linked, spans.start_ns)


def _groups(spans: SpanColumns) -> Int64Array:
    """Return for each row a number that rows of the same pass and query share, less than the count of rows."""
    if len(spans) == 0:
        return np.empty(0, np.int64)
    order = np.lexsort((spans.query, spans.pass_number))
    query, pass_number = spans.query[order], spans.pass_number[order]
    is_new = np.r_[False, (np.diff(query) != 0) | (np.diff(pass_number) != 0)]
    group = np.empty(len(spans), np.int64)
    group[order] = np.cumsum(is_new)
    return group


def _tops(parent: Int64Array) -> Int64Array:
    """Return the outermost ancestor of each row. Parents are earlier rows, so this ends."""
    top = np.where(parent >= 0, parent, np.arange(len(parent), dtype=np.int64))
    while True:
        above = top[top]
        if (above == top).all():
            return top
        top = above


def _number_chains(key: Int64Array, linked: NDArray[np.bool_], start_ns: Int64Array) -> Int64Array:
    """Number the keys that at least two linked rows share by the time of their first row."""
    chain = np.zeros(len(key), np.int64)
    rows = np.flatnonzero(linked)
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    _, first, key_of, count = np.unique(key[rows], return_index=True, return_inverse=True, return_counts=True)
    shared = np.flatnonzero(count >= 2)
    number = np.zeros(len(count), np.int64)
    number[shared[np.argsort(first[shared], kind="stable")]] = np.arange(1, len(shared) + 1)
    chain[rows] = number[key_of.reshape(-1)]
    return chain
