"""What the result table shows of answers that came token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Mapping

_PERCENTILES = ("p50", "p90", "p99")


def lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of `tokens`, as far as the result has them."""
    tokens = result["tokens"]
    rate = units.rate(tokens["tokens_per_s"])
    if tokens.get("tokens_per_answer"):
        rate = f"{rate}  ({tokens['tokens_per_answer']['mean']:.1f} an answer)"
    found = [("tokens", rate)]
    for name, key in (("first token", "ttft_ns"), ("each next", "tpot_ns")):
        times = tokens.get(key)
        if times:
            found.append((name, "  ".join(f"{p} {units.duration(times[p])}" for p in _PERCENTILES)))
    return found
