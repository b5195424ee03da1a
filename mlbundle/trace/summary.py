"""The spans of a run in a few lines: how often, how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlbundle.trace.spans import SpanColumns


@dataclass(frozen=True)
class SummaryRow:
    """All spans of one name in one pass; times in ns, `p50_ns` by nearest rank."""

    pass_number: int
    name: str
    count: int
    total_ns: int
    mean_ns: float
    p50_ns: int


def summarise(spans: SpanColumns) -> list[SummaryRow]:
    """Return a row for each name of each pass: passes in order, names in the order in which they first began."""
    if len(spans) == 0:
        return []
    keys = np.stack([spans.pass_number, spans.name])
    groups, group_of = np.unique(keys, axis=1, return_inverse=True)
    group_of = group_of.reshape(-1)
    by_group = np.lexsort((spans.duration_ns, group_of))
    bounds = np.searchsorted(group_of[by_group], np.arange(groups.shape[1] + 1)).tolist()
    found = []
    for (pass_number, name), first, last in zip(groups.T.tolist(), bounds[:-1], bounds[1:], strict=True):
        rows = by_group[first:last]
        durations = spans.duration_ns[rows]
        row = SummaryRow(
            pass_number=pass_number,
            name=spans.strings[name],
            count=len(rows),
            total_ns=_exact_sum(durations),
            mean_ns=float(durations.mean()),
            p50_ns=int(durations[(len(rows) - 1) // 2]),
        )
        found.append((pass_number, int(spans.start_ns[rows].min()), name, row))
    return [row for *_, row in sorted(found, key=lambda entry: entry[:3])]


def _exact_sum(values: NDArray[np.int64]) -> int:
    """Return the sum of values that are not negative, beyond 63 bits too."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())
