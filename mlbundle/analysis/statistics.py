"""Statistics of latencies: the trimmed mean of the headline and nearest-rank percentiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    Values = Sequence[float] | NDArray[np.int64] | NDArray[np.float64]

TRIMMED_PROPORTION = 0.2


@dataclass(frozen=True)
class LatencySummary:
    """Latencies in ns. Percentiles are latencies that were measured; means are not rounded."""

    trimmed_mean: float
    mean: float
    min: int
    p50: int
    p90: int
    p99: int
    p99_9: int
    max: int

    def to_document(self) -> dict[str, float | int]:
        """Return the `latency_ns` of a run record."""
        return {
            "trimmed_mean": self.trimmed_mean,
            "mean": self.mean,
            "min": self.min,
            "p50": self.p50,
            "p90": self.p90,
            "p99": self.p99,
            "p99_9": self.p99_9,
            "max": self.max,
        }


def trimmed_mean(values: Values, proportion: float = TRIMMED_PROPORTION) -> float:
    """Return the mean without the smallest and largest floor(proportion x n) values.

    The definition of the XSP and MLModelScope papers: Mean(Sort(list)[floor(0.2 n) : -floor(0.2 n)]), where nothing
    is cut when the floor is 0 (fewer than 5 values at 0.2; read as a Python slice that would be empty). Raises
    ValueError for no values and for a proportion outside [0, 0.5).
    """
    import numpy as np

    if not 0 <= proportion < 0.5:
        raise ValueError(f"a proportion of {proportion} leaves nothing to average")
    ordered = np.sort(_as_array(values))
    cut = math.floor(_exact(proportion) * len(ordered))
    return float(ordered[cut : len(ordered) - cut].mean())


def percentile(sorted_values: Values, p: float) -> float:
    """Return the smallest value that at least a fraction `p` of all values do not exceed (0 < p <= 1).

    The nearest-rank method (inverse of the empirical distribution function, type 1 in Hyndman and Fan, 1996):
    sorted_values[ceil(p n) - 1]. It always names a value that was measured. Raises ValueError for no values and
    for `p` outside its range.
    """
    if not 0 < p <= 1:
        raise ValueError(f"no percentile: {p} is not in (0, 1]")
    if len(sorted_values) == 0:
        raise ValueError("no percentile of no values")
    return sorted_values[math.ceil(_exact(p) * len(sorted_values)) - 1]


def summarise_latencies(latencies_ns: Values) -> LatencySummary:
    """Return the summary of latencies in ns, one a query, in any order. Raises ValueError for none."""
    import numpy as np

    ordered = np.sort(_as_array(latencies_ns))
    return LatencySummary(
        trimmed_mean=trimmed_mean(ordered),
        mean=float(ordered.mean()),
        min=int(ordered[0]),
        p50=int(percentile(ordered, 0.5)),
        p90=int(percentile(ordered, 0.9)),
        p99=int(percentile(ordered, 0.99)),
        p99_9=int(percentile(ordered, 0.999)),
        max=int(ordered[-1]),
    )


def sorted_array(values: Values) -> Any:
    """Return values as a sorted array. Raises ValueError for none."""
    import numpy as np

    return np.sort(_as_array(values))


def _exact(fraction: float) -> Fraction:
    """Return the decimal number that was written, so that 7 % of 100 is 7 and not a little more."""
    return Fraction(str(fraction))


def _as_array(values: Values) -> Any:
    import numpy as np

    array = np.asarray(values)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError("statistics need a list of at least one value")
    return array
