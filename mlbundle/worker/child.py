"""The measuring child: one pass in a process of its own."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import traceback

from mlbundle.wire import events, frames
from mlbundle.wire.job import Job, job_from_document
from mlbundle.wire.passes import is_profile
from mlbundle.worker.emit import Emitter, claim_standard_streams
from mlbundle.worker.errors import EXIT_COMPLETED, EXIT_OF_FAULT, MAX_TEXT, WorkerError
from mlbundle.worker.memory import as_shortage, out_of_memory

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29
PROFILE_FAILED = "profile-failed"


def main(pass_name: str, folders: int) -> int:
    """Read the job, run one pass, report; returns the exit status. `folders` of earlier passes are there already."""
    read_fd, write_fd = claim_standard_streams()
    emitter = Emitter(write_fd, folders)
    # What crashes in native code says on stderr where in Python it was.
    faulthandler.enable(all_threads=False)
    _tie_to_parent()
    with os.fdopen(read_fd, "rb") as stream:
        frame = frames.read_frame(stream)
    if frame is None:
        return EXIT_OF_FAULT["environment"]
    job = job_from_document(frame.document())
    try:
        _run(pass_name, job, emitter)
    except BrokenPipeError:
        return EXIT_OF_FAULT["environment"]
    except Exception as error:  # noqa: BLE001 - whatever it is, the host must hear of it
        if not is_profile(pass_name):
            return _failed(error, pass_name, job, emitter)
        # What was measured stands: the run goes on without this profile.
        traceback.print_exc(file=sys.stderr)
        emitter.event(profile_failed(pass_name, "{}: {}".format(type(error).__name__, error)))
    return EXIT_COMPLETED


def _failed(error: Exception, pass_name: str, job: Job, emitter: Emitter) -> int:
    """Tell the host what went wrong; returns the exit status."""
    if isinstance(error, WorkerError):
        traceback.print_exc(file=sys.stderr)
        return _report(as_shortage(error, pass_name, job) or error, emitter)
    if isinstance(error, MemoryError):
        return _report(out_of_memory(pass_name, job, str(error)[:MAX_TEXT]), emitter)
    traceback.print_exc(file=sys.stderr)
    internal = WorkerError(
        "worker-internal",
        "{}: {}".format(type(error).__name__, error),
        fault="mlbundle",
        hint="this is a mistake in mlbundle; worker.log has the traceback",
    )
    return _report(as_shortage(error, pass_name, job) or internal, emitter)


def profile_failed(pass_name: str, why: str) -> events.Warned:
    """Return what is said of a profile that could not be made."""
    return events.Warned(
        reference=PROFILE_FAILED,
        message="{}: {}".format(pass_name, why)[:MAX_TEXT],
        hint="what was measured stands; the trace is without what this pass would have seen, and worker.log says more",
    )


def _report(error: WorkerError, emitter: Emitter) -> int:
    emitter.event(
        events.Failed(reference=error.reference, message=error.message, hint=error.hint, fault=error.fault)
    )
    return error.exit_status


def _run(pass_name: str, job: Job, emitter: Emitter) -> None:
    if job.limits.cpus and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, job.limits.cpus)
        except OSError as error:
            raise WorkerError(
                "cpus-not-available",
                "can't run on CPUs {}: {}".format(list(job.limits.cpus), error),
                fault="environment",
                hint="leave out --cpus, or name CPUs that this machine lets you use",
            ) from error
    from mlbundle.worker.passes import run_pass

    run_pass(pass_name, job, emitter)


def _tie_to_parent() -> None:
    """Die with the supervisor, and wake up on time (timer slack 1 ns instead of 50 us); Linux only."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
