"""Where Server's queries are answered: in LoadGen's own thread, or in a worker thread beside it. A pilot decides."""

from __future__ import annotations

import random
import threading
import time
from queue import SimpleQueue
from typing import Any, Callable, Sequence

IN_LINE, THREAD = "in line", "worker thread"
# As users write them, beside `auto`.
BY_OPTION = {"in-line": IN_LINE, "thread": THREAD}
# With fewer queries in a round a tail says nothing, and a model that has as much time between them loses nothing.
_ROUNDS, _LEAST_QUERIES, _MOST_QUERIES = 5, 100, 20_000
# In line is left only for what is clearly better, in every round.
_CLEARLY = 0.9
_LEAD_NS = 1_000_000


def choose_issue(
    answer: Callable[[int], Any],
    indices: Sequence[int],
    rate_per_s: float,
    mean_ns: float,
    *,
    most_s: float,
    tell: Callable[[], None],
) -> str:
    """Return what has the lower 99th percentile with arrivals at random, each tried for half of `most_s`.

    Arrivals come as LoadGen's do, from a loop that sleeps until one is due and then calls. Both ways take turns with
    the same arrivals; `tell` is called between them.
    """
    held_per_s = min(rate_per_s, 1e9 / max(1.0, mean_ns))
    count = min(_MOST_QUERIES, int(held_per_s * most_s / (2 * _ROUNDS)))
    if count < _LEAST_QUERIES:
        return IN_LINE
    queries = [indices[position % len(indices)] for position in range(count)]
    for number in range(_ROUNDS):
        due_ns = arrivals_ns(rate_per_s, count, number)
        ways = (in_line, aside) if number % 2 else (aside, in_line)
        tails = {}
        for way in ways:
            tails[way] = _tail(way(answer, queries, due_ns))
            tell()
        if tails[aside] > _CLEARLY * tails[in_line]:
            return IN_LINE
    return THREAD


def arrivals_ns(rate_per_s: float, count: int, seed: int) -> list[int]:
    """Return times from 0 on with exponential gaps."""
    draw, now, found = random.Random(seed), 0.0, []  # noqa: S311 - arrivals, not secrets
    for _ in range(count):
        now += draw.expovariate(rate_per_s)
        found.append(int(now * 1e9))
    return found


def in_line(answer: Callable[[int], Any], queries: Sequence[int], due_ns: Sequence[int]) -> list[int]:
    """Return the latencies in ns, from when they were due, of queries that are answered where they arrive."""
    latencies: list[int] = []
    clock, add = time.monotonic_ns, latencies.append

    def issue(due: int, query: int) -> None:
        answer(query)
        add(clock() - due)

    _arrive(issue, queries, due_ns)
    return latencies


def aside(answer: Callable[[int], Any], queries: Sequence[int], due_ns: Sequence[int]) -> list[int]:
    """Return the same where a worker thread answers them."""
    latencies: list[int] = []
    clock, add = time.monotonic_ns, latencies.append
    queue: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
    failed: list[BaseException] = []

    def work() -> None:
        get = queue.get
        try:
            while (query := get()) is not None:
                answer(query[1])
                add(clock() - query[0])
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    _arrive(lambda due, query: queue.put((due, query)), queries, due_ns)
    queue.put(None)
    thread.join()
    if failed:
        raise failed[0]
    return latencies


def _arrive(issue: Callable[[int, int], None], queries: Sequence[int], due_ns: Sequence[int]) -> None:
    clock, sleep = time.monotonic_ns, time.sleep
    begun = clock() + _LEAD_NS
    for query, after in zip(queries, due_ns):
        due = begun + after
        wait = due - clock()
        if wait > 0:
            sleep(wait / 1e9)
        issue(due, query)


def _tail(latencies: Sequence[int]) -> int:
    return sorted(latencies)[-(len(latencies) // 100) - 1]
