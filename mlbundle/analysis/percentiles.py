"""Percentiles with a bound: what a number of queries says about a percentile with a confidence.

The rule is that of early stopping in MLPerf LoadGen. Of n independent queries the number t beyond the percentile p is
binomial; with t the largest number for which BinomialCDF(t; n, 1 - p) <= 1 - confidence, the t-th largest latency is
not below the percentile, with that confidence. Where there is no t of at least 1, there are too few queries. Queries
that wait for each other (an open loop near its limit) are not independent, and the bound is then too tight.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mlbundle.analysis.statistics import sorted_array

if TYPE_CHECKING:
    from mlbundle.analysis.statistics import Values

CONFIDENCE = 0.99
PERCENTILES = (50.0, 90.0, 95.0, 97.0, 99.0, 99.9)
_HOW = "early-stopping"
# Below this many standard deviations under its mean a binomial has nothing that counts.
_DEVIATIONS = 12


def overlatencies(queries: int, percent: float, confidence: float = CONFIDENCE) -> int:
    """Return how many of `queries` may lie beyond the percentile and still bound it; 0 where there are too few.

    Raises ValueError for a percentile outside (0, 100) or a confidence outside (0, 1).
    """
    import numpy as np

    if not 0 < percent < 100 or not 0 < confidence < 1:
        raise ValueError(f"no bound for percentile {percent} with confidence {confidence}")
    beyond = 1 - percent / 100
    if queries < 1:
        return 0
    mean, deviation = queries * beyond, math.sqrt(queries * beyond * (1 - beyond))
    first = max(0, math.floor(mean - _DEVIATIONS * deviation))
    counts = np.arange(first, math.ceil(mean) + 1)
    # Each term of the binomial from the one before it; the first from logarithms of factorials.
    ratios = (queries - counts[:-1]) / (counts[:-1] + 1) * (beyond / (1 - beyond))
    logarithms = _log_binomial(queries, first, beyond) + np.concatenate(([0.0], np.cumsum(np.log(ratios))))
    cumulative = np.cumsum(np.exp(logarithms))
    return max(0, first + int(np.searchsorted(cumulative, 1 - confidence, side="right")) - 1)


def least_queries(percent: float, confidence: float = CONFIDENCE) -> int:
    """Return the fewest queries that bound a percentile: 64 for the 90th, 662 for the 99th, with 0.99."""
    most = 1
    while overlatencies(most, percent, confidence) < 1:
        most *= 2
    least = most // 2
    while most - least > 1:
        middle = (least + most) // 2
        if overlatencies(middle, percent, confidence) < 1:
            least = middle
        else:
            most = middle
    return most


def bounded_percentile(sorted_values: Values, percent: float, confidence: float = CONFIDENCE) -> int | None:
    """Return the bound of a percentile: one of the values; None where there are too few of them."""
    beyond = overlatencies(len(sorted_values), percent, confidence)
    return int(sorted_values[len(sorted_values) - beyond]) if beyond else None


def bounded_percentiles(latencies_ns: Values) -> dict[str, Any]:
    """Return `percentiles` of a result: a bound in ns of each percentile, null where there are too few queries."""
    ordered = sorted_array(latencies_ns)
    bounds = {key(percent): bounded_percentile(ordered, percent) for percent in PERCENTILES}
    return {"bound": _HOW, "confidence": CONFIDENCE, **bounds}


def key(percent: float) -> str:
    """Return the name of a percentile in a document: `p99_9_ns`."""
    return "p{}_ns".format(f"{percent:g}".replace(".", "_"))


def _log_binomial(number: int, chosen: int, probability: float) -> float:
    ways = math.lgamma(number + 1) - math.lgamma(chosen + 1) - math.lgamma(number - chosen + 1)
    return ways + chosen * math.log(probability) + (number - chosen) * math.log1p(-probability)
