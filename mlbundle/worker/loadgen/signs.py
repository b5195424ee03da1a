"""Signs of life while a LoadGen test runs: the host gives up on a worker that says nothing."""

from __future__ import annotations

import threading
import time
from typing import Callable, Sequence

from mlbundle.wire.events import Progress
from mlbundle.worker.emit import Emitter

_TOLD_NS = 500_000_000
# With more queries a second than this, none is waited for so long that it would have to be said.
BUSY_RATE_PER_S = 20.0
WAITING_TOLD_S = 1.0


class Signs:
    """Signs of life between queries, at most twice a second, found by counting: a clock is looked at seldom."""

    def __init__(self, emitter: Emitter, phase: str, total: float, unit: str) -> None:
        self._emitter = emitter
        self._phase, self._total, self._unit = phase, total, unit
        self._every = self._left = 1
        self._begun_ns = self._said_ns = 0
        self.samples = 0

    def begin(self) -> None:
        """Note that the first query is there."""
        self._begun_ns = self._said_ns = time.monotonic_ns()

    def done(self, samples: int) -> None:
        """Note that a query, or a part of one, has been answered."""
        self.samples += samples
        self._left -= 1
        if not self._left:
            self._look()

    def _look(self) -> None:
        now = time.monotonic_ns()
        since_ns = max(1, now - self._said_ns)
        if since_ns < _TOLD_NS:
            # Towards twice a second, and never more than doubled at once: queries may become slower.
            self._every = max(1, min(2 * self._every, int(self._every * (_TOLD_NS / since_ns))))
        else:
            self._every = max(1, int(self._every * _TOLD_NS / since_ns))
            self._said_ns = now
            self.tell()
        self._left = self._every

    def tell(self) -> None:
        """Say how far it is."""
        elapsed_s = (time.monotonic_ns() - self._begun_ns) / 1e9
        done = elapsed_s if self._unit == "s" else float(self.samples)
        eta_s = max(0.0, elapsed_s / done * (self._total - done)) if done else None
        self._emitter.event(
            Progress(
                phase=self._phase,
                done=min(done, self._total),
                total=self._total,
                unit=self._unit,
                eta_s=eta_s,
            )
        )


class WaitingSigns:
    """Signs of life while LoadGen waits for the time of a query; none while the model has one, for that may hang.

    A thread that is asleep but for a moment each second, from the first query on: LoadGen issues that at once. A test
    with many queries a second needs none, and has none.
    """

    def __init__(self, signs: Signs, every_s: float = WAITING_TOLD_S) -> None:
        self._signs, self._every_s = signs, every_s
        self._asked, self._begun = 0, False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signs", daemon=True)

    def watching(self, issue: Callable[..., None]) -> Callable[..., None]:
        """Return an issue callback that does the same and notes what has been asked."""

        def noting(ids: Sequence[int], indices: Sequence[int]) -> None:
            self._asked += len(ids)
            issue(ids, indices)
            if not self._begun:
                self._begun = True
                self._thread.start()

        return noting

    def stop(self) -> None:
        """Say no more; returns when the thread is gone."""
        self._over.set()
        if self._begun:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            if self._asked == self._signs.samples:
                self._signs.tell()
