"""The supervisor: takes the job, starts one measuring child for each pass, passes on what it says.

Frames of a child are passed on whole, so the stream to the host stays well-formed however a child dies. End of
file on stdin means that the host is gone: the child is killed and the supervisor leaves.
"""

from __future__ import annotations

import os
import platform
import select
import signal
import subprocess
import sys
from typing import Any

import mlbundle
from mlbundle.wire import events, frames
from mlbundle.wire.clocks import clock_snapshot
from mlbundle.wire.job import Job, JobError, job_from_document
from mlbundle.worker import memory
from mlbundle.worker.emit import Emitter, claim_standard_streams
from mlbundle.worker.errors import EXIT_COMPLETED, EXIT_OF_FAULT
from mlbundle.worker.surroundings import surroundings

_READ_BYTES = 1 << 16


class _HostGone(Exception):
    """The host closed our stdin."""


def main() -> int:
    """Run the worker; returns its exit status."""
    read_fd, write_fd = claim_standard_streams()
    emitter = Emitter(write_fd)
    try:
        return _supervise(read_fd, emitter)
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
    for name in passes_of(job):
        status = _run_pass(name, job, payload, (read_fd, ended_fd), emitter)
        if status != EXIT_COMPLETED:
            return status
    emitter.event(events.End(status="completed", clocks=clock_snapshot()))
    return EXIT_COMPLETED


def passes_of(job: Job) -> list[str]:
    """Return the passes that a job asks for, in order; each runs in a process of its own."""
    return ["measure"] + (["accuracy"] if job.accuracy is not None else [])


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


def _run_pass(name: str, job: Job, job_payload: bytes, watched: tuple[int, int], emitter: Emitter) -> int:
    kills_before = memory.kills(job)
    child = subprocess.Popen(
        [sys.executable, "-s", sys.argv[0], "--pass", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
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
        told = _pass_on(child, watched, emitter)
        status = child.wait()
    except frames.FrameError as error:
        message = "the {} pass wrote into the protocol: {}".format(name, error)
        emitter.event(events.Failed(reference="protocol-garbled", message=message, fault="bundle"))
        return EXIT_OF_FAULT["bundle"]
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if status != EXIT_COMPLETED and not told:
        failed = _crash_event(name, job, status, kills_before)
        emitter.event(failed)
        return EXIT_OF_FAULT[failed.fault]
    return status if status >= 0 else EXIT_OF_FAULT["framework"]


def _wake_at_end_of_child() -> int:
    """Return a descriptor that can be read whenever a child has ended; it costs nothing while none does."""
    wake_fd, write_fd = os.pipe()
    os.set_blocking(wake_fd, False)
    os.set_blocking(write_fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    return wake_fd


def _pass_on(child: subprocess.Popen[bytes], watched: tuple[int, int], emitter: Emitter) -> bool:
    """Pass on every whole frame of the child until it ends; True when it reported an error itself.

    `watched` are our stdin and what wakes us when a child ends: the child's end of its pipe may outlive it, for what
    it has forked holds it, too.
    """
    assert child.stdout is not None
    child_fd = child.stdout.fileno()
    read_fd, ended_fd = watched
    decoder = frames.FrameDecoder()
    told = ended = False
    while True:
        ready, _, _ = select.select([child_fd, read_fd, ended_fd], [], [], 0 if ended else None)
        if read_fd in ready and not os.read(read_fd, _READ_BYTES):
            raise _HostGone
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
            told = told or (frame.kind == frames.EVENT and frame.document().get("kind") == events.Failed.kind)
            emitter.frame(frames.encode(frame.kind, frame.payload))


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
