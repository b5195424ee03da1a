"""`cold-start`: a process of its own that is timed from its spawning to the model's first answer, by phase.

interpreter   from the moment the supervisor asks for the process: Python, NumPy, this package
import        the framework's own module, wherever the predictor imports it
load          the rest of opening: the model, the dataset, the operators
prepare       the first sample through the pipeline
answer        its batch bound and answered

Nothing is told to the host before the answer is there.
"""

from __future__ import annotations

import builtins
import io
import sys
import time
from types import TracebackType
from typing import Any

import numpy as np

from mlbundle.wire import events
from mlbundle.wire.job import Job
from mlbundle.wire.passes import LATENCIES, SPANS
from mlbundle.wire.words import duration
from mlbundle.worker.emit import Emitter
from mlbundle.worker.passes import peak_memory_bytes
from mlbundle.worker.pipeline.build import add_batch_axis
from mlbundle.worker.session import Session
from mlbundle.worker.spans import SpanRecorder

FRAMEWORKS = ("onnxruntime", "torch", "tensorflow")
# Where on our own command line the supervisor wrote the time at which it asked for us; see `__main__`.
_SPAWNED_ARGUMENT = 4


def run(job: Job, emitter: Emitter, name: str) -> None:
    """Start once: open the model, answer one sample, tell when what was done."""
    marks = [("spawned", _spawned_ns())]
    marks.append(("interpreter", time.monotonic_ns()))
    with ImportClock((job.model.predictor, *FRAMEWORKS)) as imports:
        session = Session(job)
    marks.append(("load", time.monotonic_ns()))
    feeds = add_batch_axis([session.pipeline.prepare(0)])
    marks.append(("prepare", time.monotonic_ns()))
    with session.blamed():
        prepare = getattr(session.predictor, "prepare", None)
        session.predict(feeds if prepare is None else prepare(session.handle, feeds))
    marks.append(("answer", time.monotonic_ns()))
    # Whether the answer is what the manifest says is looked at when nothing is timed any more.
    session.prepare(feeds)
    _send(emitter, name, _phases(marks, imports), job.trace_level != "none", session)
    _tell(emitter, job, name, marks[-1][1] - marks[0][1])
    session.close()


class ImportClock:
    """Times the import of a framework: the first of these modules that is imported while this is entered."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = frozenset(names)
        self._original = builtins.__import__
        self.begun_ns = 0
        self.done_ns = 0

    def __enter__(self) -> ImportClock:  # noqa: PYI034 - Self is not in Python 3.9
        builtins.__import__ = self._timed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        builtins.__import__ = self._original

    def _timed(self, name: str, *arguments: Any, **named: Any) -> Any:
        top = name.partition(".")[0]
        if top not in self._names or top in sys.modules:
            return self._original(name, *arguments, **named)
        # What the framework imports in its turn is not looked at: this costs nothing inside it.
        builtins.__import__ = self._original
        self.begun_ns = time.monotonic_ns()
        try:
            return self._original(name, *arguments, **named)
        finally:
            self.done_ns = time.monotonic_ns()


def _spawned_ns() -> int:
    return int(sys.argv[_SPAWNED_ARGUMENT])


def _phases(marks: list[tuple[str, int]], imports: ImportClock) -> list[tuple[str, int, int]]:
    """Return (name, begin, end) of the phases, one after another; the import is cut out of the load around it."""
    phases = []
    for (_, begin), (name, end) in zip(marks, marks[1:]):  # noqa: RUF007 - pairwise is not in Python 3.9
        if name == "load" and imports.done_ns:
            phases += [
                ("load", begin, imports.begun_ns),
                ("import", imports.begun_ns, imports.done_ns),
                ("load", imports.done_ns, end),
            ]
        else:
            phases.append((name, begin, end))
    return phases


def _tell(emitter: Emitter, job: Job, name: str, total_ns: int) -> None:
    number = int(name.partition(":")[2] or 0) + 1
    starts = (job.scenario.get("options") or {}).get("repeats") or 1
    message = "start {} of {}: {} to the first answer".format(number, starts, duration(total_ns))
    emitter.event(events.Log(level=events.NOTICE, message=message))


def _send(
    emitter: Emitter, name: str, phases: list[tuple[str, int, int]], traced: bool, session: Session
) -> None:
    begin, end = phases[0][1], phases[-1][2]
    emitter.event(events.Phase(name="measure", state="begun", t_ns=begin))
    emitter.event(events.Phase(name="measure", state="done", t_ns=end))
    folder = emitter.folder("cold-start")
    emitter.file("{}/{}".format(folder, LATENCIES), _npy(end - begin))
    if traced:
        spans = SpanRecorder(enabled=True)
        for phase, start, stop in phases:
            spans.add("cold-start", phase, start, stop, int(name.partition(":")[2]))
        emitter.file("{}/{}".format(folder, SPANS), spans.to_bytes())
    lengths: dict[str, int] = {}
    for phase, start, stop in phases:
        lengths[phase] = lengths.get(phase, 0) + stop - start
    values = {
        "folder": folder,
        "total_ns": end - begin,
        "phases": lengths,
        "peak_memory_bytes": peak_memory_bytes(),
        "framework": session.facts,
    }
    emitter.event(events.Result(pass_kind=name, values=values))


def _npy(latency_ns: int) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([latency_ns], np.int64), allow_pickle=False)
    return buffer.getvalue()
