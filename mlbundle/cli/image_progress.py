"""Signs of life of what takes long: a line for each step, and one every ten seconds where nothing else is said."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlbundle.cli import output
from mlbundle.cli.progress import byte_progress
from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

INTERVAL_S = 10.0
_WORTH_TELLING_S = 2.0


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """Give a callback for each step that begins; one that takes long is named again, and its seconds are told."""
    with _Steps() as said:
        yield said.begin


@contextmanager
def transfer(verb: str) -> Iterator[Callable[[int, int], None] | None]:
    """Give a callback for (bytes done, bytes in all): a moving line on a terminal, one every 10 s in a pipe."""
    if output.verbosity() < 0:
        yield None
    elif sys.stderr.isatty():
        with byte_progress(verb) as report:
            yield report
    else:
        with _Transfer(verb) as said:
            yield said.hear


class _Beat:
    """Says something now and then, from a thread of its own: what it waits for may not answer for minutes."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signs of life", daemon=True)
        self.begun = time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if kind is None:
            self.end()

    def beat(self, seconds: float) -> None:
        """Say how far it is, after so many seconds."""
        raise NotImplementedError

    def end(self) -> None:
        """Say how long it took."""
        raise NotImplementedError

    def _run(self) -> None:
        told = self.begun
        while not self._ended.wait(INTERVAL_S - min(INTERVAL_S, time.monotonic() - max(told, self.begun))):
            now = time.monotonic()
            # A step that has just begun was told just now.
            if now - max(told, self.begun) >= INTERVAL_S:
                told = now
                self.beat(now - self.begun)


class _Steps(_Beat):
    def __init__(self) -> None:
        super().__init__()
        self._step: str | None = None

    def begin(self, step: str) -> None:
        """End the step before and begin this one."""
        self.end()
        self._step, self.begun = step, time.monotonic()
        output.narrate(step)

    def beat(self, seconds: float) -> None:
        if self._step is not None:
            output.narrate(f"  {self._step.strip()}: {seconds:.0f} s so far")

    def end(self) -> None:
        seconds = time.monotonic() - self.begun
        if self._step is not None and seconds >= _WORTH_TELLING_S:
            output.narrate(f"  took {seconds:.0f} s")


class _Transfer(_Beat):
    def __init__(self, verb: str) -> None:
        super().__init__()
        self._verb = verb
        self._bytes = (0, 0)

    def hear(self, done_bytes: int, total_bytes: int) -> None:
        """Take how far it is."""
        self._bytes = (done_bytes, total_bytes)

    def beat(self, seconds: float) -> None:
        done, total = self._bytes
        if done >= total:
            far = (
                f"{units.size(total)} are through, the engine is at work"
                if total
                else "waiting for the engine"
            )
        else:
            far = f"{done / total:.0%} of {units.size(total)}"
        output.narrate(f"{self._verb}: {far}, {seconds:.0f} s so far")

    def end(self) -> None:
        seconds = time.monotonic() - self.begun
        if seconds >= _WORTH_TELLING_S:
            size = f" of {units.size(self._bytes[1])}" if self._bytes[1] else ""
            output.narrate(f"{self._verb}{size} took {seconds:.0f} s")
