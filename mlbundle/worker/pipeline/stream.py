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
    """One operator of the stream: a name for its track and a function of (sample number, value)."""

    def __init__(self, name: str, function: Callable[[int, Any], Any]) -> None:
        self.name = name
        self.function = function


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
        while True:
            item = self._take(inbox)
            if item is _END:
                return
            number, value = item
            start = time.monotonic_ns()
            result = stage.function(number, value)
            self._spans.add(stage.name, stage.name, start, time.monotonic_ns(), number)
            self._put(outbox, (number, result))

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
