"""LoadGen's search for the highest rate: its trials, and whether the rate that it found was confirmed by a test."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mlbundle.analysis.loadgen_logs import DetailLog, LogUnreadable, read_detail_log, read_messages
from mlbundle.errors import ProtocolBroken
from mlbundle.runs.measured import number
from mlbundle.wire.passes import PEAK_KINDS, UNCONFIRMED_KINDS

if TYPE_CHECKING:
    from pathlib import Path

_DETAIL = "mlperf_log_detail.txt"
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"
_RATE = f"({_NUMBER})"
# What LoadGen says of each rate that it tries, and of the one that it finds.
_TRIALS = (
    re.compile(rf"FindPeakPerformance: Check validity of the base settings field: {_RATE}"),
    re.compile(rf"FindBoundaries: Checking fields \[{_NUMBER}, {_RATE}\)"),
    re.compile(
        rf"FindPeakPerformanceBinarySearch: Testing the mid value of bounds \[[0-9., ]{{3,60}}\): {_RATE}"
    ),
)
_FOUND = re.compile(rf"FindPeakPerformance: Found peak performance field: {_RATE}")
_MOST_TRIALS = 256
# The log has six digits of a setting.
_ROUNDED = 1e-4


def peak_of(folder: Path, performance: DetailLog) -> tuple[dict[str, Any], list[str]]:
    """Return `peak` of a LoadGen result and why it has none; `performance` is the log of the last test.

    Raises ProtocolBroken where the log of the search is none.
    """
    tried, found = _searches(folder)
    rate = number(performance.values, "effective_target_qps")
    if found is not None and rate > found * (1 + _ROUNDED):
        raise ProtocolBroken(
            "the rate that was measured is above the one that LoadGen found", where="loadgen"
        )
    confirmed = found is not None and performance.valid
    peak = {
        "rate_per_s": rate if confirmed else None,
        "found_per_s": found,
        "trials": [{"rate_per_s": one, "kept": found is not None and one <= found} for one in tried],
        "unconfirmed_per_s": _unconfirmed(folder),
    }
    if confirmed:
        return peak, []
    if found is None:
        first = (
            f"{tried[-1]:,.5g} a second did not; choose a lower --rate, or a limit that the model can keep to"
        )
        return peak, [f"no peak: LoadGen's search begins at a rate that keeps to the limits, and {first}"]
    return peak, [f"the peak that LoadGen found, {found:,.5g} a second, was not confirmed: see loadgen.peak"]


def _searches(folder: Path) -> tuple[list[float], float | None]:
    """Return the rates that LoadGen tried, in order, and the one that the last search found."""
    tried: list[float] = []
    for kind in PEAK_KINDS:
        if tried and not (folder / "loadgen" / kind / _DETAIL).is_file():
            break
        rates, found = _search(folder, kind)
        tried += rates
        if found is not None:
            return tried, found
    return tried, None


def _search(folder: Path, kind: str) -> tuple[list[float], float | None]:
    """Return the rates of one search, and the one that it found."""
    path = folder / "loadgen" / kind / _DETAIL
    try:
        mode = read_detail_log(path).values.get("effective_test_mode")
        messages = list(read_messages(path))
    except (OSError, LogUnreadable) as error:
        raise ProtocolBroken(
            f"the log of LoadGen's search can't be read: {error}"[:1000], where=f"loadgen/{kind}"
        ) from error
    tried = [
        float(match[1])
        for text in messages
        for form in _TRIALS
        if (match := form.fullmatch(text)) is not None
    ]
    found = [float(match[1]) for text in messages if (match := _FOUND.fullmatch(text)) is not None]
    if mode != "FindPeakPerformance" or not 0 < len(tried) <= _MOST_TRIALS or len(found) > 1:
        raise ProtocolBroken("the log of LoadGen's search is not that of a search", where=f"loadgen/{kind}")
    return tried, found[0] if found else None


def _unconfirmed(folder: Path) -> list[float]:
    """Return the rates of the tests that did not confirm a peak, in order."""
    rates = []
    for kind in UNCONFIRMED_KINDS:
        path = folder / "loadgen" / kind / _DETAIL
        if not path.is_file():
            break
        try:
            rates.append(number(read_detail_log(path).values, "effective_target_qps"))
        except (OSError, LogUnreadable) as error:
            raise ProtocolBroken(
                f"LoadGen's log can't be read: {error}"[:1000], where=f"loadgen/{kind}"
            ) from error
    return rates
