"""Chains of spans that belong to one query or sample."""

from __future__ import annotations

import dataclasses

import numpy as np
from span_samples import spans_of

from mlbundle.trace.flows import flow_chains
from mlbundle.trace.spans import merge_spans


def chains(*rows) -> list[int]:
    return flow_chains(spans_of(*rows)).tolist()


def test_no_spans_have_no_chains() -> None:
    assert chains() == []


def test_a_query_is_chained_with_what_is_inside_it() -> None:
    found = chains(
        ("query", "query", 0, 10, -1, 0),
        ("query", "query", 20, 10, -1, 1),
        ("query", "predict", 0, 10, 0, 0),
        ("query", "predict", 20, 10, 1, 1),
        ("framework", "layer", 22, 3, 3, -1),
    )
    assert found == [1, 2, 1, 2, 2]


def test_the_steps_of_a_sample_are_chained_across_tracks() -> None:
    found = chains(
        ("decode", "decode", 10, 5, -1, 7),
        ("decode", "decode", 15, 5, -1, 8),
        ("predict", "predict", 15, 5, -1, 7),
        ("argsort", "argsort", 20, 1, -1, 7),
    )
    assert found == [1, 0, 1, 1]


def test_a_prepared_sample_is_not_taken_for_the_query_of_its_number() -> None:
    found = chains(
        ("prepare", "prepare", 0, 5, -1, 0),
        ("query", "query", 10, 5, -1, 0),
        ("query", "predict", 10, 5, 1, 0),
    )
    assert found == [0, 1, 1]


def test_steps_within_the_time_of_their_query_belong_to_it() -> None:
    found = chains(
        ("query", "query", 10, 50, -1, 4),
        ("decode", "decode", 11, 5, -1, 4),
        ("decode", "decode", 70, 5, -1, 4),
    )
    assert found == [1, 1, 0]


def test_spans_of_different_passes_are_never_chained() -> None:
    first = spans_of(("decode", "decode", 0, 5, -1, 0), ("argsort", "argsort", 5, 5, -1, 0))
    again = spans_of(("argsort", "argsort", 105, 5, -1, 0), ("decode", "decode", 100, 5, -1, 0))
    query = spans_of(("query", "query", 0, 500, -1, 0), ("query", "predict", 0, 500, 0, 0))
    assert flow_chains(merge_spans([first, again, query])).tolist() == [1, 1, 3, 3, 2, 2]


def test_rows_of_passes_may_be_mixed() -> None:
    rows = [("predict", "predict", t, 5, -1, 0) for t in (0, 10, 20, 30)]
    mixed = dataclasses.replace(spans_of(*rows), pass_number=np.array([0, 1, 0, 1]))
    assert flow_chains(mixed).tolist() == [1, 2, 1, 2]


def test_samples_of_two_passes_with_one_step_each_stay_alone() -> None:
    parts = [
        spans_of(("predict", "predict", t, 5, -1, 0), ("predict", "predict", t + 9, 5, -1, 1))
        for t in (0, 100)
    ]
    assert flow_chains(merge_spans(parts)).tolist() == [0, 0, 0, 0]


def test_spans_without_a_number_stand_alone() -> None:
    assert chains(("load", "load", 0, 1, -1, -1), ("load", "open", 0, 1, -1, -1)) == [0, 0]


def test_chains_are_numbered_by_time() -> None:
    rows = [(track, track, 100 - 10 * q + k, 1, -1, q) for q in range(5) for k, track in enumerate("ab")]
    assert chains(*rows) == [5, 5, 4, 4, 3, 3, 2, 2, 1, 1]


def test_deep_descendants_find_their_query() -> None:
    depth = 300
    rows = [("query", f"{i}", i, 1000 - 2 * i, i - 1, 0 if i == 0 else -1) for i in range(depth)]
    assert np.array_equal(chains(*rows), np.ones(depth))
