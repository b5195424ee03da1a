"""The traces of runs: where they are, questions to them, the way into a browser, and other formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import ReferenceNotFound, UsageError
from mlbundle.runs.catalog import choose_runs, show_run
from mlbundle.runs.folder import TRACE

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.config import Settings
    from mlbundle.trace.export import Exported
    from mlbundle.trace.processor import QueryResult
    from mlbundle.trace.serving import Route, TraceServer

FORMATS = ("perfetto", "chrome", "csv")
# What a browser's trace processor can hold is limited to 4 GiB of memory, and a trace grows when it is read.
BROWSER_BYTES = 1 << 30
_LOSSES = "select name, sum(value) as n from stats where severity in ('error', 'data_loss') and value > 0 group by 1"


@dataclass(frozen=True)
class StoredTrace:
    """The trace of a run: its file, and what the run is called for people."""

    run_id: str
    folder: Path
    title: str

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / TRACE


@dataclass(frozen=True)
class Answer:
    """The rows of a query, what answered it, and what it lost when it read the trace."""

    result: QueryResult
    processor: str
    losses: dict[str, int]


def find_trace(settings: Settings, run: str) -> StoredTrace:
    """Return the trace of a run by its id, the beginning of its id, or `latest`; also of a run that broke off.

    Raises ReferenceNotFound when there is no such run or it has no trace.
    """
    record: dict[str, Any] | None
    try:
        record = show_run(settings, run)
        run_id = record["run_id"]
    except ReferenceNotFound:
        record, run_id = None, choose_runs(settings, [run])[0]
    found = StoredTrace(run_id, settings.runs_dir / run_id, _title(run_id, record))
    if not found.path.is_file():
        raise ReferenceNotFound(
            f"run {run_id} has no trace",
            where=str(found.path),
            hint="run again with --trace model (the default), framework, system or full"
            if record is not None
            else "it goes on, or broke off before its trace was written",
        )
    return found


def _title(run_id: str, record: dict[str, Any] | None) -> str:
    bundle = (record or {}).get("bundle")
    name = bundle.get("name") if isinstance(bundle, dict) else None
    return f"{name} {run_id}" if isinstance(name, str) else f"run {run_id}"


def query_trace(settings: Settings, run: str, sql: str, *, limit_s: float | None = None) -> Answer:
    """Return what a trace processor answers to SQL over the trace of a run: the rows of the last statement.

    Raises ReferenceNotFound, ToolMissing when there is no processor, UsageError for SQL that it refuses, RunFailed when
    it takes longer than the limit or ends, IntegrityError for a damaged trace.
    """
    from mlbundle.trace.processor import TraceProcessor, find_processor
    from mlbundle.trace.stored import check_trace

    if not sql.strip():
        raise UsageError(
            "the query is empty", hint="write for example 'select name, dur from slice limit 10'"
        )
    found = find_trace(settings, run)
    command = find_processor()
    check_trace(found.path)
    with TraceProcessor(command, limit_s=limit_s) as processor:
        processor.load(found.path)
        losses = {str(name): int(n or 0) for name, n in processor.query(_LOSSES).rows}
        return Answer(processor.query(sql), processor.name, losses)


@dataclass(frozen=True)
class OpenTrace:
    """A server that is ready to start, the trace that it serves, and how big that is."""

    server: TraceServer
    trace: StoredTrace
    unpacked_bytes: int


def open_trace(
    settings: Settings, run: str, *, route: Route, port: int | None = None, ui: str | None = None
) -> OpenTrace:
    """Return a server for the trace of a run; start it with `with`, open its `link`, wait for `taken`.

    `ui`: where a Perfetto UI lies that is not the public one. Raises ReferenceNotFound, IntegrityError for a damaged
    trace, EnvironmentLacks when the port is taken, ToolMissing when there is no packaged UI.
    """
    from mlbundle.trace.page import PUBLIC_UI
    from mlbundle.trace.processor import ui_build
    from mlbundle.trace.serving import URL_PORT, Offer, TraceServer
    from mlbundle.trace.stored import check_trace

    found = find_trace(settings, run)
    offer = Offer(
        trace=found.path,
        file_name=f"{found.run_id}.pftrace.gz",
        title=found.title,
        route=route,
        ui=ui or PUBLIC_UI,
        build=ui_build() if route == "offline" else None,
    )
    size = check_trace(found.path)
    usual = URL_PORT if route == "url" else 0
    return OpenTrace(TraceServer(offer, port=usual if port is None else port), found, size)


def export_trace(
    settings: Settings, run: str, trace_format: str, destination: Path, *, force: bool = False
) -> list[Exported]:
    """Write the trace of a run in one of FORMATS, and return the files that were written.

    Raises ReferenceNotFound, IntegrityError or ProtocolBroken for damaged files, UsageError when a file is there and
    `force` is not set, StorageFailed.
    """
    from mlbundle.trace import export

    found = find_trace(settings, run)
    if trace_format == "perfetto":
        return [export.export_perfetto(found.path, destination, force=force)]
    columns = export.load_columns(found.folder)
    if trace_format == "csv":
        return export.export_csv(columns, destination, force=force)
    return [export.export_chrome(columns, destination, title=found.title, force=force)]
