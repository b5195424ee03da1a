"""When the queries of an open loop arrive: drawn from a seed, or replayed; fixed before the clock runs."""

from __future__ import annotations

from array import array
from typing import Any, Sequence

import numpy as np

from mlbundle.worker.errors import WorkerError

# 24 bytes of times are kept for each arrival, and 16 of them are sent to the host.
MOST_ARRIVALS = 10_000_000
_DRAWN_AT_ONCE = 65_536


def poisson_arrivals(
    rate_per_s: float, seed: Sequence[int], *, count: int | None = None, duration_s: float | None = None
) -> array[int]:
    """Return the arrival times of a Poisson process in ns from its beginning, int64, in rising order.

    `count` arrivals, else those within `duration_s`, the first in any case. Gaps are exponential with mean
    1 / rate_per_s, from NumPy's PCG64; the same seed gives the same times, fewer of them for less. Raises WorkerError
    for more than can be kept.
    """
    expected = count if count is not None else rate_per_s * (duration_s or 0.0)
    if expected > MOST_ARRIVALS:
        raise WorkerError(
            "too-many-arrivals",
            "{:,.0f} arrivals, at most {:,} can be kept".format(expected, MOST_ARRIVALS),
            fault="environment",
            hint="a lower rate, a shorter duration or fewer queries",
        )
    # A user's seed may be below zero, NumPy's can't.
    generator = np.random.default_rng([part % (1 << 64) for part in seed])
    parts: list[Any] = []
    drawn, reached_s, enough = 0, 0.0, False
    while not enough:
        times_s = reached_s + np.cumsum(generator.exponential(1.0 / rate_per_s, _DRAWN_AT_ONCE))
        parts.append(times_s)
        drawn, reached_s = drawn + len(times_s), float(times_s[-1])
        enough = drawn >= count if count is not None else reached_s >= (duration_s or 0.0)
    all_s = np.concatenate(parts)
    if count is None:
        count = max(1, int(np.searchsorted(all_s, duration_s or 0.0, side="left")))
    return _to_array(np.rint(all_s[:count] * 1e9).astype(np.int64))


def replayed_arrivals(times_ns: Sequence[int], count: int | None = None) -> array[int]:
    """Return the first `count` of given arrival times, ns from the beginning. Raises WorkerError if they don't rise."""
    try:
        times = np.asarray(times_ns[:count], np.int64)
    except (TypeError, ValueError, OverflowError):
        times = np.zeros((0, 0), np.int64)
    if times.ndim != 1 or not len(times) or times[0] < 0 or (np.diff(times) < 0).any():
        raise WorkerError(
            "arrivals-refused", "the arrivals to replay are no rising times in ns", fault="environment"
        )
    return _to_array(times)


def _to_array(times_ns: Any) -> array[int]:
    found = array("q")
    found.frombytes(np.ascontiguousarray(times_ns, np.int64).tobytes())
    return found
