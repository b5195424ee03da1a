"""The passes of a job. Each runs in a process of its own and sends its files under the names below."""

from __future__ import annotations

import hashlib
import io
import resource
import sys
import time
from typing import Any, Callable, Sequence

import numpy as np

from mlbundle.wire import events
from mlbundle.wire.job import Job
from mlbundle.worker import registry
from mlbundle.worker.emit import Emitter
from mlbundle.worker.errors import blamed_on_bundle
from mlbundle.worker.pipeline.build import add_batch_axis
from mlbundle.worker.pipeline.stream import Stage, run_stream
from mlbundle.worker.scenarios.base import Subject, Timings
from mlbundle.worker.session import Session
from mlbundle.worker.spans import SpanRecorder

# At most this many bytes of pre-processed samples are kept ready for a latency scenario.
POOL_BYTES = 256 << 20
POOL_SAMPLES = 1024
# At most this many queries of a pass become spans; the result says how many there were.
TRACED_QUERIES = 20_000
# Outputs of an accuracy pass are sent up to this size; beyond it only their digest.
OUTPUT_BYTES = 64 << 20
_PROGRESS_NS = 500_000_000


def measure(job: Job, emitter: Emitter) -> None:
    """Run the scenario: load, warm up, measure."""
    spans = SpanRecorder(job.trace_level != "none")
    emitter.phase("load", "begun")
    session = Session(job)
    scenario = registry.load("mlbundle.scenarios", str(job.scenario["name"]))(
        job.scenario.get("options") or {}
    )
    batches = _pool(session, spans, emitter)
    emitter.phase("load", "done")
    subject = Subject(call=_caller(session), batches=batches, emitter=emitter, seed=job.seed)
    with session.blamed():
        outcome = scenario.run(subject)
    _send_latencies(emitter, "passes/00-warm-up", outcome.warm_up)
    _send_latencies(emitter, "passes/01-measure", outcome.measured)
    traced = min(len(outcome.measured.starts_ns), TRACED_QUERIES)
    if spans.enabled:
        spans.add_queries(outcome.measured.starts_ns[:traced], outcome.measured.ends_ns[:traced], 0)
        emitter.file("passes/01-measure/spans.npz", spans.to_bytes())
    values = {
        **outcome.values,
        "queries": len(outcome.measured.starts_ns),
        "samples": len(outcome.measured.starts_ns) * outcome.samples_per_query,
        "busy_ns": outcome.measured.busy_ns,
        "traced_queries": traced if spans.enabled else 0,
        "pool_samples": len(batches),
        "peak_memory_bytes": _peak_memory_bytes(),
        "framework": session.facts,
    }
    emitter.event(events.Result(pass_kind="measure", values=values))
    session.close()


def accuracy(job: Job, emitter: Emitter) -> None:
    """Run every sample of the dataset through the whole pipeline and count."""
    assert job.accuracy is not None
    spans = SpanRecorder(job.trace_level != "none")
    emitter.phase("accuracy", "begun")
    session = Session(job)
    metric = registry.load("mlbundle.metrics", str(job.accuracy["metric"]))()
    labels = session.dataset.labels
    assert labels is not None
    outputs = _Outputs()

    def predict(_number: int, tensors: dict[str, Any]) -> list[Any]:
        with session.blamed():
            answer = session.predict(session.prepare(add_batch_axis([tensors])))
            single = [np.array(array[0]) for array in session.in_order(answer)]
        outputs.take(single)
        return single

    stages = [*session.pipeline.input_stages, Stage("predict", predict), *session.pipeline.output_stages]
    total = len(session.dataset)
    progress = _Progress(emitter, "accuracy", total)
    for number, answer in run_stream(((i, None) for i in range(total)), stages, spans):
        with blamed_on_bundle("the metric, sample {}".format(number)):
            metric.update(answer, labels[number])
        progress.tell(number + 1)
    _send_accuracy(job, emitter, metric, outputs, spans)
    emitter.phase("accuracy", "done")
    session.close()


class _Outputs:
    """The model's outputs, sample by sample: their digest, and they themselves up to a size."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._kept: list[list[Any]] | None = []
        self._size_bytes = 0

    def take(self, arrays: Sequence[Any]) -> None:
        """Take the outputs of one sample, in the order of the manifest."""
        for array in arrays:
            self._digest.update(np.ascontiguousarray(array).tobytes())
            self._size_bytes += array.nbytes
        if self._size_bytes > OUTPUT_BYTES:
            self._kept = None
        if self._kept is not None:
            self._kept.append(list(arrays))

    def sha256(self) -> str:
        """Return the digest of all bytes, in order."""
        return self._digest.hexdigest()

    def columns(self) -> dict[str, Any]:
        """Return `output_<position>` -> array with a first axis of samples; none where sizes vary or are too large."""
        columns = {}
        for position, arrays in enumerate(zip(*(self._kept or []))):
            if any(array.shape != arrays[0].shape or array.dtype != arrays[0].dtype for array in arrays):
                return {}
            columns["output_{}".format(position)] = np.stack(arrays)
        return columns


def _send_accuracy(job: Job, emitter: Emitter, metric: Any, outputs: _Outputs, spans: SpanRecorder) -> None:
    assert job.accuracy is not None
    predictions = np.asarray(metric.predictions, np.int64)
    buffer = io.BytesIO()
    np.savez(buffer, predictions=predictions, **outputs.columns())
    emitter.file("outputs.npz", buffer.getvalue())
    if spans.enabled:
        emitter.file("passes/02-accuracy/spans.npz", spans.to_bytes())
    values = {
        "metric": job.accuracy["metric"],
        "value": metric.value(),
        "samples": metric.samples,
        "predictions_sha256": hashlib.sha256(predictions.astype("<i8").tobytes()).hexdigest(),
        "outputs_sha256": outputs.sha256(),
    }
    emitter.event(events.Result(pass_kind="accuracy", values=values))


def _pool(session: Session, spans: SpanRecorder, emitter: Emitter) -> Sequence[Any]:
    """Pre-process samples before anything is timed, as LoadGen's LoadSamplesToRam does; bounded by bytes."""
    batches: list[Any] = []
    size_bytes = 0
    count = min(len(session.dataset), POOL_SAMPLES)
    progress = _Progress(emitter, "load", count)
    for number in range(count):
        start = time.monotonic_ns()
        feeds = add_batch_axis([session.pipeline.prepare(number)])
        batches.append(session.prepare(feeds))
        spans.add("prepare", "prepare", start, time.monotonic_ns(), number)
        size_bytes += sum(array.nbytes for array in feeds.values()) + getattr(batches[-1], "size_bytes", 0)
        progress.tell(number + 1)
        if size_bytes >= POOL_BYTES:
            break
    return batches


class _Progress:
    """Says how far a phase is, at most twice a second and once at its end; the host takes it as a sign of life."""

    def __init__(self, emitter: Emitter, phase: str, total: int) -> None:
        self._emitter = emitter
        self._phase = phase
        self._total = total
        self._begun = self._said = time.monotonic_ns()

    def tell(self, done: int) -> None:
        """Take how many samples are done."""
        now = time.monotonic_ns()
        if now - self._said < _PROGRESS_NS and done < self._total:
            return
        self._said = now
        eta_s = (now - self._begun) / 1e9 / done * (self._total - done)
        self._emitter.event(
            events.Progress(phase=self._phase, done=done, total=self._total, unit="samples", eta_s=eta_s)
        )


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes on Linux, bytes on macOS


def _caller(session: Session) -> Callable[[Any], Any]:
    predict, handle = session.predictor.predict, session.handle

    def call(batch: Any) -> Any:
        return predict(handle, batch)

    return call


def _send_latencies(emitter: Emitter, folder: str, timings: Timings) -> None:
    latencies = np.asarray(timings.ends_ns, np.int64) - np.asarray(timings.starts_ns, np.int64)
    buffer = io.BytesIO()
    np.save(buffer, latencies, allow_pickle=False)
    emitter.file(folder + "/latencies.npy", buffer.getvalue())


PASSES: dict[str, Callable[[Job, Emitter], None]] = {"measure": measure, "accuracy": accuracy}
