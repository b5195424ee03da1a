"""A pass that profiles: queries without the profiler, then the same with it, and what it saw.

`profile:framework`, `profile:system`, `profile:serial`. No result is taken from it. The ratio of the two medians says
what the profiler itself costs.

A profiler may be a bundle's, and any may fail: whatever it does costs the profile and not the run. What it raises is
told, a process that it forked ends, and where it hangs this process ends before the host gives up on the worker.
"""

from __future__ import annotations

import faulthandler
import io
import itertools
import json
import os
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence

import numpy as np

from mlbundle.wire import events
from mlbundle.wire.job import Job
from mlbundle.wire.passes import KERNELS, LATENCIES, LAYERS, SPANS, UNPROFILED
from mlbundle.worker import registry
from mlbundle.worker.dataset import inside
from mlbundle.worker.emit import Emitter
from mlbundle.worker.errors import bundle_error
from mlbundle.worker.loading import find_in_file
from mlbundle.worker.passes import peak_memory_bytes
from mlbundle.worker.pipeline.build import add_batch_axis
from mlbundle.worker.profilers.base import (
    MOST_NOTES,
    SERIAL,
    Profile,
    Profiler,
    Run,
    Runs,
    realtime_offset_ns,
)
from mlbundle.worker.profilers.rows import printable
from mlbundle.worker.profilers.settle import settle
from mlbundle.worker.said import facts_of, plain_facts
from mlbundle.worker.scenarios.loop import quiet_interpreter
from mlbundle.worker.session import Session
from mlbundle.worker.spans import SpanRecorder

MOST_RUNS, LEAST_RUNS = 100, 5
# Each of the two loops takes about so long.
BUDGET_NS = 1_000_000_000
WARM_UP_NS = 300_000_000
LEAST_WARM_UPS = 3
MOST_SAMPLES = 16
_PROGRESS_NS = 500_000_000
# Of the time that the host waits: this process ends before it does.
_PATIENCE = 0.75
# A model may take as long to load as any pass gives it; only then is it known to hang.
_LOADING_PATIENCE = 0.95
_MOST_FACTS_BYTES = 64 << 10
_STDERR = 2


def run(job: Job, emitter: Emitter, name: str) -> None:
    """Profile to the depth that the name says, and send what was seen. Raises WorkerError."""
    level = name.partition(":")[2]
    if level == SERIAL:
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    watched = _Watched(job, emitter)
    emitter.phase("profile", "begun")
    try:
        _send(emitter, name, _find(job, level, watched), batch_size_of(job))
    finally:
        faulthandler.cancel_dump_traceback_later()
        emitter.phase("profile", "done")


def _find(job: Job, level: str, watched: _Watched) -> _Findings:
    watched.loading()
    plain_session = Session(job)
    batches = _batches(plain_session, batch_size_of(job))
    with quiet_interpreter():
        unprofiled = _unprofiled(plain_session, batches, watched)
    plain_session.close()
    watched.alive()
    with _profilers_fault():
        profiler = _profiler(job, level)
    if profiler is None:
        watched.emitter.event(
            events.Warned(
                reference="no-profiler",
                message="the predictor has no profiler: the trace has no layers",
                hint="docs/tracing.md says how a predictor gets one",
            )
        )
        return _Findings(unprofiled, [], Profile(), len(batches))
    with _profilers_fault():
        return _profiled(job, profiler, unprofiled, watched)


class _Watched:
    """Tells the host that we are alive, and ends this process, with all its stacks on stderr, when we no longer are.

    A profiler may hang in native code that holds the interpreter: the watch is a thread that does not need it.
    """

    def __init__(self, job: Job, emitter: Emitter) -> None:
        self.emitter = emitter
        self._host_waits_s = job.limits.hang_timeout_s

    def loading(self) -> None:
        """Say that a model is loaded next, and watch from now on."""
        self._say(_LOADING_PATIENCE, 0, None, None)

    def alive(self, done: int = 0, total: int | None = None, eta_s: float | None = None) -> None:
        """Say how many queries are done, and watch from now on."""
        self._say(_PATIENCE, done, total, eta_s)

    def _say(self, patience: float, done: int, total: int | None, eta_s: float | None) -> None:
        wait_s = max(0.1, patience * self._host_waits_s)
        faulthandler.dump_traceback_later(wait_s, exit=True, file=_STDERR)
        self.emitter.event(
            events.Progress(phase="profile", done=done, total=total, unit="queries", eta_s=eta_s)
        )


@contextmanager
def _profilers_fault() -> Iterator[None]:
    """Turn an exit into an error, and end a process that the code inside has forked."""
    here = os.getpid()
    try:
        yield
    except SystemExit as error:
        raise bundle_error("profiler-failed", "the profiler wanted to exit ({})".format(error)) from error
    finally:
        if os.getpid() != here:
            os._exit(1)


class _Findings:
    """Latencies without a profiler in ns, the queries with it, what it saw, and how many batches both went through.

    Both loops begin with the first batch.
    """

    def __init__(
        self, unprofiled_ns: Sequence[int], runs: Sequence[Run], profile: Profile, batches: int
    ) -> None:
        self.unprofiled_ns, self.runs, self.profile, self.batches = unprofiled_ns, runs, profile, batches


def _profiler(job: Job, level: str) -> Profiler | None:
    options = {"scratch": job.paths["scratch"], "threads": job.limits.threads, "accelerator": job.accelerator}
    if job.model.predictor_file is not None:
        made = find_in_file(inside(job.paths["assets"], job.model.predictor_file), "Profiler")
    elif job.model.predictor in registry.entry_points("mlbundle.profilers"):
        made = registry.load("mlbundle.profilers", job.model.predictor)
    else:
        made = None
    if made is None:
        return None
    profiler: Profiler = made(level, options)
    return profiler


def batch_size_of(job: Job) -> int:
    """Return how many samples a profiled query has: as many as the scenario's, the most that were asked for."""
    options = job.scenario.get("options") or {}
    sizes = options.get("batch_sizes") or [options.get("batch_size") or options.get("samples_per_query") or 1]
    return max(int(size) for size in sizes)


def _batches(session: Session, size: int) -> list[Any]:
    """Return some batches, each of other samples as long as there are some that are not in one."""
    samples = len(session.dataset)
    return [
        session.prepare(
            add_batch_axis([
                session.pipeline.prepare((number * size + place) % samples) for place in range(size)
            ])
        )
        for number in range(max(1, min(samples, MOST_SAMPLES) // size))
    ]  # fmt: skip


def _warm_up(call: Callable[[Any], Any], batches: Iterator[Any], watched: _Watched) -> int:
    """Call until some time has gone; returns the median time of the later half of the calls in ns."""
    begun = time.monotonic_ns()
    took_ns: list[int] = []
    while len(took_ns) < LEAST_WARM_UPS or time.monotonic_ns() - begun < WARM_UP_NS:
        start = time.monotonic_ns()
        call(next(batches))
        took_ns.append(time.monotonic_ns() - start)
        if took_ns[-1] > _PROGRESS_NS:
            watched.alive()
    late = sorted(took_ns[len(took_ns) // 2 :])
    return max(1, late[len(late) // 2])


def _unprofiled(session: Session, batches: Sequence[Any], watched: _Watched) -> list[int]:
    predict, handle = session.predictor.predict, session.handle

    def call(batch: Any) -> Any:
        return predict(handle, batch)

    watched.alive()
    with session.blamed():
        wanted = _runs_for(_warm_up(call, itertools.cycle(batches), watched))
        runs = _timed(call, itertools.cycle(batches), wanted, watched)
    return [run.end_ns - run.start_ns for run in runs]


def _profiled(job: Job, profiler: Profiler, unprofiled: Sequence[int], watched: _Watched) -> _Findings:
    settings = dict(profiler.settings())
    watched.loading()
    session = Session(job, profile=settings)
    watched.alive()
    profiler.attach(session.predictor, session.handle)
    watched.alive()
    batches = _batches(session, batch_size_of(job))
    call = profiler.caller(session.predictor.predict, session.handle)
    profile = Profile()
    with quiet_interpreter():
        wanted = _runs_for(_warm_up(call, itertools.cycle(batches), watched))
        most = profiler.most_runs()
        wanted = wanted if most is None else min(wanted, int(most))
        if wanted < 1:
            raise bundle_error("profile-too-large", "one query makes more events than the profiler keeps")
        watched.alive()
        profiler.begin()
        runs = _timed(call, itertools.cycle(batches), wanted, watched)
        watched.alive(wanted, wanted)
        profiler.end()
    profiler.read(Runs(runs), profile)
    watched.alive(wanted, wanted)
    settle(profile, runs)
    profile.facts.setdefault("framework", facts_of(session.handle))
    session.close()
    return _Findings(unprofiled, runs, profile, len(batches))


def _runs_for(latency_ns: int) -> int:
    return max(LEAST_RUNS, min(MOST_RUNS, BUDGET_NS // latency_ns))


def _timed(call: Callable[[Any], Any], order: Iterator[Any], wanted: int, watched: _Watched) -> list[Run]:
    """Return so many queries; between them clocks are read and signs of life are given."""
    clock, told = time.monotonic_ns, time.monotonic_ns()
    runs = []
    for number in range(wanted):
        batch, offset_ns = next(order), realtime_offset_ns()
        start = clock()
        call(batch)
        end = clock()
        runs.append(Run(number, start, end, offset_ns))
        if end - told > _PROGRESS_NS:
            told, done = end, number + 1
            watched.alive(done, wanted, (wanted - done) * (end - runs[0].start_ns) / done / 1e9)
    return runs


def _send(emitter: Emitter, name: str, found: _Findings, batch_size: int) -> None:
    folder, profile = emitter.folder("profile"), found.profile
    # Made before anything is sent: what can't be said leaves no files behind.
    values = {
        "folder": folder,
        "level": name.partition(":")[2],
        "queries": len(found.runs),
        "batch_size": batch_size,
        "batches": found.batches,
        "unprofiled_queries": len(found.unprofiled_ns),
        "layers": profile.layers,
        "kernels": profile.kernels,
        "notes": [printable(str(note)) for note in list(profile.notes)[:MOST_NOTES]],
        "facts": _facts(profile),
        "peak_memory_bytes": peak_memory_bytes(),
    }
    emitter.file("{}/{}".format(folder, UNPROFILED), _npy(found.unprofiled_ns))
    emitter.file("{}/{}".format(folder, LATENCIES), _npy([r.end_ns - r.start_ns for r in found.runs]))
    spans = SpanRecorder(enabled=True)
    spans.add_queries([r.start_ns for r in found.runs], [r.end_ns for r in found.runs], 0)
    emitter.file("{}/{}".format(folder, SPANS), spans.to_bytes())
    if profile.layers:
        emitter.file("{}/{}".format(folder, LAYERS), profile.layers_bytes())
    if profile.kernels:
        emitter.file("{}/{}".format(folder, KERNELS), profile.kernels_bytes())
    emitter.event(events.Result(pass_kind=name, values=values))


def _facts(profile: Profile) -> dict[str, Any]:
    """Return the facts as JSON values; none where they are too many."""
    facts = plain_facts(profile.facts, "a profile")
    return facts if len(json.dumps(facts)) <= _MOST_FACTS_BYTES else {}


def _npy(latencies_ns: Sequence[int]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array(latencies_ns, np.int64), allow_pickle=False)
    return buffer.getvalue()
