"""Trimmed mean and percentiles, by hand and against their definitions."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.analysis.statistics import percentile, summarise_latencies, trimmed_mean


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([7], 7.0),
        ([1, 100], 50.5),
        ([1, 2, 300], 101.0),  # three and four values: floor(0.2 n) is 0, nothing is cut
        ([1, 2, 3, 400], 101.5),
        ([1000, 3, 1, 2, 4], 3.0),  # five: one off each end
        ([1, 2, 3, 4, 5, 6, 7, 8, 900], 5.0),  # nine: still one
        ([0, 0, 3, 4, 5, 6, 7, 8, 900, 900], 5.5),  # ten: two
    ],
)
def test_the_trimmed_mean_cuts_a_fifth_at_each_end(values: list[int], mean: float) -> None:
    assert trimmed_mean(values) == mean


def test_the_proportion_is_the_decimal_that_was_written() -> None:
    # 0.29 * 100 is 28.999999999999996 in binary, yet 29 % of 100 are 29: ones and the outliers go.
    assert trimmed_mean([0] * 29 + [5] * 42 + [10**9] * 29, 0.29) == 5.0
    assert trimmed_mean([1, 2, 9], 0.0) == 4.0


@pytest.mark.parametrize("proportion", [-0.1, 0.5, 1.0])
def test_a_proportion_that_leaves_nothing_is_refused(proportion: float) -> None:
    with pytest.raises(ValueError, match="leaves nothing"):
        trimmed_mean([1, 2, 3], proportion)


@pytest.mark.parametrize("values", [[], np.zeros((2, 2)), 5])
def test_statistics_need_a_list_of_values(values: object) -> None:
    for function in (trimmed_mean, summarise_latencies):
        with pytest.raises(ValueError, match="at least one value"):
            function(values)


@pytest.mark.parametrize(
    ("count", "p", "rank"),
    [
        (1, 0.5, 1),
        (1, 0.999, 1),
        (2, 0.5, 1),
        (3, 0.5, 2),
        (4, 0.5, 2),
        (10, 0.9, 9),
        (10, 0.99, 10),
        (11, 0.9, 10),
        (100, 0.07, 7),  # 0.07 * 100 is 7.000000000000001 in binary
        (100, 0.99, 99),
        (1000, 0.999, 999),
        (1001, 0.999, 1000),
        (5, 1.0, 5),
        (5, 1e-9, 1),
    ],
)
def test_percentiles_are_nearest_ranks(count: int, p: float, rank: int) -> None:
    assert percentile(list(range(1, count + 1)), p) == rank


@pytest.mark.parametrize("p", [0.0, -0.5, 1.5, math.nan])
def test_a_percentile_outside_its_range_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="not in"):
        percentile([1], p)


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="of no values"):
        percentile([], 0.5)


def test_a_summary_of_a_thousand_latencies() -> None:
    summary = summarise_latencies(np.arange(1000, 0, -1, dtype=np.int64))
    assert summary.to_document() == {
        "trimmed_mean": 500.5,
        "mean": 500.5,
        "min": 1,
        "p50": 500,
        "p90": 900,
        "p99": 990,
        "p99_9": 999,
        "max": 1000,
    }
    assert json.loads(json.dumps(summary.to_document())) == summary.to_document()


def test_latencies_beyond_53_bits_keep_their_nanoseconds() -> None:
    assert summarise_latencies([2**62 + 1, 2**62 + 1, 2**62 + 3]).p50 == 2**62 + 1


values = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)


@given(values)
def test_the_trimmed_mean_follows_its_definition(numbers: list[int]) -> None:
    cut = len(numbers) * 2 // 10
    kept = sorted(numbers)[cut : len(numbers) - cut]
    assert kept
    assert trimmed_mean(numbers) == pytest.approx(sum(kept) / len(kept), rel=1e-12)


@given(values, st.integers(1, 1000))
def test_a_percentile_is_the_least_value_that_enough_do_not_exceed(
    numbers: list[int], per_mille: int
) -> None:
    ordered = sorted(numbers)
    found = percentile(ordered, per_mille / 1000)
    share = Fraction(per_mille, 1000) * len(ordered)
    assert sum(v <= found for v in ordered) >= share
    assert sum(v < found for v in ordered) < share


@given(values)
def test_a_summary_is_in_order(numbers: list[int]) -> None:
    s = summarise_latencies(numbers)
    assert s.min <= s.p50 <= s.p90 <= s.p99 <= s.p99_9 <= s.max
    assert s.min <= s.trimmed_mean <= s.max
    assert {s.min, s.p50, s.p90, s.p99, s.p99_9, s.max} <= set(numbers)
