"""`batched`: batches of growing size, each size in a closed loop; the size of the highest throughput is the headline.

Sizes are given, or double from 1 until the throughput of the median batch has grown by less than 3 % twice in a row. A
size that does not fit in memory, or that the model does not take, ends the search with what was found before it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from mlbundle.wire.events import NOTICE, Log, Progress, Warned
from mlbundle.wire.passes import MOST_BATCH_SIZES
from mlbundle.wire.words import rate
from mlbundle.worker.errors import MAX_TEXT, WorkerError, bundle_error
from mlbundle.worker.memory import is_shortage
from mlbundle.worker.scenarios.base import PassOutcome, ScenarioOutcome, Subject
from mlbundle.worker.scenarios.closed import TAIL, Extent, Load, Order, run_measured, run_warm_up
from mlbundle.worker.scenarios.headroom import high_water_bytes, limit_bytes
from mlbundle.worker.scenarios.loop import loop_overhead_ns, quiet_interpreter

LEAST_GAIN = 1.03
STEPS_WITHOUT_GAIN = 2
LARGEST = 65_536
# This much of the limit may be used; what is foreseen is no more than a guess, and the supervisor is there as well.
LIMIT_SHARE = 0.9
# The accuracy pass has a folder of its own.
MOST_SIZES = MOST_BATCH_SIZES


@dataclass(frozen=True)
class _Measured:
    """One size: the load that was put on, and how its warm-up went."""

    batch_size: int
    load: Load
    settled: bool
    warm_up_queries: int

    @property
    def throughput_per_s(self) -> float:
        return len(self.load.starts) * self.batch_size / self.load.busy_ns * 1e9

    @property
    def typical_per_s(self) -> float:
        """Samples a second of the median batch: what the search goes by, as a few interrupted batches don't move it."""
        return self.batch_size / max(1, self.load.median_ns(len(self.load.starts))) * 1e9


class _EndOfSizesError(Exception):
    """No further size can be measured: `reason` is `memory` or `refused`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class BatchedScenario:
    """Closed loop, sizes of batches. Options: batch_sizes (None: search), duration_s or queries of each, warmup."""

    name = "batched"

    def __init__(self, options: Mapping[str, Any]) -> None:
        sizes, queries = options.get("batch_sizes"), options.get("queries")
        self._sizes = None if sizes is None else sorted({int(size) for size in sizes})
        self._extent = Extent(
            int(float(options.get("duration_s", 1.0)) * 1e9), None if queries is None else int(queries)
        )
        self._warm_up = options.get("warmup", "auto")
        if self._sizes is not None and not 0 < len(self._sizes) <= MOST_SIZES:
            raise WorkerError(
                "too-many-batch-sizes",
                "{} sizes of batches, a run can measure {}".format(len(self._sizes), MOST_SIZES),
                fault="environment",
                hint="divide them among several runs",
            )

    def run(self, subject: Subject) -> ScenarioOutcome:
        """Measure size after size; the warm-up of the first is the phase of that name, the others' are in `measure`."""
        measured: list[_Measured] = []
        search = _Search(self._sizes)
        subject.emitter.phase("warm-up", "begun")
        size = search.next_size(measured)
        while size is not None:
            try:
                measured.append(self._measure(subject, size, search))
            except _EndOfSizesError as end:
                if not measured:
                    raise _unable(size, end) from end
                search.end(end.reason, size, str(end))
                subject.emitter.event(
                    Warned(
                        reference="batch-size-{}".format(end.reason),
                        message="batches of {} and more were left out: {}".format(size, end)[:MAX_TEXT],
                    )
                )
                break
            search.learn(size)
            message = "batches of {:,}: {}".format(size, rate(measured[-1].throughput_per_s))
            subject.emitter.event(Log(level=NOTICE, message=message))
            size = search.next_size(measured)
        overhead_ns = loop_overhead_ns()
        subject.emitter.phase("measure", "done")
        best = max(measured, key=lambda found: found.throughput_per_s)
        values = {
            "warm_up_settled": best.settled,
            "warm_up_queries": sum(found.warm_up_queries for found in measured),
            "loop_overhead_ns": overhead_ns,
            "search": search.ended,
        }
        return ScenarioOutcome([_outcome(found, headline=found is best) for found in measured], values)

    def _measure(self, subject: Subject, size: int, search: _Search) -> _Measured:
        if not search.fits(size):
            raise _EndOfSizesError("memory", "by what the sizes before it took, it would not fit in memory")
        batches = _prepare(subject, size)
        order = Order(batches, subject.seed)
        warm_up, load = Load(subject.call, order), Load(subject.call, order)
        try:
            with quiet_interpreter():
                settled = run_warm_up(warm_up, self._warm_up, subject.emitter)
                if search.position == 0:
                    subject.emitter.phase("warm-up", "done")
                    subject.emitter.phase("measure", "begun")
                run_measured(
                    load,
                    self._extent,
                    warm_up.median_ns(TAIL),
                    subject.emitter,
                    samples_per_query=size,
                    progress=lambda queries, busy_ns: search.progress(self._share(queries, busy_ns)),
                )
        except Exception as error:
            if is_shortage(error):
                raise _EndOfSizesError("memory", _words(error)) from error
            raise
        return _Measured(size, load, settled, len(warm_up.starts))

    def _share(self, queries: int, busy_ns: int) -> float:
        """Return how much of one size is measured, 0 to 1."""
        extent = self._extent
        share = busy_ns / extent.duration_ns if extent.queries is None else queries / extent.queries
        return min(1.0, share)


class _Search:
    """Which size comes next, what it may take, and why there is none after the last."""

    def __init__(self, sizes: Sequence[int] | None) -> None:
        self._sizes = sizes
        self._begun_ns = time.monotonic_ns()
        self._high_bytes = high_water_bytes()
        self._size_before = 0
        self._bytes_per_sample = 0.0
        self.position = 0
        self.ended: dict[str, Any] = {}

    def next_size(self, measured: Sequence[_Measured]) -> int | None:
        """Return the next size; None when the search is over, `ended` then says why."""
        if self._sizes is not None:
            if self.position < len(self._sizes):
                return self._sizes[self.position]
            self.end("given")
            return None
        if not measured:
            return 1
        if without_gain([found.typical_per_s for found in measured]):
            self.end("no-gain")
            return None
        if measured[-1].batch_size * 2 > LARGEST:
            self.end("largest")
            return None
        return measured[-1].batch_size * 2

    def end(self, reason: str, size: int | None = None, message: str | None = None) -> None:
        """Note why no size follows, and which one could not be measured."""
        self.ended = {
            "ended": reason,
            "batch_size": size,
            "message": None if message is None else message[:MAX_TEXT],
        }

    def learn(self, size: int) -> None:
        """Note that a size was measured, and what memory it took more than those before it."""
        self.position += 1
        high = high_water_bytes()
        if high is not None and self._high_bytes is not None and self._size_before:
            self._bytes_per_sample = (high - self._high_bytes) / (size - self._size_before)
        self._high_bytes, self._size_before = high, size

    def fits(self, size: int) -> bool:
        """Return whether a size should fit: if memory grows from the last size to it as it did up to the last.

        Where sizes double, that holds whether a framework frees its buffers or keeps them beside larger ones.
        """
        limit = limit_bytes()
        if limit is None or self._high_bytes is None:
            return True
        growth = self._bytes_per_sample * (size - self._size_before)
        return self._high_bytes + growth <= limit * LIMIT_SHARE

    def progress(self, share: float) -> Progress:
        """Return how far the search is, `share` of the present size being done; without an end in sight no total."""
        done = self.position + share
        if self._sizes is None:
            return Progress(phase="measure", done=done, unit="sizes")
        total = len(self._sizes)
        eta_s = (time.monotonic_ns() - self._begun_ns) / 1e9 / max(done, 1e-3) * (total - done)
        return Progress(phase="measure", done=done, total=total, unit="sizes", eta_s=eta_s)


def without_gain(throughputs: Sequence[float]) -> bool:
    """Return whether the last steps each gained less than 3 % on the best before them."""
    if len(throughputs) <= STEPS_WITHOUT_GAIN:
        return False
    steps = range(len(throughputs) - STEPS_WITHOUT_GAIN, len(throughputs))
    return all(throughputs[step] < LEAST_GAIN * max(throughputs[:step]) for step in steps)


def _prepare(subject: Subject, size: int) -> Sequence[Any]:
    """Return batches of a size, one of them answered and its answer as long as the batch."""
    try:
        batches = subject.batches_of(size)
        answer = subject.call(batches[0])
        outputs = subject.session.in_order(answer) if subject.session is not None else ()
        lengths = [len(output) for output in outputs]
    except BrokenPipeError:  # the host is gone
        raise
    except Exception as error:
        if is_shortage(error):
            raise _EndOfSizesError("memory", _words(error)) from error
        if size == 1:
            raise
        raise _EndOfSizesError("refused", _words(error)) from error
    for length in lengths:
        if length != size:
            message = "the model answers a batch of {} with {} results".format(size, length)
            raise _EndOfSizesError("refused", message)
    return batches


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _unable(size: int, end: _EndOfSizesError) -> WorkerError:
    """Return the error of a run whose first size can't be measured."""
    if end.reason == "memory":
        return WorkerError(
            "out-of-memory",
            "a batch of {} does not fit in memory: {}".format(size, end),
            fault="environment",
            hint="begin --batch-sizes with a smaller one, or raise --memory",
        )
    return bundle_error(
        "batch-size-refused",
        "the model takes single samples and no batches of {}: {}".format(size, end),
        "give the first axis of inputs and outputs no fixed size, or run with --batch-sizes 1",
    )


def _outcome(found: _Measured, *, headline: bool) -> PassOutcome:
    values = {"batch_size": found.batch_size, "settled": found.settled}
    return PassOutcome("batch", found.load.timings(), found.batch_size, headline, values)
