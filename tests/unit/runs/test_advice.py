"""What is advised where a result is not valid: for each reason its own, what the user chose last."""

from __future__ import annotations

from typing import Any

import pytest

from mlbundle.analysis.claims import validity_reasons
from mlbundle.errors import CheckFailed
from mlbundle.runs.advice import advice_for, reasons_of
from mlbundle.runs.verdict import require_good


def record(*reasons: str, scenario: str = "online", **options: Any) -> dict[str, Any]:
    return {
        "validity": {"valid": not reasons, "reasons": list(reasons)},
        "accuracy": None,
        "scenario": {"name": scenario, "options": options},
        "result": {"queries": 20, "duration_s": 1.0},
    }


def test_another_measurement_beside_this_one_is_told_last_with_its_own_advice() -> None:
    reasons = validity_reasons(queries=None, settled=False, concurrent=True, emulated=None)
    assert "--concurrent" in reasons_of(record(*reasons))[-1]
    with pytest.raises(CheckFailed) as failed:
        require_good(record(*reasons))
    assert failed.value.message.endswith("(--concurrent)")
    first, last = str(failed.value.hint).split("; ")
    assert "--warmup" in first
    assert last.startswith("leave out --concurrent")


def test_the_duration_that_gives_enough_queries_is_told() -> None:
    reason = "20 queries, at least 662 are needed for percentile 99"
    found = advice_for(record(reason, scenario="poisson", rate_per_s=20.0, duration_s=1.0))
    assert found == "--duration 37s gives them at this rate, a higher --rate sooner"
    assert advice_for(record(reason, scenario="poisson", arrivals="20 arrivals")) == (
        "a trace of 662 arrivals or more"
    )
    (few,) = validity_reasons(queries=20, settled=True, concurrent=False)
    assert advice_for(record(few, queries=20)) == "--queries 64 or more"
    assert advice_for(record(few, duration_s=1.0)) == "--duration 4s"


@pytest.mark.parametrize(
    ("reason", "scenario", "advised"),
    [
        ("target missed: p99 is 14.1 us, 12.0 us is wanted", "poisson", "--find-peak"),
        ("the rate could not be held: 2 /s came, 1 /s were answered", "poisson", "a lower --rate"),
        ("TEST01 failed: 3 of 64 answers are not those of the accuracy run", "offline", "the same answer"),
        ("LoadGen says INVALID: 99.00 percentile latency", "server", "a longer --target-latency"),
        ("a throughput of 2 queries in 0.1 s says little", "batched", "a longer --duration"),
    ],
)
def test_each_reason_has_its_own_advice(reason: str, scenario: str, advised: str) -> None:
    found = str(advice_for(record(reason, scenario=scenario)))
    assert advised in found
    assert "quieter" not in found or scenario == "offline"


def test_one_piece_of_advice_is_given_once_and_none_where_nobody_knows() -> None:
    steady = "the latency did not hold still: medians lie 20 % apart"
    assert str(advice_for(record(f"process 1: {steady}", f"process 2: {steady}"))).count("quieter") == 1
    assert advice_for(record("something new")) is None
