"""The passes of a job. Each runs in a process of its own and sends its files under the names below."""

from __future__ import annotations

import hashlib
import importlib
import io
import resource
import sys
import time
from typing import Any, Callable, Sequence

import numpy as np

from mlbundle.wire import events
from mlbundle.wire.job import Job
from mlbundle.wire.passes import LATENCIES, OUTPUTS, SCHEDULED, SPANS
from mlbundle.worker import registry
from mlbundle.worker.emit import Emitter
from mlbundle.worker.errors import blamed_on_bundle
from mlbundle.worker.pipeline.build import add_batch_axis
from mlbundle.worker.pipeline.stream import Stage, run_stream
from mlbundle.worker.scenarios.base import PassOutcome, Subject
from mlbundle.worker.session import Session
from mlbundle.worker.spans import SpanRecorder
from mlbundle.worker.tokens import TokenCall, generates, token_call

# At most this many bytes of pre-processed samples are kept ready for a latency scenario.
POOL_BYTES = 256 << 20
POOL_SAMPLES = 1024
# At most this many queries of a pass become spans; the result says how many there were.
TRACED_QUERIES = 20_000
# Outputs of an accuracy pass are sent up to this size; beyond it only their digest.
OUTPUT_BYTES = 64 << 20
_PROGRESS_NS = 500_000_000


def run_pass(name: str, job: Job, emitter: Emitter) -> None:
    """Run one pass of a job by its name: a kind, or a kind and a number (`repeat:1`)."""
    kind, _, number = name.partition(":")
    if kind in _FAMILIES:
        importlib.import_module(_FAMILIES[kind]).run(job, emitter, name)
    elif kind == "accuracy":
        accuracy(job, emitter)
    else:
        measure(job, emitter, name, int(number or 0))


def measure(job: Job, emitter: Emitter, name: str, number: int) -> None:
    """Run the scenario: load, warm up, measure. `name` is that of the result, `number` that of the process."""
    spans = SpanRecorder(job.trace_level != "none")
    emitter.phase("load", "begun")
    session = Session(job)
    scenario = registry.load("mlbundle.scenarios", str(job.scenario["name"]))(
        job.scenario.get("options") or {}
    )
    pool = _Pool(session, spans, emitter, wanted=getattr(scenario, "needs_batches", True))
    batches = pool.batches_of(1)
    by_token = getattr(scenario, "by_token", False) and generates(session)
    tokens = token_call(session, batches[0]) if by_token else None
    emitter.phase("load", "done")
    subject = Subject(
        call=tokens or _caller(session),
        batches=batches,
        emitter=emitter,
        seed=job.seed + number,
        batches_of=pool.batches_of,
        session=session,
        number=number,
        traced=spans.enabled,
    )
    with session.blamed():
        outcome = scenario.run(subject)
    passes = [_send_pass(emitter, found, spans, tokens) for found in outcome.passes]
    values = {
        **outcome.values,
        "passes": passes,
        "pool_samples": pool.samples,
        "peak_memory_bytes": peak_memory_bytes(),
        "framework": session.facts,
    }
    emitter.event(events.Result(pass_kind=name, values=values))
    session.close()


def _send_pass(
    emitter: Emitter, found: PassOutcome, spans: SpanRecorder, tokens: TokenCall | None
) -> dict[str, Any]:
    """Send the files of one pass; returns what its result says of it."""
    folder, timings = emitter.folder(found.kind), found.timings
    begins = timings.starts_ns if timings.scheduled_ns is None else timings.scheduled_ns
    _send_array(emitter, "{}/{}".format(folder, LATENCIES), _difference(timings.ends_ns, begins))
    if timings.scheduled_ns is not None:
        _send_array(emitter, "{}/{}".format(folder, SCHEDULED), np.asarray(timings.scheduled_ns, np.int64))
    # What is measured comes last: its answers are the last that there were.
    said = {"tokens": tokens.send(emitter, folder, timings)} if tokens and found.headline else {}
    traced = 0
    if found.spans is not None:
        emitter.file("{}/{}".format(folder, SPANS), found.spans.to_bytes())
        traced = len(timings.starts_ns)
    elif spans.enabled and found.headline:
        traced = min(len(timings.starts_ns), TRACED_QUERIES)
        spans.add_queries(timings.starts_ns[:traced], timings.ends_ns[:traced], 0)
        emitter.file("{}/{}".format(folder, SPANS), spans.to_bytes())
    return {
        **found.values,
        **said,
        "folder": folder,
        "kind": found.kind,
        "headline": found.headline,
        "queries": len(timings.starts_ns),
        "samples": len(timings.starts_ns) * found.samples_per_query,
        "busy_ns": timings.busy_ns,
        "traced_queries": traced,
    }


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
    progress = SampleProgress(emitter, "accuracy", total)
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
    emitter.file(OUTPUTS, buffer.getvalue())
    if spans.enabled:
        emitter.file("{}/{}".format(emitter.folder("accuracy"), SPANS), spans.to_bytes())
    values = {
        "metric": job.accuracy["metric"],
        "value": metric.value(),
        "samples": metric.samples,
        "predictions_sha256": hashlib.sha256(predictions.astype("<i8").tobytes()).hexdigest(),
        "outputs_sha256": outputs.sha256(),
    }
    emitter.event(events.Result(pass_kind="accuracy", values=values))


class _Pool:
    """Samples that are pre-processed before anything is timed, as LoadGen's LoadSamplesToRam does; bounded by bytes."""

    def __init__(self, session: Session, spans: SpanRecorder, emitter: Emitter, *, wanted: bool) -> None:
        self._session = session
        self._tensors: list[dict[str, Any]] = []
        size_bytes, count = 0, min(len(session.dataset), POOL_SAMPLES) if wanted else 0
        progress = SampleProgress(emitter, "load", count)
        for number in range(count):
            start = time.monotonic_ns()
            self._tensors.append(session.pipeline.prepare(number))
            spans.add("prepare", "prepare", start, time.monotonic_ns(), number)
            size_bytes += sum(array.nbytes for array in self._tensors[-1].values())
            progress.tell(number + 1)
            if size_bytes >= POOL_BYTES:
                break

    @property
    def samples(self) -> int:
        """How many samples are ready."""
        return len(self._tensors)

    def batches_of(self, size: int) -> list[Any]:
        """Return batches of `size` samples for `predict`: of all samples once, at least one, bounded by bytes."""
        batches: list[Any] = []
        size_bytes, count = 0, len(self._tensors)
        for start in range(0, count, size):
            chosen = [self._tensors[position % count] for position in range(start, start + size)]
            feeds = add_batch_axis(chosen)
            batches.append(self._session.prepare(feeds))
            bound_bytes = getattr(batches[-1], "size_bytes", 0)
            size_bytes += sum(array.nbytes for array in feeds.values()) + bound_bytes
            if size_bytes >= POOL_BYTES:
                break
        return batches


class SampleProgress:
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


def peak_memory_bytes() -> int:
    """Return the most memory that this process had in use."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes on Linux, bytes on macOS


def _caller(session: Session) -> Callable[[Any], Any]:
    predict, handle = session.predictor.predict, session.handle

    def call(batch: Any) -> Any:
        return predict(handle, batch)

    return call


def _difference(ends_ns: Any, begins_ns: Any) -> Any:
    return np.asarray(ends_ns, np.int64) - np.asarray(begins_ns, np.int64)


def _send_array(emitter: Emitter, name: str, values: Any) -> None:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    emitter.file(name, buffer.getvalue())


# Passes that are not a scenario run in a Python loop, by kind: the module whose `run(job, emitter, name)` does them.
_FAMILIES = {
    "cold-start": "mlbundle.worker.cold_start",
    "loadgen": "mlbundle.worker.loadgen.passes",
    "profile": "mlbundle.worker.profiling",
}
