"""How an open loop is judged: one rule for the worker that searches a peak and for the host that believes nobody."""

from __future__ import annotations

import math

HELD_SHARE = 0.99
# A few samples that wait when the last arrives are chance; more of them, and too slow an answer to all, are not.
CHANCE_BACKLOG = 8
GROWTH = 3.0
# A sample finds others before it as often as the model is busy.
OVERLOADED = 0.9
CONFIDENCE = 0.99
# Below this many standard deviations under its mean a binomial has nothing that counts.
_DEVIATIONS = 12


def held(
    *, offered_per_s: float, achieved_per_s: float, backlog: int, waited_share: float, growth: float
) -> bool:
    """Return whether a rate was held.

    `backlog` is how many others waited when the last query arrived, `growth` the median latency of the last third of
    the queries over that of the first.
    """
    late = achieved_per_s < HELD_SHARE * offered_per_s and backlog >= CHANCE_BACKLOG
    return not late and not (waited_share >= OVERLOADED and growth >= GROWTH)


def overlatencies(queries: int, percent: float, confidence: float = CONFIDENCE) -> int:
    """Return how many of `queries` may lie beyond the percentile and still bound it; 0 where there are too few.

    The largest t with BinomialCDF(t; queries, 1 - percent / 100) <= 1 - confidence. Raises ValueError for a percentile
    outside (0, 100) or a confidence outside (0, 1).
    """
    if not 0 < percent < 100 or not 0 < confidence < 1:
        raise ValueError("no bound for percentile {} with confidence {}".format(percent, confidence))
    beyond = 1 - percent / 100
    if queries < 1:
        return 0
    mean, deviation = queries * beyond, math.sqrt(queries * beyond * (1 - beyond))
    first = max(0, math.floor(mean - _DEVIATIONS * deviation))
    # Each term from the one before it; the first from logarithms of factorials.
    logarithm = _log_binomial(queries, first, beyond)
    odds, cumulative = math.log(beyond / (1 - beyond)), 0.0
    for number in range(first, math.ceil(mean) + 1):
        cumulative += math.exp(logarithm)
        if cumulative > 1 - confidence:
            return max(0, number - 1)
        logarithm += math.log((queries - number) / (number + 1)) + odds if number < queries else 0.0
    return max(0, math.ceil(mean))


def judged_rank(queries: int, percent: float) -> int:
    """Return the position, among sorted latencies, of the one that a percentile is judged by.

    That of its bound where the queries are enough for one, else that of the nearest rank.
    """
    beyond = overlatencies(queries, percent)
    return queries - beyond if beyond else nearest_rank(queries, percent)


def nearest_rank(queries: int, percent: float) -> int:
    """Return the position of the nearest-rank percentile among `queries` sorted values."""
    # Rounded first: 99.9 % of 1000 is 999 and not a little more.
    return max(0, math.ceil(round(percent * queries / 100, 6)) - 1)


def _log_binomial(number: int, chosen: int, probability: float) -> float:
    ways = math.lgamma(number + 1) - math.lgamma(chosen + 1) - math.lgamma(number - chosen + 1)
    return ways + chosen * math.log(probability) + (number - chosen) * math.log1p(-probability)
