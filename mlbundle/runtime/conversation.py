"""The host's side of the protocol: sends the job, checks and types what comes back, stores files, watches."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from mlbundle.errors import ProtocolBroken, WorkerCrashed, WorkerExceeded, WorkerFailed, WorkerHung
from mlbundle.files import storage_failed
from mlbundle.wire import frames
from mlbundle.wire.events import FAULTS, End, Event, Failed, Hello, event_from_document

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from mlbundle.runtime.base import Connection, ExitState
    from mlbundle.wire.job import Job

_POLL_S = 0.25
_SCRATCH_POLL_S = 0.5
_EXIT_TIMEOUT_S = 10.0
# Days of windows, two a second, come to less.
MAX_EVENT_BYTES = 64 << 20
MAX_DISTRIBUTIONS = 10_000
_KINDS = "pilot|warm-up|measure|batch|repeat|accuracy|profile|cold-start|noop"
ALLOWED_FILES = re.compile(rf"(?:passes/\d\d-(?:{_KINDS})/(?:latencies\.npy|spans\.npz)|outputs\.npz)\Z")


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
        self._files = _FileReceiver(folder, watch.out_bytes)
        self._watch = watch
        self._greeted = False
        self._event_bytes = 0
        self._failed: Failed | None = None
        self._ended = False
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
                event = self._event(frame.document())
                if event is not None:
                    yield event
        except frames.FrameError as error:
            raise self._broken(str(error)) from error

    def _event(self, document: dict[str, Any]) -> Event | None:
        if document.get("protocol") != frames.PROTOCOL:
            raise self._broken(
                f"the worker speaks protocol {document.get('protocol')!r}, not {frames.PROTOCOL}"
            )
        try:
            event = event_from_document(document)
        except (TypeError, ValueError) as error:
            raise self._broken(f"an event can't be read: {error}") from error
        if isinstance(event, Hello) and self._greeted:
            raise self._broken("the worker said hello twice")
        if isinstance(event, Hello):
            self._check_hello(event)
            self._greeted = True
            self._connection.send(frames.encode_document(frames.JOB, self._job.to_document()))
        elif not self._greeted:
            raise self._broken("the worker did not say hello first")
        elif isinstance(event, Failed):
            self._failed = event
        elif isinstance(event, End):
            self._ended = True
        return event

    def _check_hello(self, hello: Hello) -> None:
        distributions = hello.facts.get("distributions")
        texts = [hello.facts.get("machine", ""), hello.facts.get("libc", "")]
        if not isinstance(distributions, dict) or len(distributions) > MAX_DISTRIBUTIONS:
            raise self._broken("the worker does not say what is installed")
        if not all(isinstance(text, str) for text in (*texts, *distributions.values())):
            raise self._broken("the worker describes its surroundings in values that are no text")

    def _count_event(self, size_bytes: int) -> None:
        self._event_bytes += size_bytes
        if self._event_bytes > MAX_EVENT_BYTES:
            raise WorkerExceeded(
                f"the worker's events come to over {MAX_EVENT_BYTES} bytes", hint="see worker.log"
            )

    def _conclude(self, pending_bytes: int) -> None:
        state = self._connection.wait(_EXIT_TIMEOUT_S)
        if self._failed is not None:
            raise self._worker_failed(self._failed)
        if pending_bytes:
            raise self._broken(f"the stream ended inside a frame ({pending_bytes} bytes of it came)")
        if not self._ended or state.status != 0:
            raise WorkerCrashed(
                f"the worker ended without finishing: {_describe(state)}",
                context=self._connection.tail(),
                hint="the lines above are the end of its stderr; worker.log in the run's folder has all of it",
            )

    def _worker_failed(self, event: Failed) -> WorkerFailed:
        fault = event.fault if event.fault in FAULTS else "mlbundle"
        return WorkerFailed(
            str(event.message),
            fault=fault,
            where=str(event.reference),
            context=self._connection.tail() if fault in {"framework", "mlbundle"} else (),
            hint=event.hint,
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

    def _broken(self, message: str) -> ProtocolBroken:
        return ProtocolBroken(
            message,
            context=self._connection.tail(),
            hint="worker and host must be of versions that fit; see worker.log",
        )


def _describe(state: ExitState) -> str:
    if state.status is None:
        return state.detail or "its exit status is unknown"
    if state.status in {137, -9}:
        return "it was killed (out of memory?)"
    return f"exit status {state.status}"


class _FileReceiver:
    """Writes the files that a worker may send, under temporary names until they are whole."""

    def __init__(self, folder: Path, cap_bytes: int) -> None:
        self._folder = folder
        self._cap_bytes = cap_bytes
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
            self._stream.close()
            self._stream = None
            with suppress(OSError):
                self._part().unlink()

    def _begin(self, head: dict[str, Any]) -> None:
        name, size = head.get("name"), head.get("size")
        if self._stream is not None:
            raise frames.FrameError("a file began inside another")
        if not isinstance(name, str) or ALLOWED_FILES.match(name) is None or name in self._seen:
            raise frames.FrameError(f"a file of the name {name!r} is not wanted")
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
