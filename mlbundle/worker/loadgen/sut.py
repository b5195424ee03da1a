"""The system under test: what LoadGen calls with queries. Its callbacks run the model and complete.

They do so in line, which costs least; in Server a worker thread may do it (`SystemUnderTest.aside`). The model answers
one query at a time either way, and LoadGen counts the latency from the time at which a query was scheduled, so what
waits is counted. An exception must not reach LoadGen (it aborts): `fail` is called instead and does not return.
"""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Any, Callable, NoReturn, Sequence

import numpy as np

from mlbundle.worker.errors import bundle_error
from mlbundle.worker.loadgen.samples import Samples
from mlbundle.worker.loadgen.signs import Signs
from mlbundle.worker.session import Session

# Offline completes this many samples at a time, or more: each call into LoadGen costs. With answers, fewer: until then
# they are kept.
LEAST_COMPLETED, LEAST_LOGGED = 256, 64
_WHOLE = 1 << 30


class Payloads:
    """The bytes of a sample's answer as LoadGen logs them: its outputs in the manifest's order, one after another.

    `layouts` says per sample what the bytes are, where they are read back.
    """

    def __init__(self, session: Session, keep_layouts: bool) -> None:
        self._in_order = session.in_order
        self._keep_layouts = keep_layouts
        self.layouts: dict[int, list[tuple[Any, Any]]] = {}
        # The last answer to a sample and where its bytes are: outputs that are bound stay where they were.
        self._known: dict[int, tuple[Any, int, int, Any]] = {}

    def one(self, answer: Any, index: int) -> tuple[Any, int, int, Any]:
        """Return the only output of an answer to one sample, where its bytes are, how many, and what holds them."""
        known = self._known.get(index)
        if known is not None and len(answer) == 1 and answer[0] is known[0]:
            return known
        (place,), size, held = self.of(answer, [index], own=False)
        found = (answer[0], place, size, held)
        if held is answer[0]:
            self._known[index] = found
        return found

    def of(self, answer: Any, indices: Sequence[int], *, own: bool) -> tuple[list[int], int, Any]:
        """Return where the bytes of each sample of a batch are, how many they are, and what holds them.

        With `own` they are copies: the next batch writes over the answer.
        """
        outputs = [np.asarray(array, order="C") for array in self._in_order(answer)]
        count = len(indices)
        if any(array.dtype.hasobject for array in outputs):
            raise bundle_error(
                "answer-not-logged", "LoadGen logs bytes, and an output holds objects of Python"
            )
        if self._keep_layouts:
            layout = [(array.dtype, array.shape[1:]) for array in outputs]
            self.layouts.update((index, layout) for index in indices)
        if len(outputs) == 1:
            held = outputs[0].copy() if own else outputs[0]
        else:
            rows = [array[:count].reshape(count, -1).view(np.uint8) for array in outputs]
            held = np.ascontiguousarray(np.concatenate(rows, axis=1))
        size = held.nbytes // len(held)
        first = held.__array_interface__["data"][0]
        return [first + place * size for place in range(count)], size, held


class Responses:
    """LoadGen's responses, made once and filled anew for each call: LoadGen copies them before it returns."""

    def __init__(self, make: Callable[[int, int, int], Any]) -> None:
        self._make = make
        self._made: list[Any] = []

    def of(self, ids: Sequence[int]) -> list[Any]:
        """Return the responses that say of queries that they are answered."""
        made = self._first(len(ids))
        for response, query in zip(made, ids):
            response.id = query
        return made

    def logged(self, ids: Sequence[int], places: Sequence[int], sizes: Sequence[int]) -> list[Any]:
        """Return the responses that hand over the bytes of the answers as well."""
        made = self._first(len(ids))
        for response, query, place, size in zip(made, ids, places, sizes):
            response.id, response.data, response.size = query, place, size
        return made

    def _first(self, count: int) -> list[Any]:
        make, made = self._make, self._made
        made.extend(make(0, 0, 0) for _ in range(count - len(made)))
        return made if len(made) == count else made[:count]


class SystemUnderTest:
    """The callbacks for one test. With `payloads` LoadGen is handed the answers, else only that they are there."""

    def __init__(
        self,
        loadgen: Any,
        samples: Samples,
        signs: Signs,
        fail: Callable[[BaseException], NoReturn],
        payloads: Payloads | None,
    ) -> None:
        self._complete, self._responses = loadgen.QuerySamplesComplete, Responses(loadgen.QuerySampleResponse)
        self._samples, self._signs, self._fail, self._payloads = samples, signs, fail, payloads
        self._queue: SimpleQueue[tuple[Sequence[int], Sequence[int]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.begun_ns = self.ended_ns = 0

    def guarded(self, run: Callable[[Sequence[int], Sequence[int]], None]) -> Callable[..., None]:
        """Return what LoadGen is given as its issue callback."""
        fail, signs = self._fail, self._signs

        def issue(ids: Sequence[int], indices: Sequence[int]) -> None:
            if not self.begun_ns:
                signs.begin()
                self.begun_ns = time.monotonic_ns()
            try:
                run(ids, indices)
            except BaseException as error:  # noqa: BLE001 - LoadGen aborts the process on any
                fail(error)

        return issue

    def aside(self, issue: Callable[..., None]) -> Callable[..., None]:
        """Return a callback that leaves queries to a worker thread, in their order, and returns at once."""
        self._thread = threading.Thread(target=self._work, args=(issue,), name="model", daemon=True)
        self._thread.start()
        put = self._queue.put

        def leave(ids: Sequence[int], indices: Sequence[int]) -> None:
            put((ids, indices))

        return leave

    def _work(self, issue: Callable[..., None]) -> None:
        get = self._queue.get
        while True:
            query = get()
            if query is None:
                return
            issue(*query)

    def flush(self) -> None:
        """Note that all queries have been issued; in line they have all been answered, too."""
        self.ended_ns = time.monotonic_ns()

    def finish(self) -> None:
        """End the worker thread, if there is one; LoadGen has every answer by then, of all its tests."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self.ended_ns = time.monotonic_ns()

    def single(self) -> Callable[[Sequence[int], Sequence[int]], None]:
        """Return the callback for queries of one sample."""
        complete, responses, done = self._complete, self._responses, self._signs.done
        answer = self._samples.answer_one
        told = responses.of([0])
        response = told[0]

        def run(ids: Sequence[int], indices: Sequence[int]) -> None:
            for query, index in zip(ids, indices):
                answer(index)
                response.id = query
                complete(told)
                done(1)

        payloads = self._payloads
        if payloads is None:
            return self.guarded(run)
        find = payloads.one

        def logged(ids: Sequence[int], indices: Sequence[int]) -> None:
            for query, index in zip(ids, indices):
                _output, response.data, response.size, _held = find(answer(index), index)
                response.id = query
                complete(told)
                done(1)

        return self.guarded(logged)

    def batches(self) -> Callable[[Sequence[int], Sequence[int]], None]:
        """Return the callback for queries of several samples, answered together where the model takes batches."""
        complete, responses, done = self._complete, self._responses.of, self._signs.done
        samples, answer = self._samples, self._samples.answer

        def run(ids: Sequence[int], indices: Sequence[int]) -> None:
            if samples.batches:
                answer(indices)
                complete(responses(ids))
                done(len(ids))
            else:
                apart(ids, indices)

        if self._payloads is not None:
            return self.guarded(self._logged_parts(self._payloads, answer, _WHOLE, 1))
        apart = self._parts(answer, _WHOLE, 1)
        return self.guarded(run)

    def chunks(self, size: int) -> Callable[[Sequence[int], Sequence[int]], None]:
        """Return the callback for one query of all samples, answered `size` at a time."""
        self._samples.batch = size
        ask = self._samples.gathered if size > 1 else self._samples.answer
        if self._payloads is not None:
            return self.guarded(self._logged_parts(self._payloads, ask, size, LEAST_LOGGED))
        return self.guarded(self._parts(ask, size, LEAST_COMPLETED))

    def _parts(
        self, ask: Callable[[Sequence[int]], Any], most: int, least: int
    ) -> Callable[[Sequence[int], Sequence[int]], None]:
        """Return what asks for `most` samples at a time, and tells LoadGen of `least` or more."""
        complete, responses, samples, done = (
            self._complete,
            self._responses.of,
            self._samples,
            self._signs.done,
        )

        one_by_one = self._one_by_one(least)

        def run(ids: Sequence[int], indices: Sequence[int]) -> None:
            if most == 1 or not samples.batches:
                one_by_one(ids, indices)
                return
            size, total, told = most, len(ids), 0
            for start in range(0, total, size):
                end = min(start + size, total)
                ask(indices[start:end])
                if end - told >= least or end == total:
                    complete(responses(ids[told:end]))
                    told = end
                done(end - start)

        return run

    def _one_by_one(self, least: int) -> Callable[[Sequence[int], Sequence[int]], None]:
        complete, responses, done = self._complete, self._responses.of, self._signs.done
        answer = self._samples.answer_one

        def run(ids: Sequence[int], indices: Sequence[int]) -> None:
            for start in range(0, len(ids), least):
                for index in indices[start : start + least]:
                    answer(index)
                    done(1)
                complete(responses(ids[start : start + least]))

        return run

    def _logged_parts(
        self, payloads: Payloads, ask: Callable[[Sequence[int]], Any], most: int, least: int
    ) -> Callable[[Sequence[int], Sequence[int]], None]:
        """Return the same with the answers, which are kept until LoadGen has been told."""
        complete, responses, samples, signs = self._complete, self._responses, self._samples, self._signs

        def run(ids: Sequence[int], indices: Sequence[int]) -> None:
            size = most if samples.batches else 1
            places: list[int] = []
            sizes: list[int] = []
            kept: list[Any] = []
            total, told = len(ids), 0
            for start in range(0, total, size):
                end = min(start + size, total)
                part = indices[start:end]
                # The next batch writes over the answer, so what has to wait for it is copied.
                found, size_bytes, held = payloads.of(ask(part), part, own=len(part) < least)
                places += found
                sizes += [size_bytes] * len(part)
                kept.append(held)
                if len(places) >= least or end == total:
                    complete(responses.logged(ids[told:end], places, sizes))
                    told, places, sizes, kept = end, [], [], []
                signs.done(end - start)

        return run
