"""The pilot: the same queries in a raw loop, before LoadGen's. It warms up, and tells what LoadGen is to expect."""

from __future__ import annotations

import time
from typing import Any, Callable, Sequence

from mlbundle.worker.loadgen.samples import Samples
from mlbundle.worker.loadgen.wanted import Pilot
from mlbundle.worker.scenarios.loop import closed_loop

WINDOW_NS = 100_000_000
SETTLED_WINDOWS, SETTLED_SPREAD = 3, 0.05
# Batches that are tried for Offline.
BATCHES = (1, 4, 16, 64, 256)
_MOST_WORSE = 2


def run_pilot(
    call: Callable[[Any], Any], queries: Sequence[Any], most_s: float, tell: Callable[[], None]
) -> Pilot:
    """Run `call` on the queries over and over until it settles, at most `most_s` long, and then as long as a window.

    `tell` is called between windows. The times are those of the last three windows, of the last query if it is slow.
    """
    begun, medians = time.monotonic_ns(), list[int]()
    times: list[list[int]] = []
    total, chunk = 0, 1
    while True:
        starts: list[int] = []
        ends: list[int] = []
        chosen = [queries[(total + position) % len(queries)] for position in range(chunk)]
        closed_loop(call, chosen, starts, ends)
        total += chunk
        times.append(sorted(end - start for start, end in zip(starts, ends)))
        medians.append(times[-1][len(times[-1]) // 2])
        chunk = max(1, min(100_000, WINDOW_NS // max(1, medians[-1])))
        tell()
        elapsed_s, settled = (time.monotonic_ns() - begun) / 1e9, _settled(medians)
        if elapsed_s >= most_s or (settled and elapsed_s >= most_s / 4):
            return _pilot(times[-SETTLED_WINDOWS:], total, settled)


def _pilot(times: Sequence[Sequence[int]], total: int, settled: bool) -> Pilot:
    together = sorted(value for window in times for value in window)
    return Pilot(
        fast_ns=together[len(together) // 10],
        median_ns=together[len(together) // 2],
        mean_ns=sum(together) / len(together),
        queries=total,
        settled=settled,
    )


def _settled(medians: Sequence[int]) -> bool:
    last = medians[-SETTLED_WINDOWS:]
    return len(last) == SETTLED_WINDOWS and max(last) - min(last) <= SETTLED_SPREAD * max(1, min(last))


def run_offline_pilot(
    samples: Samples, indices: Sequence[int], most_s: float, tell: Callable[[], None]
) -> Pilot:
    """Return the pilot of the batch size that answers most samples a second; doubling twice at a time, to a maximum.

    It ends where two sizes in a row are no better: the first batch may be worse than single samples, as it has to be
    put together.
    """
    sizes = [size for size in BATCHES if samples.batches or size == 1]
    best: Pilot | None = None
    worse = 0
    for size in sizes:
        queries = [
            [indices[(start + i) % len(indices)] for i in range(size)] for start in range(0, 4 * size, size)
        ]
        samples.batch = size
        call = samples.gathered if size > 1 else samples.answer
        found = run_pilot(call, queries, most_s / len(sizes), tell)
        found = Pilot(**{**vars(found), "batch": size})
        if best is None or found.median_ns / size <= best.median_ns / best.batch:
            best, worse = found, 0
            continue
        worse += 1
        if worse == _MOST_WORSE:
            break
    assert best is not None
    return best
