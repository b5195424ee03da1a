"""The streaming executor: each stage a thread, bounded queues between them, order kept.

Reading, pre-processing, inference and post-processing overlap (the paper's F6): image libraries and frameworks
release the interpreter lock while they work.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Callable, Iterable, Iterator, Sequence

from mlbundle.worker.spans import SpanRecorder

QUEUE_LENGTH = 8
_POLL_S = 0.1
_END = object()


class Stage:
    """One operator of the stream: a name for its track and a function of (sample number, value).

    It counts, in ns, how long it worked, waited for something to do (`starved`) and for room behind it (`blocked`).
    """

    def __init__(self, name: str, function: Callable[[int, Any], Any]) -> None:
        self.name = name
        self.function = function
        self.busy_ns = self.starved_ns = self.blocked_ns = self.items = 0

    def work(self, number: int, value: Any) -> list[tuple[int, Any]]:
        """Take one item; return those that go on to the next stage."""
        return [(number, self.function(number, value))]

    def leftover(self) -> list[tuple[int, Any]]:
        """Return what is still here when nothing more comes."""
        return []


class Gather(Stage):
    """Makes one item of several: its value is a list of (sample number, value), shorter only at the end."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, lambda _number, value: value)
        self._size = size
        self._waiting: list[tuple[int, Any]] = []

    def work(self, number: int, value: Any) -> list[tuple[int, Any]]:
        """Keep an item until there are enough."""
        self._waiting.append((number, value))
        return self.leftover() if len(self._waiting) == self._size else []

    def leftover(self) -> list[tuple[int, Any]]:
        """Return what was kept, as one item with the number of its first."""
        gathered, self._waiting = self._waiting, []
        return [(gathered[0][0], gathered)] if gathered else []


class Spread(Stage):
    """Makes several items of one again, whose value is a list of (sample number, value)."""

    def __init__(self, name: str) -> None:
        super().__init__(name, lambda _number, value: value)

    def work(self, number: int, value: Any) -> list[tuple[int, Any]]:
        """Return the items of the list."""
        return list(value)


def run_stream(
    source: Iterable[tuple[int, Any]], stages: Sequence[Stage], spans: SpanRecorder
) -> Iterator[tuple[int, Any]]:
    """Yield (sample number, result) in the order of `source`; raises what the first failing stage raised.

    All threads have ended when the iterator is exhausted or closed.
    """
    stream = _Stream(source, stages, spans)
    stream.start()
    try:
        yield from stream.results()
    finally:
        stream.close()
    if stream.failures:
        raise stream.failures[0]


class _Stream:
    """Threads and queues of one execution; a failure anywhere stops all of them."""

    def __init__(
        self, source: Iterable[tuple[int, Any]], stages: Sequence[Stage], spans: SpanRecorder
    ) -> None:
        self.failures: list[BaseException] = []
        self._spans = spans
        self._stop = threading.Event()
        self._queues: list[Any] = [queue.Queue(QUEUE_LENGTH) for _ in range(len(stages) + 1)]
        self._threads = [self._thread("source", self._queues[0], self._feed, source)]
        for stage, inbox, outbox in zip(stages, self._queues, self._queues[1:]):
            self._threads.append(self._thread(stage.name, outbox, self._work, stage, inbox, outbox))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def results(self) -> Iterator[tuple[int, Any]]:
        while True:
            item = self._take(self._queues[-1])
            if item is _END:
                return
            yield item

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _thread(self, name: str, outbox: Any, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - handed to the consumer, which raises it
                self.failures.append(error)
                self._stop.set()
            finally:
                self._put(outbox, _END)

        return threading.Thread(target=guarded, name=name, daemon=True)

    def _feed(self, source: Iterable[tuple[int, Any]]) -> None:
        for item in source:
            self._put(self._queues[0], item)

    def _work(self, stage: Stage, inbox: Any, outbox: Any) -> None:
        free = time.monotonic_ns()
        while True:
            item = self._take(inbox)
            start = time.monotonic_ns()
            results = stage.leftover() if item is _END else stage.work(*item)
            end = time.monotonic_ns()
            for result in results:
                self._put(outbox, result)
            stage.starved_ns += start - free
            stage.busy_ns += end - start
            free = time.monotonic_ns()
            stage.blocked_ns += free - end
            if item is _END:
                return
            stage.items += 1
            self._spans.add(stage.name, stage.name, start, end, item[0])

    def _put(self, target: Any, item: Any) -> None:
        while not self._stop.is_set():
            try:
                target.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return

    def _take(self, inbox: Any) -> Any:
        while True:
            try:
                return inbox.get(timeout=_POLL_S)
            except queue.Empty:
                if self._stop.is_set():
                    return _END
