"""Intervals by Student's t, and whether a measurement was steady."""

from __future__ import annotations

import numpy as np
import pytest

from mlbundle.analysis.intervals import mean_interval, student_t
from mlbundle.analysis.stability import LEAST_QUERIES, stability


# Quantiles as tables of Student's distribution print them.
@pytest.mark.parametrize(
    ("confidence", "degrees", "t"),
    [
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 3, 3.182),
        (0.95, 4, 2.776),
        (0.95, 9, 2.262),
        (0.95, 30, 2.042),
        (0.99, 1, 63.657),
        (0.99, 5, 4.032),
        (0.99, 31, 2.744),
        (0.90, 7, 1.895),
    ],
)
def test_students_t(confidence: float, degrees: int, t: float) -> None:
    assert student_t(confidence, degrees) == pytest.approx(t, abs=6e-4)


def test_an_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(1000):
        low, high = mean_interval(list(rng.normal(10, 2, 5)))
        hits += low <= 10 <= high
    assert 930 <= hits <= 970


def test_equal_values_have_an_interval_without_width_and_one_has_none() -> None:
    assert mean_interval([4.0, 4.0, 4.0]) == (4.0, 4.0)
    with pytest.raises(ValueError, match="at least two"):
        mean_interval([4.0])


def test_a_steady_measurement_is_stable() -> None:
    found = stability(np.random.default_rng(1).normal(1000, 30, 3000), 2.0)
    assert found is not None
    assert found.stable
    assert found.reason() is None
    assert found.spread < 0.02


def test_a_measurement_that_changed_its_pace_is_not() -> None:
    found = stability(np.repeat([1000, 3000], 600), 2.0)
    assert found is not None
    assert not found.stable
    assert "did not hold still" in str(found.reason())
    assert found.to_document()["windows_ns"] == [1000, 2000, 3000]


def test_a_small_drift_is_excused_by_a_known_median() -> None:
    found = stability(np.linspace(1000, 1200, 3000), 2.0)
    assert found is not None
    assert found.spread > 0.10
    assert found.interval_width < 0.10
    assert found.stable


def test_few_queries_say_nothing() -> None:
    assert stability([1] * (LEAST_QUERIES - 1), 2.0) is None


def test_a_short_time_says_nothing() -> None:
    assert stability([1] * 1000, 1.4) is None
