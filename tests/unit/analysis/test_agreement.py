"""Whether two runs say the same, against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mlbundle.analysis.agreement import Tolerance, compare_outputs

TOLERANCE = Tolerance(relative=0.1, absolute=1.0)


def outputs(*values: float, predictions: tuple[int, ...] = (1, 2)) -> dict[str, np.ndarray]:
    return {"predictions": np.array(predictions), "output_0": np.array(values, np.float32)}


def test_the_tolerance_grows_with_the_reference() -> None:
    # 10 may be off by 1 + 0.1 * 10 = 2, and 100 by 11: differences of 1 and 11 use a half and the whole of it.
    found = compare_outputs(outputs(10, 100), outputs(11, 111), TOLERANCE)
    assert (found.max_difference, found.tolerance_used) == (11.0, 1.0)
    assert found.same is True
    assert compare_outputs(outputs(10, 100), outputs(11, 111.5), TOLERANCE).same is False
    # The other way round 111 may be off by 12.1.
    assert compare_outputs(outputs(11, 111), outputs(10, 100), TOLERANCE).tolerance_used == pytest.approx(
        11 / 12.1
    )


def test_equal_outputs_with_other_predictions_are_not_the_same() -> None:
    found = compare_outputs(outputs(1, 2), outputs(1, 2, predictions=(1, 3)), TOLERANCE)
    assert found.differing_predictions == 1
    assert found.tolerance_used == 0
    assert found.same is False


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (np.nan, np.nan, True),
        (np.inf, np.inf, True),
        (np.inf, -np.inf, False),
        (np.nan, 1.0, False),
        (1.0, np.inf, False),
    ],
)
def test_what_is_not_finite_agrees_with_itself_alone(left: float, right: float, same: bool) -> None:
    assert compare_outputs(outputs(left, 1), outputs(right, 1), TOLERANCE).same is same


def test_without_tolerance_only_equal_values_agree() -> None:
    exact = Tolerance(0, 0)
    assert compare_outputs(outputs(1, 2), outputs(1, 2), exact).same is True
    assert compare_outputs(outputs(1, 2), outputs(1, np.nextafter(np.float32(2), 3)), exact).same is False


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"predictions": np.array([1, 2])},
        {"predictions": np.array([1, 2]), "output_0": np.zeros((2, 2))},
        {"predictions": np.array([1, 2]), "output_0": np.array(["a", "b"])},
    ],
)
def test_what_cannot_be_compared_is_not_called_the_same(other: dict[str, np.ndarray]) -> None:
    assert compare_outputs(outputs(1, 2), other, TOLERANCE).same is None


def test_other_predictions_settle_it_even_without_outputs() -> None:
    other = {"predictions": np.array([1, 3])}
    assert compare_outputs(outputs(1, 2), other, TOLERANCE).same is False


def test_every_output_counts() -> None:
    left = {**outputs(1, 2), "output_1": np.array([5.0])}
    right = {**outputs(1, 2), "output_1": np.array([9.0])}
    assert compare_outputs(left, right, TOLERANCE).max_difference == 4.0
    assert compare_outputs(left, outputs(1, 2), TOLERANCE).same is None
