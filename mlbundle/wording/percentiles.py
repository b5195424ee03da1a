"""Percentiles as people read them: those that a number of queries can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Mapping

# From so many queries on: the 90th percentile where it has a bound, the 99th where one query in all lies beyond it.
LEAST_QUERIES = {"p50": 1, "p90": 64, "p99": 100}
WITH_TAIL = {**LEAST_QUERIES, "p99_9": 1000}


def pairs(
    latency_ns: Mapping[str, float | None],
    queries: int | None,
    least_queries: Mapping[str, int] = LEAST_QUERIES,
) -> list[tuple[str, str]]:
    """Return (`p50`, `1.2 ms`) and so on, `-` for one of too few queries; of None queries all that there is."""
    return [
        (name.replace("_", "."), "-" if queries is not None and queries < least else units.duration(found))
        for name, least in least_queries.items()
        if (found := latency_ns.get(name)) is not None
    ]


def texts(latency_ns: Mapping[str, float | None], queries: int | None) -> list[str]:
    """Return `p50 1.2 ms` and so on, as `pairs` has them."""
    return [" ".join(pair) for pair in pairs(latency_ns, queries)]
