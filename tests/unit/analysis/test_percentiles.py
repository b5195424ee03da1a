"""Bounds of percentiles: against sums in exact fractions, LoadGen's published counts, and what they promise."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlbundle.analysis.percentiles import (
    PERCENTILES,
    bounded_percentile,
    bounded_percentiles,
    key,
    least_queries,
    overlatencies,
)


def _by_hand(queries: int, percent: float, confidence: float) -> int:
    """The largest t with BinomialCDF(t) <= 1 - confidence, in exact fractions."""
    beyond = 1 - Fraction(str(percent)) / 100
    limit, total = 1 - Fraction(str(confidence)), Fraction(0)
    for t in range(queries + 1):
        total += comb(queries, t) * beyond**t * (1 - beyond) ** (queries - t)
        if total > limit:
            return max(0, t - 1)
    raise AssertionError


@given(
    queries=st.integers(1, 700),
    percent=st.sampled_from([*PERCENTILES, 75.0, 99.99]),
    confidence=st.sampled_from([0.9, 0.95, 0.99]),
)
@settings(max_examples=60, deadline=None)
def test_equal_to_exact_sums(queries: int, percent: float, confidence: float) -> None:
    assert overlatencies(queries, percent, confidence) == _by_hand(queries, percent, confidence)


@pytest.mark.parametrize(("percent", "least"), [(90, 64), (95, 130), (97, 219), (99, 662), (99.9, 6636)])
def test_the_fewest_queries_are_those_of_loadgen(percent: float, least: int) -> None:
    assert least_queries(percent) == least
    assert overlatencies(least - 1, percent) == 0


def test_many_queries_take_the_normal_limit() -> None:
    n, p = 10_000_000, 0.01
    normal = n * p - 2.326347874 * (n * p * (1 - p)) ** 0.5
    assert abs(overlatencies(n, 99.0) - normal) < 5


def test_too_few_queries_are_said() -> None:
    found = bounded_percentiles(np.arange(100))
    assert found["p90_ns"] is not None
    assert found["p99_ns"] is None
    assert found["confidence"] == 0.99
    assert [key(percent) for percent in PERCENTILES] == [name for name in found if name.startswith("p")]
    assert key(99.9) == "p99_9_ns"


def test_the_bound_is_a_measured_value_and_nearly_always_above_the_percentile() -> None:
    rng = np.random.default_rng(0)
    samples = np.sort(rng.exponential(1e6, (2000, 700)).astype(np.int64), axis=1)
    truth = -np.log(1 - 0.99) * 1e6
    bounds = [bounded_percentile(row, 99.0) for row in samples]
    assert bounds[0] in samples[0]
    assert np.mean([bound < truth for bound in bounds]) <= 0.01


@pytest.mark.parametrize(("percent", "confidence"), [(0, 0.9), (100, 0.9), (50, 0), (50, 1)])
def test_nonsense_is_refused(percent: float, confidence: float) -> None:
    with pytest.raises(ValueError, match="no bound"):
        overlatencies(10, percent, confidence)
