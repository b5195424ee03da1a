"""When a throughput counts."""

from __future__ import annotations

import numpy as np
import pytest

from mlbundle.runs.throughputs import throughput_reasons


@pytest.mark.parametrize(
    ("queries", "busy_s", "counts"), [(1, 0.4, False), (15, 0.99, False), (16, 0.001, True), (2, 1.0, True)]
)
def test_a_throughput_of_too_little_does_not_count(queries: int, busy_s: float, counts: bool) -> None:
    reasons = throughput_reasons(queries, int(busy_s * 1e9))
    assert (reasons == []) is counts
    if not counts:
        assert "at least 16 queries or 1 s are needed" in reasons[0]


def test_a_model_that_slows_down_has_no_throughput() -> None:
    latencies = np.repeat([10_000_000, 20_000_000], 100)
    assert throughput_reasons(200, 3_000_000_000, np.full(200, 15_000_000)) == []
    assert "did not hold still" in throughput_reasons(200, 3_000_000_000, latencies)[0]
