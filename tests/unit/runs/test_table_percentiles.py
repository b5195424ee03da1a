"""What the result table says of percentiles and of the harness."""

from __future__ import annotations

import pytest

from mlbundle.wording import percentiles, record_lines, results_batched

LATENCY = {"p50": 1000, "p90": 2000, "p99": 3000}


@pytest.mark.parametrize(
    ("queries", "shown"),
    [
        (1, ["p50 1.00 us", "p90 -", "p99 -"]),
        (64, ["p50 1.00 us", "p90 2.00 us", "p99 -"]),
        (100, ["p50 1.00 us", "p90 2.00 us", "p99 3.00 us"]),
        (None, ["p50 1.00 us", "p90 2.00 us", "p99 3.00 us"]),
    ],
)
def test_a_percentile_is_shown_where_the_queries_tell_it(queries: int | None, shown: list[str]) -> None:
    assert percentiles.texts(LATENCY, queries) == shown
    assert percentiles.texts({"p50": None}, queries) == []


def test_loadgen_says_its_own_percentiles_and_a_few_queries_of_ours_say_none() -> None:
    few = {"latency_ns": LATENCY, "queries": 1}
    assert record_lines.latency(few) == [("latency", "p50 1.00 us  p90 -  p99 -")]
    assert record_lines.latency({**few, "loadgen": {}})[0][1].endswith("p99 3.00 us")


def test_a_size_of_few_batches_has_no_p99() -> None:
    batch = {"batch_size": 4, "throughput_per_s": 10.0, "latency_ns": LATENCY, "settled": True, "queries": 9}
    assert results_batched._batch(batch).endswith("p50 1.00 us  p99 -")


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("online", "25.0 % of p50"),
        ("batched", "25.0 % of p50"),
        ("single-stream", "25.0 % is what LoadGen adds"),
        ("offline", "20.0 % of the throughput"),
        ("pipeline", "25.0 % of the time of a sample"),
        ("cold-start", None),
        ("server", None),
    ],
)
def test_what_the_harness_costs_is_told_of_what_the_scenario_measures(
    scenario: str, words: str | None
) -> None:
    found = record_lines.harness(scenario, 1.25)
    if words is None:
        assert found == []
    else:
        assert found[0][1].startswith(words)
