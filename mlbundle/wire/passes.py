"""The passes of a job, each in a process of its own, and the names of the files that they may send."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Iterator, Mapping

from mlbundle.wire.scenarios import BY_NAME

if TYPE_CHECKING:
    from mlbundle.wire.job import Job

KINDS = ("pilot", "warm-up", "measure", "batch", "repeat", "accuracy", "profile", "cold-start", "noop")
"""Kinds of passes, as the folders of a run are named: `passes/<nn>-<kind>/`."""

MOST_FOLDERS = 100
# Folders are for other passes too.
MOST_BATCH_SIZES = 62
_FOLDER = re.compile(r"passes/([0-9]{2})-")
# So often a search for the peak begins, each time at a lower rate, until one finds it; and so often what was found is
# measured, each time at a lower rate, until that confirms it.
PEAK_SEARCHES, PEAK_ATTEMPTS = 3, 3
PEAK_KINDS = tuple("peak-{}".format(number) for number in range(PEAK_SEARCHES))
# All attempts but the last have logs of their own; that is the performance test.
UNCONFIRMED_KINDS = tuple("unconfirmed-{}".format(number) for number in range(PEAK_ATTEMPTS - 1))
LOADGEN_KINDS = ("performance", "accuracy", "TEST01", "TEST04", *PEAK_KINDS, *UNCONFIRMED_KINDS)
LOADGEN_FILES = (
    "mlperf_log_summary.txt",
    "mlperf_log_detail.txt",
    "mlperf_log_accuracy.json",
    "mlperf_log_trace.json",
    "audit.config",
)
LATENCIES, SCHEDULED, SPANS = "latencies.npy", "scheduled.npy", "spans.npz"
# Of answers that come token by token: the time to the first in ns, and how many there were.
FIRST_TOKENS, TOKENS = "first_tokens.npy", "tokens.npy"
# Of a pass that profiles: latencies without the profiler, and what the profiler saw.
UNPROFILED, LAYERS, KERNELS = "unprofiled.npy", "layers.npz", "kernels.npz"
PROFILED_LEVELS = ("framework", "system", "full")
OUTPUTS = "outputs.npz"


def passes_of(job: Job) -> list[str]:
    """Return the names of a job's passes, in order: a kind, or a kind and a number (`repeat:1`)."""
    options = job.scenario.get("options") or {}
    spec = BY_NAME.get(str(job.scenario["name"]))
    repeats = int(options.get("repeats") or 1)
    # Profiles come after what is measured: no query of a result is ever profiled.
    accuracy = [*profiles_of(job), *(["accuracy"] if job.accuracy is not None else [])]
    if spec is not None and spec.loadgen is not None:
        tests = ["loadgen:{}".format(name) for name in options.get("compliance") or ()]
        checked = ["loadgen:accuracy"] if job.accuracy is not None else []
        return [*performance_passes(options), *profiles_of(job), *checked, *tests]
    if spec is not None and spec.name == "cold-start":
        return ["cold-start:{}".format(number) for number in range(repeats)] + accuracy
    return ["measure", *("repeat:{}".format(number) for number in range(1, repeats)), *accuracy]


def performance_passes(options: Mapping[str, Any]) -> list[str]:
    """Return the names of the passes that lead to LoadGen's performance result: one, or searches and confirmations.

    Of those the first that finds and the first that confirms is the last: the others after it do nothing.
    """
    if not options.get("find_peak"):
        return ["loadgen:performance"]
    again = ["loadgen:performance:{}".format(attempt) for attempt in range(1, PEAK_ATTEMPTS)]
    return [*("loadgen:{}".format(kind) for kind in PEAK_KINDS), "loadgen:performance", *again]


def profiles_of(job: Job) -> list[str]:
    """Return the names of the passes that profile, each to one depth: its times are those of no deeper one.

    At `full` there is one more where layers may overlap on a device: each kernel is waited for.
    """
    if job.trace_level not in PROFILED_LEVELS:
        return []
    deeper = [] if job.trace_level == "framework" else ["profile:system"]
    serial = ["profile:serial"] if job.trace_level == "full" and job.accelerator != "cpu" else []
    return ["profile:framework", *deeper, *serial]


def is_profile(name: str) -> bool:
    """Return whether a pass profiles: what ends it ends no run."""
    return name.startswith("profile:")


def folder(number: int, kind: str) -> str:
    """Return the folder of a pass inside that of the run."""
    return "passes/{:02d}-{}".format(number, kind)


def folder_number(name: str) -> int | None:
    """Return the number of the folder of a pass that a file's name begins with; None for another file."""
    match = _FOLDER.match(name)
    return None if match is None else int(match.group(1))


def wanted_files(job: Job) -> frozenset[str]:
    """Return the names of all files that a worker may send for a job."""
    return frozenset(_names(job))


def _names(job: Job) -> Iterator[str]:
    files = (LATENCIES, SCHEDULED, FIRST_TOKENS, TOKENS, *((SPANS,) if job.trace_level != "none" else ()))
    for number in range(MOST_FOLDERS):
        for kind in KINDS:
            for name in files:
                yield "{}/{}".format(folder(number, kind), name)
        if job.trace_level in PROFILED_LEVELS:
            for name in (UNPROFILED, LAYERS, KERNELS):
                yield "{}/{}".format(folder(number, "profile"), name)
    if job.accuracy is not None:
        yield OUTPUTS
    spec = BY_NAME.get(str(job.scenario["name"]))
    if spec is not None and spec.loadgen is not None:
        for kind in LOADGEN_KINDS:
            for name in LOADGEN_FILES:
                yield "loadgen/{}/{}".format(kind, name)
