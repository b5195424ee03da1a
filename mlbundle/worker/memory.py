"""Memory that ran out, in words: whose limit it was and how high.

A container's limit kills (SIGKILL by the kernel, which counts it); the limit of a process makes allocations fail, which
every framework says in its own way.
"""

from __future__ import annotations

import re
import resource
import sys
from typing import Any

from mlbundle.wire.job import ASSETS_IN_CONTAINER, Job
from mlbundle.worker.errors import WorkerError

_SAID = re.compile(
    r"std::bad_alloc|(?:cannot|can't|unable to|failed to) allocate\b|OOM when allocating|out of memory|\[Errno 12\]",
    re.IGNORECASE,
)
_NO_THREAD = "can't start new thread"
# Control groups version 2 and 1 as a container sees its own; the kernel's count for the whole machine.
_COUNTED_IN_CONTAINER = (
    ("/sys/fs/cgroup/memory.events", "oom_kill"),
    ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill"),
)
_COUNTED_ON_MACHINE = (("/proc/vmstat", "oom_kill"),)


def out_of_memory(pass_name: str, job: Job, detail: str = "") -> WorkerError:
    """Return the error of a pass that needs more memory than it may have."""
    said = ": {}".format(detail) if detail else ""
    return WorkerError(
        "out-of-memory",
        "the {} pass is out of memory, its limit is {}{}".format(
            pass_name, in_words(job.limits.memory_bytes), said
        ),
        fault="environment",
        hint="raise --memory",
    )


def is_shortage(error: BaseException) -> bool:
    """Return whether an exception means that memory or threads ran out, in whatever words."""
    if isinstance(error, MemoryError) or getattr(error, "reference", None) == "out-of-memory":
        return True
    said = str(error)
    return isinstance(error, Exception) and (_SAID.search(said) is not None or _NO_THREAD in said)


def as_shortage(error: Exception, pass_name: str, job: Job) -> Any:
    """Return the WorkerError of an exception that means that memory or threads ran out, None for any other."""
    if isinstance(error, WorkerError) and error.reference == "out-of-memory":
        return None
    said = str(error)
    if _SAID.search(said):
        return out_of_memory(pass_name, job, said)
    if _NO_THREAD not in said:
        return None
    # A thread needs memory for its stack and a number of its own.
    if resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY:
        return out_of_memory(pass_name, job, said)
    return WorkerError(
        "threads-exhausted",
        "the {} pass can't start another thread".format(pass_name),
        fault="environment",
        hint="raise the setting pids, or --memory",
    )


def kills(job: Job) -> Any:
    """Return how often the kernel has killed for want of memory so far, None where it does not say."""
    contained = job.paths.get("assets") == ASSETS_IN_CONTAINER
    for path, name in _COUNTED_IN_CONTAINER if contained else _COUNTED_ON_MACHINE:
        try:
            with open(path) as stream:
                counted = [line.split()[1] for line in stream if line.startswith(name + " ")]
            return int(counted[0])
        except (OSError, ValueError, IndexError):
            continue
    return None


def usage_of_children() -> str:
    """Return how much memory the passes have had, beside the limit of a process where there is one."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    had = "it had up to {} of memory".format(in_words(peak if sys.platform == "darwin" else peak * 1024))
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return had if limit == resource.RLIM_INFINITY else "{}, its limit is {}".format(had, in_words(limit))


def in_words(size_bytes: int) -> str:
    """Return a size as people say it: `256 MiB`, `2 GiB`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return "{:g} {}".format(round(size_bytes / unit, 1), name)
    return "{} bytes".format(size_bytes)
