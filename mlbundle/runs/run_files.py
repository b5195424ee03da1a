"""The files of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.errors import ReferenceNotFound
from mlbundle.files import storage_failed

if TYPE_CHECKING:
    from pathlib import Path

_MOST = 10_000
# What each file is, by its name or the end of it.
_KINDS = {
    "record.json": "the record: what was run, and what came out",
    "events.jsonl": "everything that was said while it went on",
    "job.json": "what the worker was asked to do",
    "worker.log": "what the worker printed",
    "owner.lock": "held by the process that drives the run",
    "outputs.npz": "outputs and predictions of the accuracy pass",
    "spans.npz": "steps of the queries, as columns",
    "layers.npz": "layers of the profiled queries, as columns",
    "kernels.npz": "kernels of the profiled queries, as columns",
    "samples.npz": "counters of the worker, as columns",
    "trace.pftrace.gz": "the trace, for Perfetto",
    "latencies.npy": "a latency for each query, ns",
    "scheduled.npy": "when each query was due, ns",
    "unprofiled.npy": "latencies without the profiler, ns",
    "first_tokens.npy": "time to the first token, ns",
    "tokens.npy": "tokens of each answer",
}


@dataclass(frozen=True)
class RunFile:
    """A file of a run: its place in the run's folder, and what it is."""

    name: str
    size_bytes: int
    kind: str


def run_files(folder: Path) -> list[RunFile]:
    """Return the files of a run, the folder's own first. Raises ReferenceNotFound, StorageFailed."""
    if not folder.is_dir():
        raise ReferenceNotFound(f"run {folder.name} has no files", where=str(folder), hint="it was removed")
    try:
        found = [
            RunFile(str(path.relative_to(folder)), path.lstat().st_size, _KINDS.get(path.name, ""))
            for path in sorted(folder.rglob("*"))[:_MOST]
            if path.is_symlink() or path.is_file()
        ]
    except OSError as error:
        raise storage_failed(error, folder) from error
    return sorted(found, key=lambda file: (file.name.count("/"), file.name))
