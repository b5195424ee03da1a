"""Whether a measurement was steady: the medians of its thirds, and how well its median is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.analysis.intervals import mean_interval

if TYPE_CHECKING:
    from mlbundle.analysis.statistics import Values

WINDOWS = 3
BATCHES = 20
MOST_SPREAD = 0.10
# Fewer queries than this, or windows shorter than this, say nothing about how steady a model is: what is seen in them
# is the scheduler of the system.
LEAST_QUERIES = 3 * BATCHES
LEAST_DURATION_S = 1.5


@dataclass(frozen=True)
class Stability:
    """Medians of three windows in ns, how far they lie apart, and how wide the interval of the median is.

    Both are shares, of the smallest window and of the median. The interval is that of the medians of 20 stretches in
    a row, so that what drifts or comes in bursts makes it wide, however many queries there are.
    """

    windows_ns: tuple[float, ...]
    spread: float
    interval_width: float

    @property
    def stable(self) -> bool:
        """Whether the windows are within 10 %, or the median is known to within 10 %."""
        return self.spread <= MOST_SPREAD or self.interval_width <= MOST_SPREAD

    def to_document(self) -> dict[str, Any]:
        """Return the `stability` of a result."""
        return {
            "windows_ns": list(self.windows_ns),
            "spread": self.spread,
            "interval_width": self.interval_width,
            "stable": self.stable,
        }

    def reason(self) -> str | None:
        """Return why the measurement does not count; None when it does."""
        if self.stable:
            return None
        return (
            f"the latency did not hold still: medians of three windows lie {100 * self.spread:.0f} % apart, "
            f"and the median is known to {100 * self.interval_width:.0f} % only"
        )


def stability(latencies_ns: Values, duration_s: float) -> Stability | None:
    """Return how steady latencies in the order of their queries were; None where they are too few or too short."""
    import numpy as np

    values = np.asarray(latencies_ns)
    if len(values) < LEAST_QUERIES or duration_s < LEAST_DURATION_S:
        return None
    windows = tuple(float(np.median(part)) for part in np.array_split(values, WINDOWS))
    low, high = mean_interval([float(np.median(part)) for part in np.array_split(values, BATCHES)])
    return Stability(
        windows_ns=windows,
        spread=(max(windows) - min(windows)) / max(1.0, min(windows)),
        interval_width=(high - low) / max(1.0, float(np.median(values))),
    )
