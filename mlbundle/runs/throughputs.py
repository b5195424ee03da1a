"""Why a throughput does not count: measured over too little, or by a model that changed its pace."""

from __future__ import annotations

from typing import Any

LEAST_QUERIES = 16
LEAST_NS = 1_000_000_000


def throughput_reasons(queries: int, busy_ns: int, latencies_ns: Any = None) -> list[str]:
    """Return why a throughput is not valid: under 16 queries in under a second, or windows that lie apart.

    `latencies_ns` are in the order of their queries; None where a latency does not tell the pace.
    """
    from mlbundle.analysis.stability import stability

    if queries < LEAST_QUERIES and busy_ns < LEAST_NS:
        much = "1 query" if queries == 1 else f"{queries} queries"
        reason = f"at least {LEAST_QUERIES} queries or 1 s are needed"
        return [f"a throughput of {much} in {busy_ns / 1e9:.3g} s says little: {reason}"]
    steady = None if latencies_ns is None else stability(latencies_ns, busy_ns / 1e9)
    unsteady = None if steady is None else steady.reason()
    return [] if unsteady is None else [unsteady]
