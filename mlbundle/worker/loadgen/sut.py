"""The system under test: what LoadGen calls with queries. Its callbacks run the model and complete, in line.

In line costs least, and loses nothing in Server either: the model answers one query at a time, and LoadGen counts the
latency from the time at which a query was scheduled, so what waits is counted. An exception must not reach LoadGen
(it aborts): `fail` is called instead and does not return.
"""

from __future__ import annotations

import time
from typing import Any, Callable, NoReturn, Sequence

import numpy as np

from mlbundle.wire.events import Progress
from mlbundle.worker.emit import Emitter
from mlbundle.worker.errors import bundle_error
from mlbundle.worker.loadgen.samples import Samples
from mlbundle.worker.session import Session

# Offline completes this many samples at a time, or more: each call into LoadGen costs.
LEAST_COMPLETED = 64
_TOLD_NS = 500_000_000
_WHOLE = 1 << 30


class Signs:
    """Signs of life between queries, at most twice a second, found by counting: a clock is looked at seldom."""

    def __init__(self, emitter: Emitter, phase: str, total: float, unit: str) -> None:
        self._emitter = emitter
        self._phase, self._total, self._unit = phase, total, unit
        self._every = self._left = 1
        self._begun_ns = self._said_ns = 0
        self.queries = self.samples = 0

    def begin(self) -> None:
        """Note that the first query is there."""
        self._begun_ns = self._said_ns = time.monotonic_ns()

    def done(self, samples: int) -> None:
        """Note that a query, or a part of one, has been answered."""
        self.queries += 1
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
            self._say((now - self._begun_ns) / 1e9)
        self._left = self._every

    def _say(self, elapsed_s: float) -> None:
        done = elapsed_s if self._unit == "s" else float(self.samples)
        eta_s = max(0.0, elapsed_s / max(done, 1e-9) * (self._total - done))
        self._emitter.event(
            Progress(
                phase=self._phase,
                done=min(done, self._total),
                total=self._total,
                unit=self._unit,
                eta_s=eta_s,
            )
        )


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
        self._complete, self._response = loadgen.QuerySamplesComplete, loadgen.QuerySampleResponse
        self._samples, self._signs, self._fail, self._payloads = samples, signs, fail, payloads
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

    def flush(self) -> None:
        """Note that all queries have been issued; in line they have all been answered, too."""
        self.ended_ns = time.monotonic_ns()

    def single(self) -> Callable[[Sequence[int], Sequence[int]], None]:
        """Return the callback for queries of one sample."""
        samples, complete, response, signs = self._samples, self._complete, self._response, self._signs
        answer = samples.answer_one

        def run(ids: Sequence[int], indices: Sequence[int]) -> None:
            for query, index in zip(ids, indices):
                answer(index)
                complete([response(query, 0, 0)])
                signs.done(1)

        payloads = self._payloads
        if payloads is None:
            return self.guarded(run)
        find = payloads.one

        def logged(ids: Sequence[int], indices: Sequence[int]) -> None:
            for query, index in zip(ids, indices):
                _output, place, size, _held = find(answer(index), index)
                complete([response(query, place, size)])
                signs.done(1)

        return self.guarded(logged)

    def batches(self) -> Callable[[Sequence[int], Sequence[int]], None]:
        """Return the callback for queries of several samples, answered together where the model takes batches."""
        samples, complete, response, signs = self._samples, self._complete, self._response, self._signs

        def run(ids: Sequence[int], indices: Sequence[int]) -> None:
            if samples.batches:
                samples.answer(indices)
                complete([response(sample, 0, 0) for sample in ids])
                signs.done(len(ids))
            else:
                apart(ids, indices)

        apart = self._in_parts(samples.answer, _WHOLE, 1)
        return self.guarded(run if self._payloads is None else apart)

    def chunks(self, size: int) -> Callable[[Sequence[int], Sequence[int]], None]:
        """Return the callback for one query of all samples, answered `size` at a time."""
        self._samples.batch = size
        ask = self._samples.gathered if size > 1 else self._samples.answer
        return self.guarded(self._in_parts(ask, size, LEAST_COMPLETED))

    def _in_parts(
        self, ask: Callable[[Sequence[int]], Any], most: int, least: int
    ) -> Callable[[Sequence[int], Sequence[int]], None]:
        complete, signs, samples = self._complete, self._signs, self._samples

        def run(ids: Sequence[int], indices: Sequence[int]) -> None:
            size = most if samples.batches else 1
            waiting: list[Any] = []
            kept: list[Any] = []
            for start in range(0, len(ids), size):
                part, queries = indices[start : start + size], ids[start : start + size]
                responses, memory = self._responses(ask(part), part, queries, own=len(part) < least)
                waiting += responses
                kept += memory
                if len(waiting) >= least or start + size >= len(ids):
                    complete(waiting)
                    waiting, kept = [], []
                signs.done(len(part))

        return run

    def _responses(
        self, answer: Any, indices: Sequence[int], ids: Sequence[int], *, own: bool
    ) -> tuple[list[Any], list[Any]]:
        """Return the responses for a batch, and what must be kept until LoadGen has been told.

        With `own` they hold copies, as the next batch writes over the answer.
        """
        response = self._response
        if self._payloads is None:
            return [response(query, 0, 0) for query in ids], []
        places, size, held = self._payloads.of(answer, indices, own=own)
        return [response(query, place, size) for query, place in zip(ids, places)], [held]
