"""LoadGen's own search for the highest rate (its mode FindPeakPerformance, of Server alone), and what bounds it.

LoadGen doubles a rate that keeps to the limits until one does not, and halves the range between the two until it is
known to a number of decimals. It looks at percentiles only, not at whether a trial would be VALID, never tries a rate
twice, and gives up where the first is missed. So its trials are long enough for the percentile; where it gives up, it
begins again at a lower rate; and what it finds is measured in performance mode, lowered and measured again where that
is not VALID. Each of these is a process of its own.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Callable, Mapping

from mlbundle.wire.passes import PEAK_ATTEMPTS
from mlbundle.worker.errors import WorkerError
from mlbundle.worker.loadgen.wanted import Wanted

# The search begins at this share of the rate that a test would have that nobody chose one for.
START_SHARE = 0.5
# A search that found nothing is followed by one from this share of its rate on.
LOWER = 0.1
PRECISION = 0.02
STEP_DOWN = 0.9
# A trial lasts as long as one of these wants it, and no longer than the test itself.
TRIAL_S, TRIAL_QUERIES, TRIAL_TARGETS = 2.0, 1000, 20
_LIMITS = ("target_latency_s", "ttft_latency_s", "tpot_latency_s")
# LoadGen's own limit for tokens, the longest of its own.
_TOKEN_S = 0.1
# From 1 query in a thousand seconds to 10 millions a second there are fewer.
MOST_TRIALS = 64
_STATE = "loadgen-peak.json"
_FOUND = re.compile(r'"FindPeakPerformance: Found peak performance field: ([0-9.]+)"')


@dataclass(frozen=True)
class Peak:
    """What the search left: the rate to measure at, whether it was found or is where the search began and ended.

    `settled` is whether a performance test has had the last word, `chosen` whether a user chose where to begin.
    """

    rate_per_s: float
    found: bool
    settled: bool = False
    chosen: bool = False

    def save(self, scratch: str) -> None:
        """Leave it to the tests that follow."""
        with open(os.path.join(scratch, _STATE), "w", encoding="utf-8") as stream:
            json.dump(asdict(self), stream)

    @classmethod
    def load(cls, scratch: str) -> Peak | None:
        """Return what an earlier process saved; None where none has."""
        if not os.path.exists(os.path.join(scratch, _STATE)):
            return None
        with open(os.path.join(scratch, _STATE), encoding="utf-8") as stream:
            return cls(**json.load(stream))

    @property
    def searched(self) -> bool:
        """Whether no further search is wanted: one has found a rate, or a user said where to begin."""
        return self.found or self.chosen

    def after(self, *, valid: bool, attempt: int) -> Peak:
        """Return what is left after a performance test: the same if that is the last, else a lower rate to try."""
        if valid or not self.found or attempt + 1 == PEAK_ATTEMPTS:
            return replace(self, settled=True)
        return replace(self, rate_per_s=self.rate_per_s * STEP_DOWN)


def trial_of(wanted: Wanted, rate_per_s: float, options: Mapping[str, Any]) -> Wanted:
    """Return what is wanted of a trial; the options of the scenario hold the limits that a user chose."""
    limits_s = [float(options[key]) for key in _LIMITS if options.get(key) is not None]
    limit_s = max(limits_s, default=_TOKEN_S)
    duration_s = max(TRIAL_S, TRIAL_QUERIES / rate_per_s, TRIAL_TARGETS * limit_s)
    return replace(wanted, rate_per_s=rate_per_s, min_duration_s=min(wanted.min_duration_s, duration_s))


def set_up(loadgen: Any, settings: Any, rate_per_s: float) -> None:
    """Put the search into LoadGen's settings, from this rate on."""
    settings.mode = loadgen.TestMode.FindPeakPerformance
    settings.server_target_qps = rate_per_s
    settings.server_find_peak_qps_boundary_step_size = 1.0
    settings.server_find_peak_qps_decimals_of_precision = max(
        0, math.ceil(-math.log10(PRECISION * rate_per_s))
    )


def end_of_trial(fail: Callable[[BaseException], None]) -> Callable[[], None]:
    """Return the callback for the end of a trial; a search without an end is ended with an error."""
    trials = [0]

    def end() -> None:
        trials[0] += 1
        if trials[0] >= MOST_TRIALS:
            fail(
                WorkerError(
                    "loadgen-peak",
                    "LoadGen's search for the peak has made {} trials and found none".format(trials[0]),
                    fault="environment",
                    hint="choose a --rate, or --scenario poisson --find-peak",
                )
            )

    return end


def first_rate(before: Peak | None, options: Mapping[str, Any], usual_per_s: float) -> float:
    """Return where a search begins; `before` is what the one before it left, if there was one."""
    if before is not None:
        return before.rate_per_s * LOWER
    return usual_per_s * (1.0 if options.get("rate_per_s") else START_SHARE)


def found_in(folder: str, start_per_s: float, options: Mapping[str, Any]) -> Peak:
    """Return what LoadGen's search found, from its detail log in a folder."""
    with open(os.path.join(folder, "mlperf_log_detail.txt"), encoding="utf-8") as stream:
        found = _FOUND.findall(stream.read())
    if found:
        return Peak(float(found[-1]), found=True)
    return Peak(start_per_s, found=False, chosen=bool(options.get("rate_per_s")))


def was_valid(folder: str) -> bool:
    """Return whether LoadGen says VALID of the test whose detail log is in a folder."""
    with open(os.path.join(folder, "mlperf_log_detail.txt"), encoding="utf-8") as stream:
        return any('"key": "result_validity", "value": "VALID"' in line for line in stream)
