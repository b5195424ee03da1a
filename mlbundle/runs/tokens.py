"""`tokens` of a result: how soon the first token of an answer came, how fast the others, how many a second.

TTFT is the time to the first token, from where the latency counts; TPOT is the time per output token after it:
(latency - TTFT) / (tokens - 1), of answers with two tokens or more. Both as MLCommons' LoadGen has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.errors import ProtocolBroken
from mlbundle.runs.measured import count, load_latencies, load_times, not_said, number
from mlbundle.wire.passes import FIRST_TOKENS, TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mlbundle.runs.measured import PassFindings

_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_LOADGEN_PERCENTILES = {"p50": "50.00", "p90": "90.00", "p99": "99.00"}
# LoadGen says so of a test with latencies of tokens; there is no effective_ of it.
_MEASURED_TOKENS = "requested_use_token_latencies"


def tokens_of(folder: Path, found: PassFindings) -> dict[str, Any]:
    """Return `tokens` of a result for a pass whose answers came token by token, else nothing. Raises ProtocolBroken."""
    if "tokens" not in found.values:
        return {}
    latencies = load_latencies(folder, found)
    first = load_times(folder, f"{found.folder}/{FIRST_TOKENS}", found.queries)
    counts = load_times(folder, f"{found.folder}/{TOKENS}", found.queries)
    # In floats: what a stranger sends may be more than fits.
    total = float(counts.sum(dtype="float64"))
    if first.min() < 0 or (first > latencies).any() or counts.min() < 1 or total > 1 << 53:
        raise ProtocolBroken("the worker's tokens can't be those of its answers", where=found.folder)
    if count(found.values, "tokens") != int(total):
        raise not_said("tokens")
    several = counts > 1
    after = (latencies[several] - first[several]) / (counts[several] - 1)
    document = {
        "tokens": int(total),
        "tokens_per_answer": {
            "min": int(counts.min()),
            "mean": total / len(counts),
            "max": int(counts.max()),
        },
        "tokens_per_s": total * 1e9 / found.busy_ns,
        "ttft_ns": _summary(first),
        "tpot_ns": _summary(after) if len(after) else None,
    }
    return {"tokens": document}


def _summary(times_ns: Any) -> dict[str, float]:
    from mlbundle.analysis.statistics import percentile, sorted_array

    ordered = sorted_array(times_ns)
    return {
        "mean": float(ordered.mean()),
        "min": float(ordered[0]),
        **{name: float(percentile(ordered, share)) for name, share in _SHARES.items()},
        "max": float(ordered[-1]),
    }


def by_token(values: Mapping[str, Any]) -> bool:
    """Return whether a test of LoadGen measured tokens, by its detail log."""
    return values.get(_MEASURED_TOKENS) is True


def tokens_of_loadgen(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tokens` of a result from LoadGen's detail log, else nothing. Raises ProtocolBroken.

    In Offline LoadGen counts tokens a second and no latencies of tokens.
    """
    if not by_token(values):
        return {}
    if "result_tokens_per_second" in values:
        return {"tokens": {"tokens_per_s": number(values, "result_tokens_per_second")}}
    first, after = "result_first_token_{}_latency_ns", "result_time_per_output_token_{}_percentile_ns"
    names = {"mean": "mean", "min": "min", "max": "max"}
    document = {
        "tokens_per_s": number(values, "result_completed_tokens_per_second"),
        "ttft_ns": {
            **{name: number(values, first.format(key)) for name, key in names.items()},
            **{
                name: number(values, first.format(f"{share}_percentile"))
                for name, share in _LOADGEN_PERCENTILES.items()
            },
        },
        "tpot_ns": {
            **{name: number(values, f"result_time_to_output_token_{key}") for name, key in names.items()},
            **{name: number(values, after.format(share)) for name, share in _LOADGEN_PERCENTILES.items()},
        },
    }
    return {"tokens": document}
