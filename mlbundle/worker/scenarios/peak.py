"""The search for the highest rate that keeps to a latency: bisection below what the model can do at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Sequence

MOST_TRIALS = 10
RESOLUTION = 0.02


@dataclass(frozen=True)
class Trial:
    """One rate that was tried, the latency of the percentile in ns, and whether it kept to the target."""

    rate_per_s: float
    latency_ns: int
    kept: bool


@dataclass(frozen=True)
class Bracket:
    """Between which rates the peak lies; `kept` is 0 while no rate has kept to the target."""

    kept: float
    missed: float

    @property
    def narrow(self) -> bool:
        """Whether the rate is known as well as is wanted."""
        return self.missed - self.kept <= RESOLUTION * self.missed

    def trials_left(self, done: int) -> int:
        """Return how many more trials there can be at most."""
        left = MOST_TRIALS - done
        if self.narrow or not self.kept:
            return 0 if self.narrow else left
        # Each trial halves it, and it is narrow at the latest when it is so beside its lower end.
        return min(left, math.ceil(math.log2((self.missed - self.kept) / (RESOLUTION * self.kept))))


def find_peak(
    try_rate: Callable[[float], Trial],
    highest_per_s: float,
    first_per_s: float | None = None,
    told: Callable[[int, int], None] = lambda _done, _left: None,
) -> tuple[float | None, Sequence[Trial]]:
    """Return the highest rate that kept to the target, to within 2 %, and all trials; None where none did.

    `highest_per_s` can't be held by any means (the throughput of a closed loop). `told` hears how many trials there
    were and how many more there can be.
    """
    bracket, trials = Bracket(0.0, highest_per_s), list[Trial]()
    while len(trials) < MOST_TRIALS and not bracket.narrow:
        rate = (bracket.kept + bracket.missed) / 2
        if not trials and first_per_s is not None and first_per_s < highest_per_s:
            rate = first_per_s
        trials.append(try_rate(rate))
        bracket = Bracket(rate, bracket.missed) if trials[-1].kept else Bracket(bracket.kept, rate)
        told(len(trials), bracket.trials_left(len(trials)))
    return bracket.kept or None, trials
