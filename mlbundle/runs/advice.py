"""What can be done about a result that is not valid: one piece of advice for each kind of reason."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_QUIET = "a quieter machine or a longer --duration"
_CONCURRENT = "(--concurrent)"
# What a reason holds -> what to do. The first that fits is taken.
_ADVICE: tuple[tuple[str, str], ...] = (
    (_CONCURRENT, "leave out --concurrent: the run then waits until it is alone"),
    ("was emulated", "run on a machine of that architecture"),
    ("warm-up did not settle", "a quieter machine, or --warmup 5s to choose how long it lasts"),
    ("did not hold still", _QUIET),
    ("could not be held", "a lower --rate; --find-peak --target-latency TIME finds the highest that is held"),
    ("no rate can keep to", "a --target-latency above the time that a sample alone takes"),
    (
        "target missed",
        "a lower --rate or a longer --target-latency; --find-peak finds the rate that keeps it",
    ),
    ("not confirmed", _QUIET),
    ("no peak:", "a longer --target-latency, or a lower --rate to begin at"),
    ("no rate that was tried", "a longer --target-latency"),
    ("a throughput of", "a longer --duration"),
    ("the accuracy run", "see loadgen/accuracy in the run's folder"),
    ("LoadGen reports an error", "see mlperf_log_detail.txt under loadgen in the run's folder"),
    ("the queries took", "run it again: the model was faster than its pilot"),
    ("LoadGen ran with a minimum", "run it again"),
)
_TESTS = {
    "TEST01": "TEST01 compares answers and speed with the other tests: run it again on a quieter machine, or see "
    "whether the model gives the same answer twice",
    "TEST04": "TEST04 asks for one sample over and over: see whether answers are kept, or run it again on a quieter "
    "machine",
}
_LOADGEN_SAYS = {
    "server": "a lower --rate, a longer --target-latency, or more --queries",
    "offline": "more --queries or a longer --duration",
}


def reasons_of(record: Mapping[str, Any]) -> list[str]:
    """Return why the result of a record is not valid; what its user chose to accept (--concurrent) comes last."""
    return sorted(record["validity"]["reasons"], key=lambda reason: _CONCURRENT in reason)


def reasons_beside_status(record: Mapping[str, Any]) -> list[str]:
    """Return why a run that did not end is no result, but for the words that only say its status again."""
    reasons: list[str] = record["validity"]["reasons"]
    return [reason for reason in reasons if reason != f"the run is {record['status']}"]


def advice_for(record: Mapping[str, Any]) -> str | None:
    """Return what to do about the reasons of a record, each piece of advice once; None where nobody knows."""
    found = [_advice(reason, record) for reason in reasons_of(record)]
    return "; ".join(dict.fromkeys(text for text in found if text is not None)) or None


def _advice(reason: str, record: Mapping[str, Any]) -> str | None:
    if "are needed for" in reason:
        return _more_queries(reason, record)
    if reason.startswith("LoadGen says"):
        return _LOADGEN_SAYS.get(record["scenario"]["name"], "more --queries or a longer --duration")
    for test, advice in _TESTS.items():
        if reason.startswith(f"{test} failed"):
            return advice
    return next((advice for part, advice in _ADVICE if part in reason), None)


def _more_queries(reason: str, record: Mapping[str, Any]) -> str:
    """Return how to get as many queries as a reason wants, at the rate at which they came."""
    options, result = record["scenario"].get("options") or {}, record.get("result") or {}
    wanted = next((int(word) for word in reason.partition("at least ")[2].split()[:1] if word.isdecimal()), 0)
    if options.get("arrivals") is not None:
        return f"a trace of {wanted} arrivals or more"
    if options.get("queries") is not None:
        return f"--queries {wanted} or more"
    queries, duration_s = result.get("queries") or 0, result.get("duration_s") or 0
    if not queries or not duration_s:
        return "a longer --duration"
    needed_s = math.ceil(1.1 * wanted * duration_s / queries)
    if options.get("rate_per_s") is not None:
        return f"--duration {needed_s}s gives them at this rate, a higher --rate sooner"
    return f"--duration {needed_s}s"
