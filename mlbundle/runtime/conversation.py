"""The host's side of the protocol: sends the job, checks and types what comes back, stores files, watches."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from mlbundle.errors import (
    AcceleratorMissing,
    EnvironmentLacks,
    MlbundleError,
    ProtocolBroken,
    WorkerCrashed,
    WorkerExceeded,
    WorkerFailed,
    WorkerHung,
)
from mlbundle.files import storage_failed
from mlbundle.runtime.facts import problem_of_facts
from mlbundle.wire import frames
from mlbundle.wire.events import FAULTS, End, Event, Failed, Hello, Phase, Result, event_from_document
from mlbundle.wire.passes import passes_of, wanted_files

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from mlbundle.runtime.base import Connection, ExitState
    from mlbundle.wire.job import Job

# What a worker finds missing around it is no failure of the run: it could not begin.
_LACKING: dict[str, type[MlbundleError]] = {
    "accelerator-missing": AcceleratorMissing,
    "framework-missing": EnvironmentLacks,
    "import-failed": EnvironmentLacks,
    "unknown-scenario": EnvironmentLacks,
    "loadgen-missing": EnvironmentLacks,
    "loadgen-memory": EnvironmentLacks,
    "loadgen-log-size": EnvironmentLacks,
}
_POLL_S = 0.25
_SCRATCH_POLL_S = 0.5
_KILLED = (-9, 137)
_SHELL_SIGNAL = 128
_EXIT_TIMEOUT_S = 60.0
MAX_EVENT_TEXT_BYTES = 64 << 10
MAX_RESULT_BYTES = 1 << 20
MAX_TEXT = 4096
WORKER_PHASES = ("load", "warm-up", "measure", "accuracy", "profile")
# An honest worker says four things a second; what it may say grows with the time that it has been running.
EVENT_BURST, EVENTS_PER_S = 5_000, 50
EVENT_BURST_BYTES, EVENT_BYTES_PER_S = 16 << 20, 16 << 10


@dataclass(frozen=True)
class Watch:
    """How long a worker may stay silent, and how much it may write."""

    start_timeout_s: float
    hang_timeout_s: float
    out_bytes: int
    scratch_bytes: int


def converse(connection: Connection, job: Job, folder: Path, watch: Watch) -> Generator[Event]:
    """Yield the worker's events until it said goodbye; its files lie in `folder` afterwards.

    Raises RunFailed of the fitting kind when the worker fails, crashes, hangs, breaks the protocol or goes over
    a limit. The caller stops the connection.
    """
    return _Conversation(connection, job, folder, watch).run()


class _Conversation:
    def __init__(self, connection: Connection, job: Job, folder: Path, watch: Watch) -> None:
        self._connection = connection
        self._job = job
        self._files = _FileReceiver(folder, watch.out_bytes, wanted_files(job))
        self._watch = watch
        self._greeted = False
        self._event_bytes = 0
        self._event_count = 0
        self._passes = frozenset(passes_of(job))
        self._result_kinds: set[str] = set()
        self._failed: Failed | None = None
        self._ended = False
        self._begun_at = time.monotonic()
        self._heard_at = time.monotonic()
        self._looked_at = time.monotonic()

    def run(self) -> Generator[Event]:
        decoder = frames.FrameDecoder()
        try:
            while True:
                data = self._connection.read(_POLL_S)
                if data == b"":
                    break
                if data is None:
                    self._check_silence()
                else:
                    self._heard_at = time.monotonic()
                    yield from self._events(decoder, data)
                self._check_scratch()
        finally:
            self._files.close()
        self._conclude(decoder.pending_bytes)

    def _events(self, decoder: frames.FrameDecoder, data: bytes) -> Iterator[Event]:
        try:
            for frame in decoder.feed(data):
                if frame.kind != frames.EVENT:
                    if not self._greeted:
                        raise self._broken("the worker did not say hello first")
                    self._files.take(frame)
                    continue
                self._count_event(len(frame.payload))
                event = self._event(frame.document(), len(frame.payload))
                if event is not None:
                    yield event
        except frames.FrameError as error:
            raise self._broken(str(error)) from error

    def _event(self, document: dict[str, Any], size_bytes: int) -> Event | None:
        if document.get("protocol") != frames.PROTOCOL:
            raise self._broken(
                f"the worker speaks protocol {document.get('protocol')!r}, not {frames.PROTOCOL}"
            )
        try:
            event = event_from_document(document)
        except (TypeError, ValueError) as error:
            raise self._broken(f"an event can't be read: {error}") from error
        if size_bytes > (MAX_RESULT_BYTES if isinstance(event, Hello | Result) else MAX_EVENT_TEXT_BYTES):
            raise self._broken(f"an event of {size_bytes} bytes")
        if isinstance(event, Hello) and self._greeted:
            raise self._broken("the worker said hello twice")
        if isinstance(event, Hello):
            self._check_hello(event)
            self._greeted = True
            job = frames.encode_document(frames.JOB, self._job.to_document())
            self._connection.send(job, self._watch.start_timeout_s)
        elif not self._greeted:
            raise self._broken("the worker did not say hello first")
        elif isinstance(event, Failed):
            self._failed = event
        elif isinstance(event, Phase) and event.name not in WORKER_PHASES:
            raise self._broken(f"a phase called {event.name[:80]!r} is not the worker's")
        elif isinstance(event, Result):
            self._check_result(event)
        elif isinstance(event, End):
            self._ended = True
        return event

    def _check_result(self, event: Result) -> None:
        if event.pass_kind not in self._passes or event.pass_kind in self._result_kinds:
            raise self._broken(f"a result of a pass called {event.pass_kind[:80]!r} is not wanted")
        self._result_kinds.add(event.pass_kind)

    def _check_hello(self, hello: Hello) -> None:
        problem = problem_of_facts(hello.facts)
        if problem is not None:
            raise self._broken(problem)

    def _count_event(self, size_bytes: int) -> None:
        self._event_count += 1
        self._event_bytes += size_bytes
        running_s = time.monotonic() - self._begun_at
        most_events = EVENT_BURST + EVENTS_PER_S * running_s
        most_bytes = EVENT_BURST_BYTES + EVENT_BYTES_PER_S * running_s
        if self._event_count > most_events or self._event_bytes > most_bytes:
            raise WorkerExceeded(
                f"the worker talks too much: {self._event_count} events of {self._event_bytes} bytes so far",
                hint="see worker.log in the run's folder",
            )

    def _conclude(self, pending_bytes: int) -> None:
        state = self._connection.wait(_EXIT_TIMEOUT_S)
        if self._failed is not None:
            raise self._worker_failed(self._failed)
        if pending_bytes:
            raise self._broken(f"the stream ended inside a frame ({pending_bytes} bytes of it came)")
        if not self._ended or state.status != 0:
            raise WorkerCrashed(
                f"the worker ended without finishing: {self._describe(state)}",
                context=self._connection.tail(),
                hint="the lines above are the end of its stderr; worker.log in the run's folder has all of it",
            )

    def _worker_failed(self, event: Failed) -> MlbundleError:
        fault = event.fault if event.fault in FAULTS else "mlbundle"
        lacking = _LACKING.get(event.reference)
        if lacking is not None:
            return lacking(event.message[:MAX_TEXT], hint=event.hint[:MAX_TEXT] if event.hint else None)
        return WorkerFailed(
            event.message[:MAX_TEXT],
            fault=fault,
            where=event.reference[:MAX_TEXT],
            context=self._connection.tail() if fault in {"framework", "mlbundle"} else (),
            hint=event.hint[:MAX_TEXT] if event.hint else None,
        )

    def _check_silence(self) -> None:
        limit_s = self._watch.hang_timeout_s if self._greeted else self._watch.start_timeout_s
        silent_s = time.monotonic() - self._heard_at
        if silent_s > limit_s:
            what = "stopped answering" if self._greeted else "did not start"
            raise WorkerHung(
                f"the worker {what}: nothing heard for {silent_s:.0f} s",
                context=self._connection.tail(),
                hint="raise --timeout if the model really needs that long between two signs of life",
            )

    def _check_scratch(self) -> None:
        if time.monotonic() - self._looked_at < _SCRATCH_POLL_S:
            return
        self._looked_at = time.monotonic()
        used = self._connection.scratch_bytes()
        if used is not None and used > self._watch.scratch_bytes:
            raise WorkerExceeded(
                f"the worker filled its scratch folder: {used} bytes, {self._watch.scratch_bytes} allowed",
                hint="raise the setting scratch_bytes if the model really needs that much",
            )

    def _describe(self, state: ExitState) -> str:
        if state.status is None:
            return state.detail or "its exit status is unknown"
        if state.status in _KILLED:
            limit = f"{self._job.limits.memory_bytes / (1 << 20):,.0f} MiB"
            return f"it was killed: {state.detail or 'perhaps it was out of memory'}, the limit is {limit}"
        if state.status < 0:
            return f"it crashed: {_signal_name(-state.status)}"
        if state.status > _SHELL_SIGNAL:
            return f"exit status {state.status} ({_signal_name(state.status - _SHELL_SIGNAL)})"
        return f"exit status {state.status}"

    def _broken(self, message: str) -> ProtocolBroken:
        return ProtocolBroken(
            message,
            context=self._connection.tail(),
            hint="worker and host must be of versions that fit; see worker.log",
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class _FileReceiver:
    """Writes the files that a worker may send, under temporary names until they are whole."""

    def __init__(self, folder: Path, cap_bytes: int, wanted: frozenset[str]) -> None:
        self._folder = folder
        self._cap_bytes = cap_bytes
        self._wanted = wanted
        self._total_bytes = 0
        self._seen: set[str] = set()
        self._name = ""
        self._size = 0
        self._written = 0
        self._stream: BinaryIO | None = None

    def take(self, frame: frames.Frame) -> None:
        """Take a frame of a file. Raises FrameError, WorkerExceeded, StorageFailed."""
        try:
            if frame.kind == frames.FILE_BEGIN:
                self._begin(frame.document())
            elif frame.kind == frames.FILE_DATA:
                self._data(frame.payload)
            elif frame.kind == frames.FILE_END:
                self._end()
            else:
                raise frames.FrameError(f"a frame of type {frame.kind} from the worker")
        except OSError as error:
            raise storage_failed(error, self._folder / self._name) from error

    def close(self) -> None:
        """Drop a file that is not whole."""
        if self._stream is not None:
            with suppress(OSError):
                self._stream.close()
            self._stream = None
            with suppress(OSError):
                self._part().unlink()

    def _begin(self, head: dict[str, Any]) -> None:
        name, size = head.get("name"), head.get("size")
        if self._stream is not None:
            raise frames.FrameError("a file began inside another")
        if not isinstance(name, str) or name not in self._wanted or name in self._seen:
            raise frames.FrameError(f"a file of the name {str(name)[:80]!r} is not wanted")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise frames.FrameError(f"a file of the size {size!r}")
        if self._total_bytes + size > self._cap_bytes:
            raise WorkerExceeded(
                f"the worker's files come to over {self._cap_bytes} bytes", hint="raise the setting out_bytes"
            )
        self._seen.add(name)
        self._name, self._size, self._written = name, size, 0
        self._total_bytes += size
        self._part().parent.mkdir(parents=True, exist_ok=True)
        self._stream = self._part().open("xb")

    def _data(self, payload: bytes) -> None:
        if self._stream is None:
            raise frames.FrameError("data of a file that has not begun")
        self._written += len(payload)
        if self._written > self._size:
            raise frames.FrameError(f"{self._name!r} is longer than it was said to be")
        self._stream.write(payload)

    def _end(self) -> None:
        if self._stream is None or self._written != self._size:
            raise frames.FrameError(f"{self._name!r} ended before it was whole")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        self._stream = None
        self._part().rename(self._folder / self._name)

    def _part(self) -> Path:
        return self._folder / f"{self._name}.part"
