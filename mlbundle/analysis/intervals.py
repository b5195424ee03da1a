"""Intervals for a mean of a few independent values, by Student's t."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95
_HALVINGS = 100


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return between which bounds the mean lies with a confidence, for independent values that are about normal.

    Raises ValueError for fewer than two values.
    """
    if len(values) < 2:
        raise ValueError("an interval needs at least two values")
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    half = student_t(confidence, len(values) - 1) * deviation / math.sqrt(len(values))
    return mean - half, mean + half


def student_t(confidence: float, degrees: int) -> float:
    """Return the t that |T| does not exceed with this probability, T of Student's distribution.

    By halving, from the distribution function. Raises ValueError outside (0, 1) and for no degrees of freedom.
    """
    if not 0 < confidence < 1 or degrees < 1:
        raise ValueError(f"no t for confidence {confidence} and {degrees} degrees of freedom")
    low, high = 0.0, 1.0
    while _within(high, degrees) < confidence:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < confidence else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """Return the probability of |T| <= t: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 4."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0
    for step in range(2 if not odd else 3, degrees + 1, 2):
        total += term
        term *= cosine * cosine * (step - 1) / step
    if odd:
        return 2 / math.pi * (angle + sine * total)
    return sine * total
