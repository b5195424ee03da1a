"""Traces made elsewhere, put onto the timeline of a run: the run's own trace stays as it is, a new file has both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from mlbundle.errors import IntegrityError, UsageError
from mlbundle.runs.catalog import show_run
from mlbundle.runs.traces import IMPORTED, find_trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mlbundle.config import Settings
    from mlbundle.trace.foreign import ForeignTrace

FORMATS = ("auto", "kineto", "otlp")
_NAMES = {"kineto": "a trace of PyTorch's profiler (kineto)", "otlp": "spans of OpenTelemetry (otlp)"}


@dataclass(frozen=True)
class ImportedFile:
    """One file: what made it, how many spans came, how many of them lie in the time of the run, how many did not.

    `notes` say what is not shown as it was given.
    """

    path: str
    kind: str
    spans: int
    within_run: int
    skipped: int
    notes: tuple[str, ...] = ()


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
    force: bool = False,
) -> Imported:
    """Write the trace of a run with these traces beside it, by default into the run's folder.

    It is compressed where its name ends in `.gz`. Raises ReferenceNotFound, IntegrityError for a file that can't be
    understood or has nothing in it, StorageFailed; without `force` UsageError when there is such a file already, or
    when nothing of a trace happened during the run.
    """
    from mlbundle.bundle.output import temporary_beside
    from mlbundle.trace.export import check_destination, export_perfetto
    from mlbundle.trace.foreign import combine

    stored = find_trace(settings, run)
    target = output or stored.folder / IMPORTED
    _check_target(target, stored.path, files, own=output is None, force=force)
    check_destination(target, force=True)
    record = show_run(settings, stored.run_id)
    during = (_ns(record["started_at"]), _ns(record.get("finished_at")))
    traces = [(path, _read(path, file_format)) for path in files]
    told = tuple(_told(path, trace, during) for path, trace in traces)
    if not force:
        _refuse_other_times(told)
    with temporary_beside(target) as (temporary, _):
        combine(stored.path, [trace for _, trace in traces], temporary)
        export_perfetto(temporary, target, force=force)
    # Some of what can't be shown is seen only when it is written.
    left_out = [
        replace(one, skipped=trace.skipped, notes=tuple(trace.notes))
        for one, (_, trace) in zip(told, traces, strict=True)
    ]
    return Imported(target, tuple(left_out))


def _check_target(target: Path, own_trace: Path, files: Sequence[Path], *, own: bool, force: bool) -> None:
    from mlbundle.trace.foreign import is_source

    if is_source(target, (own_trace, *files)):
        raise UsageError(
            "neither a run's own trace nor a file that is imported is written over",
            where=str(target),
            hint="name another -o FILE",
        )
    if target.exists() and not force:
        hint = "--force replaces it, with the FILES that are named now alone; -o FILE writes somewhere else"
        what = "something was imported before" if own else f"{target} exists already"
        raise UsageError(what, where=str(target), hint=hint)


def _refuse_other_times(files: Sequence[ImportedFile]) -> None:
    outside = [one.path for one in files if not one.within_run]
    if outside:
        raise UsageError(
            f"nothing of {' and '.join(outside)} happened while the run went on",
            hint="is it of this run, and of this machine? --force puts it there all the same",
        )


def _read(path: Path, file_format: str) -> ForeignTrace:
    from mlbundle.trace import kineto, otlp
    from mlbundle.trace.foreign import read_text

    text, where = read_text(path), str(path)
    looks = [
        name
        for name, look in (("kineto", kineto.looks_like_kineto), ("otlp", otlp.looks_like_otlp))
        if look(text)
    ]
    chosen = next(iter(looks), "") if file_format == "auto" else file_format
    if not chosen:
        raise IntegrityError(
            "the file is neither a trace of Kineto nor spans of OpenTelemetry",
            where=where,
            hint="PyTorch: prof.export_chrome_trace(); OpenTelemetry: OTLP as JSON, one request or one a line",
        )
    if looks and chosen not in looks:
        raise UsageError(
            f"the file looks like {_NAMES[looks[0]]}, not like {_NAMES[chosen]}",
            where=where,
            hint="leave out --from",
        )
    trace = kineto.read_kineto(text, where=where) if chosen == "kineto" else otlp.read_otlp(text, where=where)
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
