"""`pipeline`: files in, predictions out, with every operator at work at the same time; nothing is prepared beforehand.

The samples of the dataset come in its order, over and over. Each operator has a thread, and so has the source; between
them are bounded queues. A sample's latency is from its read to its prediction, with the queues between them.
"""

from __future__ import annotations

import time
from array import array
from typing import Any, Callable, Iterator, Mapping

import numpy as np

from mlbundle.wire.events import Progress
from mlbundle.worker.emit import Emitter
from mlbundle.worker.pipeline.build import add_batch_axis
from mlbundle.worker.pipeline.stream import Gather, Spread, Stage, run_stream
from mlbundle.worker.scenarios.base import PassOutcome, ScenarioOutcome, Subject, Timings, measured_kind
from mlbundle.worker.scenarios.closed import REPORT_NS, tell_window
from mlbundle.worker.session import Session
from mlbundle.worker.spans import SpanRecorder

WARM_UP_NS = 300_000_000
WARM_UP_BATCHES = 2
OVERHEAD_SAMPLES = 500
# So many operations are kept as spans; what comes later is left out of the trace.
TRACED_SPANS = 20_000


class PipelineScenario:
    """The whole chain. Options: duration_s, samples (None: as many as fit), batch_size."""

    name = "pipeline"
    needs_batches = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        samples = options.get("samples")
        self._duration_ns = int(float(options.get("duration_s", 5.0)) * 1e9)
        self._samples = None if samples is None else int(samples)
        self._batch_size = int(options.get("batch_size", 1))

    def run(self, subject: Subject) -> ScenarioOutcome:
        """Run a stream that is not timed, then the one that is."""
        session, batch_size = subject.session, self._batch_size
        subject.emitter.phase("warm-up", "begun")
        warm_up = _Chain(session, batch_size)
        for _ in warm_up.run(_lasting(WARM_UP_NS, batch_size, WARM_UP_BATCHES)):
            pass
        subject.emitter.phase("warm-up", "done")
        subject.emitter.phase("measure", "begun")
        spans = SpanRecorder(subject.traced, TRACED_SPANS)
        measured = _Chain(session, batch_size, spans)
        self._measure(measured, subject.emitter)
        overhead_ns = stream_overhead_ns(len(measured.stages))
        subject.emitter.phase("measure", "done")
        values = {
            # There is no warm-up to settle: the first samples are just not timed.
            "warm_up_settled": True,
            "warm_up_queries": len(warm_up.ends),
            "loop_overhead_ns": overhead_ns,
        }
        found = {"batch_size": batch_size, "threads": measured.threads, "stages": measured.counted()}
        outcome = PassOutcome(
            measured_kind(subject),
            measured.timings(),
            headline=True,
            values={"pipeline": found},
            spans=spans if spans.enabled else None,
        )
        return ScenarioOutcome([outcome], values)

    def _measure(self, chain: _Chain, emitter: Emitter) -> None:
        begun_ns = reported_ns = time.monotonic_ns()
        reported = done = 0
        source = (
            _lasting(self._duration_ns, self._batch_size)
            if self._samples is None
            else iter(range(self._samples))
        )

        def report(now_ns: int) -> None:
            if done > reported:
                tell_window(emitter, chain.latencies_ns(reported, done), now_ns - reported_ns)
            emitter.event(self._progress(done, now_ns - begun_ns))

        for _ in chain.run(source):
            done += 1
            now_ns = time.monotonic_ns()
            if now_ns - reported_ns >= REPORT_NS:
                report(now_ns)
                reported, reported_ns = done, now_ns
        report(time.monotonic_ns())

    def _progress(self, done: int, elapsed_ns: int) -> Progress:
        if self._samples is not None:
            eta_s = (self._samples - done) * elapsed_ns / max(1, done) / 1e9
            return Progress(phase="measure", done=done, total=self._samples, unit="samples", eta_s=eta_s)
        total_s, done_s = self._duration_ns / 1e9, min(elapsed_ns, self._duration_ns) / 1e9
        return Progress(phase="measure", done=done_s, total=total_s, unit="s", eta_s=total_s - done_s)


class _Chain:
    """The stages of one stream, with the times at which each sample was read and answered."""

    def __init__(self, session: Session, batch_size: int, spans: SpanRecorder | None = None) -> None:
        self._session = session
        self._spans = spans or SpanRecorder(enabled=False)
        self._total = len(session.dataset)
        self.starts, self.ends = array("q"), array("q")
        self.stages = self._build(batch_size)
        # One for each stage, one for the source; the one that started them takes the answers.
        self.threads = len(self.stages) + 2

    def run(self, source: Iterator[int]) -> Iterator[Any]:
        """Yield the answers to the samples of a source of consecutive numbers."""
        numbered = ((position % self._total, None) for position in source)
        return run_stream(numbered, self.stages, self._spans)

    def latencies_ns(self, first: int, last: int) -> list[int]:
        """Return the latencies of samples that have been answered."""
        return [end - start for start, end in zip(self.starts[first:last], self.ends[first:last])]

    def timings(self) -> Timings:
        """Return the times of all samples; the load was on from the first read to the last answer."""
        return Timings(self.starts, self.ends, self.ends[-1] - self.starts[0])

    def counted(self) -> list[dict[str, Any]]:
        """Return what each stage counted."""
        return [
            {
                "name": stage.name,
                "items": stage.items,
                "busy_ns": stage.busy_ns,
                "starved_ns": stage.starved_ns,
                "blocked_ns": stage.blocked_ns,
            }
            for stage in self.stages
        ]

    def _build(self, batch_size: int) -> list[Stage]:
        pipeline = self._session.pipeline
        middle = [Stage("predict", self._predict_one)]
        if batch_size > 1:
            middle = [Gather("batch", batch_size), Stage("predict", self._predict_batch), Spread("unbatch")]
        stages = [*_anew(pipeline.input_stages), *middle, *_anew(pipeline.output_stages)]
        stages[0].function = _noting_start(stages[0].function, self.starts)
        stages[-1].function = _noting_end(stages[-1].function, self.ends)
        return stages

    def _predict_one(self, number: int, tensors: Mapping[str, Any]) -> list[Any]:
        answers: list[Any] = self._predict_batch(number, [(number, tensors)])[0][1]
        return answers

    def _predict_batch(self, _number: int, samples: list[tuple[int, Any]]) -> list[tuple[int, list[Any]]]:
        """Return the outputs of each sample; copies, as the model may write the next batch into the same memory."""
        session = self._session
        batch = session.prepare(add_batch_axis([tensors for _, tensors in samples]))
        with session.blamed():
            outputs = session.in_order(session.predict(batch))
            return [
                (number, [np.array(output[position]) for output in outputs])
                for position, (number, _) in enumerate(samples)
            ]


def stream_overhead_ns(stages: int, samples: int = OVERHEAD_SAMPLES) -> float:
    """Return what threads and queues cost a sample, in ns: as many stages that do nothing."""
    idle = [Stage("nothing", lambda _number, value: value) for _ in range(stages)]
    begun = time.monotonic_ns()
    for _ in run_stream(((number, None) for number in range(samples)), idle, SpanRecorder(enabled=False)):
        pass
    return (time.monotonic_ns() - begun) / samples


def _lasting(duration_ns: int, batch_size: int, least_batches: int = 1) -> Iterator[int]:
    """Yield consecutive numbers for a time, of whole batches."""
    number, end_ns = 0, time.monotonic_ns() + duration_ns
    while number % batch_size or number < batch_size * least_batches or time.monotonic_ns() < end_ns:
        yield number
        number += 1


def _anew(stages: list[Stage]) -> list[Stage]:
    return [Stage(stage.name, stage.function) for stage in stages]


def _noting_start(function: Callable[[int, Any], Any], times: array[int]) -> Callable[[int, Any], Any]:
    def noted(number: int, value: Any) -> Any:
        times.append(time.monotonic_ns())
        return function(number, value)

    return noted


def _noting_end(function: Callable[[int, Any], Any], times: array[int]) -> Callable[[int, Any], Any]:
    def noted(number: int, value: Any) -> Any:
        result = function(number, value)
        times.append(time.monotonic_ns())
        return result

    return noted
