"""The supervisor: takes the job, starts one measuring child for each pass, passes on what it says.

Frames of a child are passed on whole, so the stream to the host stays well-formed however a child dies. End of
file on stdin means that the host is gone, and so does silence where it had promised to be heard, and SIGTERM is what an
engine sends that ends: the child is killed and the supervisor leaves.
"""

from __future__ import annotations

import os
import platform
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import mlbundle
from mlbundle.wire import events, frames, presence
from mlbundle.wire.clocks import clock_snapshot
from mlbundle.wire.job import Job, JobError, job_from_document
from mlbundle.wire.passes import folder_number, is_profile, passes_of
from mlbundle.worker import memory
from mlbundle.worker.child import PROFILE_FAILED, profile_failed
from mlbundle.worker.emit import Emitter, claim_standard_streams
from mlbundle.worker.errors import EXIT_COMPLETED, EXIT_OF_FAULT
from mlbundle.worker.surroundings import surroundings

_READ_BYTES = 1 << 16


class _HostGone(Exception):
    """The host closed our stdin."""


class _Leaving(Exception):
    """We leave before the end, and say why, in case that somebody reads it."""

    def __init__(self, reference: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.event = events.Failed(reference=reference, message=message, hint=hint, fault="environment")


class _Host:
    """What the host says on our stdin after the job: only that it is there."""

    def __init__(self, read_fd: int) -> None:
        self.read_fd = read_fd
        self._due_s: float | None = None

    def left_s(self) -> float | None:
        """Return how long it may stay silent, None for ever. Raises _Leaving when it was silent for too long."""
        if self._due_s is None:
            return None
        left_s = self._due_s - time.monotonic()
        # What it said while we were busy counts.
        if left_s <= 0 and not select.select([self.read_fd], [], [], 0)[0]:
            raise _Leaving(
                "host-silent",
                "the worker left: it had not heard of the process that drives the run for too long",
                "that process, or the way from it to the container, was stopped; run it again",
            )
        return max(0.0, left_s)

    def hear(self) -> None:
        """Take what can be read. Raises _HostGone at the end of the stream."""
        data = os.read(self.read_fd, _READ_BYTES)
        if not data:
            raise _HostGone
        within_s = presence.promised_s(data)
        self._due_s = None if within_s is None else time.monotonic() + within_s


class _Relay:
    """Passes on what the children say; `folders` is how many folders of passes their files named so far, `in_file`
    whether the last of them ended in the middle of a file, `concluded` whether it told a result, or why there is none.

    `ended_fd` is what wakes us when a child ends: the child's end of its pipe may outlive it, for what it has forked
    holds it, too.
    """

    def __init__(self, emitter: Emitter, host: _Host, ended_fd: int) -> None:
        self.emitter = emitter
        self.folders = 0
        self.in_file = False
        self.concluded = False
        self._host = host
        self._ended_fd = ended_fd

    def run(self, child: subprocess.Popen[bytes]) -> bool:
        """Pass on every whole frame of the child until it ends; True when it reported an error itself."""
        assert child.stdout is not None
        child_fd = child.stdout.fileno()
        read_fd, ended_fd = self._host.read_fd, self._ended_fd
        decoder = frames.FrameDecoder()
        told = ended = self.concluded = False
        while True:
            left_s = self._host.left_s()
            ready, _, _ = select.select([child_fd, read_fd, ended_fd], [], [], 0 if ended else left_s)
            if read_fd in ready:
                self._host.hear()
            if ended_fd in ready:
                os.read(ended_fd, _READ_BYTES)
                ended = child.poll() is not None
            if child_fd not in ready:
                if ended and not ready:
                    return told
                continue
            data = os.read(child_fd, _READ_BYTES)
            if not data:
                return told
            for frame in decoder.feed(data):
                told = self._pass_on(frame) or told

    def _pass_on(self, frame: frames.Frame) -> bool:
        """Pass on one frame; True when it tells an error."""
        self.emitter.frame(frames.encode(frame.kind, frame.payload))
        if frame.kind in (frames.FILE_BEGIN, frames.FILE_END):
            self.in_file = frame.kind == frames.FILE_BEGIN
        if frame.kind == frames.FILE_BEGIN:
            number = folder_number(str(frame.document().get("name")))
            self.folders = max(self.folders, -1 if number is None else number + 1)
        if frame.kind != frames.EVENT:
            return False
        said = frame.document()
        self.concluded = self.concluded or _concludes(said)
        return said.get("kind") == events.Failed.kind


def _concludes(said: dict[str, Any]) -> bool:
    """Return whether an event tells what came of a pass: a result, or why a profile has none."""
    return said.get("kind") == events.Result.kind or said.get("reference") == PROFILE_FAILED


def main() -> int:
    """Run the worker; returns its exit status."""
    read_fd, write_fd = claim_standard_streams()
    emitter = Emitter(write_fd)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return _supervise(read_fd, emitter)
    except _Leaving as leaving:
        # Nobody may be reading, and we would wait for ever.
        os.set_blocking(write_fd, False)
        with suppress(BrokenPipeError, BlockingIOError):
            emitter.event(leaving.event)
        return EXIT_OF_FAULT["environment"]
    except (BrokenPipeError, _HostGone):
        return EXIT_OF_FAULT["environment"]


def _supervise(read_fd: int, emitter: Emitter) -> int:
    emitter.event(_hello())
    try:
        job, payload = _receive_job(read_fd)
    except (JobError, frames.FrameError) as error:
        emitter.event(events.Failed(reference="job-refused", message=str(error), fault="mlbundle"))
        return EXIT_OF_FAULT["mlbundle"]
    ended_fd = _wake_at_end_of_child()
    relay = _Relay(emitter, _Host(read_fd), ended_fd)
    for name in passes_of(job):
        status = _run_pass(name, job, payload, relay)
        if status != EXIT_COMPLETED:
            return status
    emitter.event(events.End(status="completed", clocks=clock_snapshot()))
    return EXIT_COMPLETED


def _terminate(*_: Any) -> None:
    """Leave; the first process of a container would not by itself, and keep the engine waiting."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Leaving(
        "worker-terminated",
        "the worker was asked to end (SIGTERM)",
        "the engine was stopped, or somebody ended the worker; run it again",
    )


def _hello() -> events.Hello:
    versions = {"mlbundle": mlbundle.__version__, "python": platform.python_version()}
    return events.Hello(versions=versions, clocks=clock_snapshot(), facts=surroundings())


def _receive_job(read_fd: int) -> tuple[Job, bytes]:
    with os.fdopen(os.dup(read_fd), "rb", buffering=0) as stream:
        frame = frames.read_frame(stream)
    if frame is None:
        raise _HostGone
    if frame.kind != frames.JOB:
        raise frames.FrameError("the first frame is no job but of type {}".format(frame.kind))
    return job_from_document(frame.document()), frame.payload


def _run_pass(name: str, job: Job, job_payload: bytes, relay: _Relay) -> int:
    emitter = relay.emitter
    kills_before = memory.kills(job)
    child = subprocess.Popen(
        [
            *(sys.executable, "-s", sys.argv[0]),
            *("--pass", name, str(relay.folders), str(time.monotonic_ns())),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    told = False
    try:
        try:
            child.stdin.write(frames.encode(frames.JOB, job_payload))
            child.stdin.close()
        except BrokenPipeError:
            pass  # it died before it read: its exit status tells
        told = relay.run(child)
        status = child.wait()
    except frames.FrameError as error:
        message = "the {} pass wrote into the protocol: {}".format(name, error)
        if _may_go_on(name, relay):
            return _go_on_without(name, message, relay)
        emitter.event(events.Failed(reference="protocol-garbled", message=message, fault="bundle"))
        return EXIT_OF_FAULT["bundle"]
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if _may_go_on(name, relay) and not told:
        return _go_on_without(name, _crash_event(name, job, status, kills_before).message, relay)
    if status != EXIT_COMPLETED and not told:
        failed = _crash_event(name, job, status, kills_before)
        emitter.event(failed)
        return EXIT_OF_FAULT[failed.fault]
    return status if status >= 0 else EXIT_OF_FAULT["framework"]


def _may_go_on(name: str, relay: _Relay) -> bool:
    """Return whether a pass that ended, however it did, ends no run: one that profiles, and left no half of a file."""
    return is_profile(name) and not relay.in_file


def _go_on_without(name: str, why: str, relay: _Relay) -> int:
    """Say why there is no profile, unless it was told, or there is one; returns the exit status of the pass."""
    if not relay.concluded:
        relay.emitter.event(profile_failed(name, why))
        relay.emitter.phase("profile", "done")
    return EXIT_COMPLETED


def _wake_at_end_of_child() -> int:
    """Return a descriptor that can be read whenever a child has ended; it costs nothing while none does."""
    wake_fd, write_fd = os.pipe()
    os.set_blocking(wake_fd, False)
    os.set_blocking(write_fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    return wake_fd


def _crash_event(name: str, job: Job, status: int, kills_before: Any) -> events.Failed:
    """Return what is said of a pass that ended without a word; `kills_before` is `memory.kills` from before it."""
    if status >= 0:
        return events.Failed(
            reference="measuring-process-crashed",
            message="the {} pass ended with status {} and said nothing".format(name, status),
            hint="the last lines of worker.log may say more",
            fault="framework",
        )
    try:
        cause = signal.Signals(-status).name
    except ValueError:
        cause = "signal {}".format(-status)
    if cause == "SIGKILL":
        return _killed_event(name, job, kills_before)
    return events.Failed(
        reference="measuring-process-crashed",
        message="the {} pass crashed: {}; {}".format(name, cause, memory.usage_of_children()),
        hint="the framework, or code of the bundle, crashed where the lines above say; worker.log has all of them",
        fault="framework",
    )


def _killed_event(name: str, job: Job, kills_before: Any) -> events.Failed:
    kills_now = memory.kills(job)
    if kills_before is not None and kills_now is not None and kills_now > kills_before:
        error = memory.out_of_memory(name, job, "the kernel killed it")
        return events.Failed(
            reference=error.reference, message=error.message, hint=error.hint, fault=error.fault
        )
    known = kills_before is not None
    return events.Failed(
        reference="measuring-process-killed",
        message="the {} pass was ended by SIGKILL{}".format(
            name, ", not for want of memory" if known else ""
        ),
        hint="its own code or somebody on this machine killed it"
        if known
        else "perhaps it was out of memory: raise --memory (now {})".format(
            memory.in_words(job.limits.memory_bytes)
        ),
        fault="environment",
    )
