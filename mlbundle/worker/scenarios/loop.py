"""The closed loop: the one place where queries are timed one after another.

Between the two time stamps stands nothing but the call. Order, reporting and collecting happen between chunks.
"""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence


def closed_loop(
    call: Callable[[Any], Any], batches: Sequence[Any], starts_ns: list[int], ends_ns: list[int]
) -> int:
    """Run `call` on each batch in turn, append start and end of each to the lists; returns the wall time in ns."""
    clock = time.monotonic_ns
    add_start, add_end = starts_ns.append, ends_ns.append
    begun = clock()
    for batch in batches:
        start = clock()
        call(batch)
        end = clock()
        add_start(start)
        add_end(end)
    return clock() - begun


def loop_overhead_ns(queries: int = 20_000, rounds: int = 5) -> float:
    """Return what the loop itself costs a query, in ns: a call that does nothing, median of several rounds."""

    def nothing(_batch: Any) -> None:
        return None

    costs = sorted(closed_loop(nothing, [None] * queries, [], []) / queries for _ in range(rounds))
    return costs[rounds // 2]


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """Keep Python's garbage collector out of what is measured."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
