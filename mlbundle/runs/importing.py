"""Traces made elsewhere, put onto the timeline of a run: the run's own trace stays as it is, a new file has both."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from mlbundle.errors import IntegrityError, UsageError
from mlbundle.runs.catalog import show_run
from mlbundle.runs.traces import find_trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mlbundle.config import Settings
    from mlbundle.trace.foreign import ForeignTrace

IMPORTED = "trace-imported.pftrace.gz"
FORMATS = ("auto", "kineto", "otlp")


@dataclass(frozen=True)
class ImportedFile:
    """One file: what made it, how many spans came, how many of them lie in the time of the run, how many did not."""

    path: str
    kind: str
    spans: int
    within_run: int
    skipped: int


@dataclass(frozen=True)
class Imported:
    """The new trace, and what went into it."""

    path: Path
    files: tuple[ImportedFile, ...]


def import_traces(
    settings: Settings,
    run: str,
    files: Sequence[Path],
    *,
    output: Path | None = None,
    file_format: str = "auto",
) -> Imported:
    """Write the trace of a run with these traces beside it, by default into the run's folder.

    Raises ReferenceNotFound, IntegrityError for a file that can't be understood or has nothing in it, StorageFailed.
    """
    from mlbundle.trace.foreign import combine

    stored = find_trace(settings, run)
    if output is not None and output.is_dir():
        raise UsageError("the output is a folder", where=str(output), hint="name a file")
    record = show_run(settings, stored.run_id)
    during = (_ns(record["started_at"]), _ns(record.get("finished_at")))
    traces = [(path, _read(path, file_format)) for path in files]
    target = output or stored.folder / IMPORTED
    combine(stored.path, [trace for _, trace in traces], target)
    return Imported(target, tuple(_told(path, trace, during) for path, trace in traces))


def _read(path: Path, file_format: str) -> ForeignTrace:
    from mlbundle.trace import kineto, otlp
    from mlbundle.trace.foreign import read_text

    text, where = read_text(path), str(path)
    if file_format == "kineto" or (file_format == "auto" and kineto.looks_like_kineto(text)):
        trace = kineto.read_kineto(text, where=where)
    elif file_format == "otlp" or otlp.looks_like_otlp(text):
        trace = otlp.read_otlp(text, where=where)
    else:
        raise IntegrityError(
            "the file is neither a trace of Kineto nor spans of OpenTelemetry",
            where=where,
            hint="PyTorch: prof.export_chrome_trace(); OpenTelemetry: OTLP as JSON, one request or one a line",
        )
    if not trace.slices:
        raise IntegrityError("nothing in the file lasts any time", where=where)
    return trace


def _told(path: Path, trace: ForeignTrace, during: tuple[int | None, int | None]) -> ImportedFile:
    start_ns, end_ns = during
    within = sum(
        (start_ns is None or one.end_ns >= start_ns) and (end_ns is None or one.start_ns <= end_ns)
        for one in trace.slices
    )
    return ImportedFile(str(path), trace.kind, len(trace.slices), within, trace.skipped)


def _ns(moment: str | None) -> int | None:
    return None if moment is None else int(datetime.fromisoformat(moment).timestamp() * 1e9)
