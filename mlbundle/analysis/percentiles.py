"""Percentiles with a bound: what a number of queries says about a percentile with a confidence.

The rule is that of early stopping in MLPerf LoadGen. Of n independent queries the number t beyond the percentile p is
binomial; with t the largest number for which BinomialCDF(t; n, 1 - p) <= 1 - confidence, the t-th largest latency is
not below the percentile, with that confidence. Where there is no t of at least 1, there are too few queries. Queries
that wait for each other (an open loop near its limit) are not independent, and the bound is then too tight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.analysis.statistics import sorted_array
from mlbundle.wire.judging import CONFIDENCE, overlatencies

if TYPE_CHECKING:
    from mlbundle.analysis.statistics import Values

PERCENTILES = (50.0, 90.0, 95.0, 97.0, 99.0, 99.9)
_HOW = "early-stopping"


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
