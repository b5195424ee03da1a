"""The search for the highest rate that keeps to a latency: bisection below what the model can do at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Sequence

MOST_TRIALS = 10
RESOLUTION = 0.02
# Where every rate was kept, the upper end was too low, and is raised by this factor.
UPWARDS = 1.25


@dataclass(frozen=True)
class Trial:
    """One rate that was tried, the latency of the percentile in ns, and whether it kept to the target."""

    rate_per_s: float
    latency_ns: int
    kept: bool


@dataclass(frozen=True)
class Bracket:
    """Between which rates the peak lies; `kept` is 0 while no rate has kept to the target.

    `tried` is whether the upper end is a rate that missed it, and not just one that is thought to.
    """

    kept: float
    missed: float
    tried: bool = False

    @property
    def narrow(self) -> bool:
        """Whether the rate is known as well as is wanted, if the upper end is one."""
        return self.missed - self.kept <= RESOLUTION * self.missed

    def trials_left(self, done: int) -> int:
        """Return how many more trials there can be at most."""
        left = MOST_TRIALS - done
        if not self.tried or not self.kept:
            return left
        if self.narrow:
            return 0
        # Each trial halves it, and it is narrow at the latest when it is so beside its lower end.
        return min(left, math.ceil(math.log2((self.missed - self.kept) / (RESOLUTION * self.kept))))


def find_peak(
    try_rate: Callable[[float], Trial],
    highest_per_s: float,
    first_per_s: float | None = None,
    told: Callable[[int, int], None] = lambda _done, _left: None,
) -> tuple[float | None, Sequence[Trial]]:
    """Return the highest rate that kept to the target, to within 2 %, and all trials; None where none did.

    `highest_per_s` should not be held (the throughput of a closed loop); where it is, higher rates are tried. `told`
    hears how many trials there were and how many more there can be.
    """
    bracket, trials = Bracket(0.0, highest_per_s), list[Trial]()
    while len(trials) < MOST_TRIALS and not (bracket.narrow and bracket.tried):
        if bracket.narrow:
            bracket = Bracket(bracket.kept, bracket.missed * UPWARDS)
        rate = (bracket.kept + bracket.missed) / 2
        if not trials and first_per_s is not None and first_per_s < highest_per_s:
            rate = first_per_s
        trials.append(try_rate(rate))
        if trials[-1].kept:
            bracket = Bracket(rate, bracket.missed, bracket.tried)
        else:
            bracket = Bracket(bracket.kept, rate, tried=True)
        told(len(trials), bracket.trials_left(len(trials)))
    return bracket.kept or None, trials
