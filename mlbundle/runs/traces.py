"""The traces of runs: where they are, questions to them, the way into a browser, and other formats."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mlbundle.errors import ReferenceNotFound, UsageError
from mlbundle.runs.catalog import choose_runs, show_run
from mlbundle.runs.folder import TRACE

if TYPE_CHECKING:
    from mlbundle.config import Settings
    from mlbundle.trace.export import Exported
    from mlbundle.trace.processor import QueryResult, TraceProcessor
    from mlbundle.trace.serving import Route, TraceServer

FORMATS = ("perfetto", "chrome", "csv")
# The trace of a run with traces of other tools beside it.
IMPORTED = "trace-imported.pftrace.gz"
# What a browser's trace processor can hold is limited to 4 GiB of memory, and a trace grows when it is read.
BROWSER_BYTES = 1 << 30
_MISSING = re.compile(r"no such (table|column): ([\w.]+)")
_TABLES = re.compile(r"\b(?:from|join)\s+(\w+)", re.IGNORECASE)
_MOST_NAMES = 20
_LOSSES = "select name, sum(value) as n from stats where severity in ('error', 'data_loss') and value > 0 group by 1"


@dataclass(frozen=True)
class StoredTrace:
    """A trace: its file, and what it is called for people. `run_id` is empty for a file that is not a run's."""

    run_id: str
    path: Path
    title: str

    @property
    def folder(self) -> Path:
        """Where it lies: the run's folder."""
        return self.path.parent


@dataclass(frozen=True)
class Answer:
    """The rows of a query, what answered it, and what it lost when it read the trace."""

    result: QueryResult
    processor: str
    losses: dict[str, int]


def find_trace(settings: Settings, run: str, *, imported: bool = False) -> StoredTrace:
    """Return the trace of a run by its id, the beginning of its id, or `latest`; also of a run that broke off.

    A path is that of a file with a trace. `imported`: the one that `trace import` has written into the run's folder.
    Raises ReferenceNotFound when there is no such run or it has no trace.
    """
    if ("/" in run or "." in run) and Path(run).is_file():
        return StoredTrace("", Path(run), Path(run).name)
    record: dict[str, Any] | None
    try:
        record = show_run(settings, run)
        run_id = record["run_id"]
    except ReferenceNotFound:
        record, run_id = None, choose_runs(settings, [run])[0]
    folder = settings.runs_dir / run_id
    found = StoredTrace(run_id, folder / (IMPORTED if imported else TRACE), _title(run_id, record))
    if not found.path.is_file():
        if imported:
            what, hint = "nothing was imported", f"`mlbundle trace import {run_id} FILE`"
        elif record is None:
            what, hint = "no trace", "it goes on, or broke off before its trace was written"
        else:
            what, hint = "no trace", "run again with --trace model (the default), framework, system or full"
        raise ReferenceNotFound(
            f"{what} beside run {run_id}" if imported else f"run {run_id} has {what}",
            where=str(found.path),
            hint=hint,
        )
    return found


def _title(run_id: str, record: dict[str, Any] | None) -> str:
    bundle = (record or {}).get("bundle")
    name = bundle.get("name") if isinstance(bundle, dict) else None
    return f"{name} {run_id}" if isinstance(name, str) else f"run {run_id}"


def query_trace(
    settings: Settings, run: str, sql: str, *, imported: bool = False, limit_s: float | None = None
) -> Answer:
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
    found = find_trace(settings, run, imported=imported)
    command = find_processor()
    check_trace(found.path)
    with TraceProcessor(command, limit_s=limit_s) as processor:
        processor.load(found.path)
        losses = {str(name): int(n or 0) for name, n in processor.query(_LOSSES).rows}
        try:
            return Answer(processor.query(sql), processor.name, losses)
        except UsageError as error:
            raise _with_hint(error, sql, processor) from error


def _with_hint(error: UsageError, sql: str, processor: TraceProcessor) -> UsageError:
    """Return the error of a column or a table that there is not, with the names that are nearest to it."""
    from difflib import get_close_matches

    missing = _MISSING.search(error.message)
    if missing is None:
        return error
    if missing[1] == "table":
        names = "select name from sqlite_master union select name from pragma_module_list"
        known = [str(name) for (name,) in processor.query(names).rows]
    else:
        known = []
        for table in dict.fromkeys(_TABLES.findall(sql)):
            columns = processor.query(f"select name from pragma_table_info('{table}')")  # noqa: S608 - a word of \w
            known += [str(name) for (name,) in columns.rows]
    wanted = missing[2].rpartition(".")[2]
    near = get_close_matches(wanted, known, n=3) or sorted(set(known))[:_MOST_NAMES]
    if near:
        error.hint = f"there is: {', '.join(near)}"
    return error


@dataclass(frozen=True)
class OpenTrace:
    """A server that is ready to start, the trace that it serves, and how big that is."""

    server: TraceServer
    trace: StoredTrace
    unpacked_bytes: int


def open_trace(
    settings: Settings,
    run: str,
    *,
    route: Route,
    port: int | None = None,
    ui: str | None = None,
    imported: bool = False,
) -> OpenTrace:
    """Return a server for the trace of a run; start it with `with`, open its `link`, wait for `taken`.

    `ui`: where a Perfetto UI lies that is not the public one. Raises ReferenceNotFound, IntegrityError for a damaged
    trace, EnvironmentLacks when the port is taken, ToolMissing when there is no packaged UI.
    """
    from mlbundle.trace.page import PUBLIC_UI
    from mlbundle.trace.processor import ui_build
    from mlbundle.trace.serving import URL_PORT, Offer, TraceServer
    from mlbundle.trace.stored import check_trace

    found = find_trace(settings, run, imported=imported)
    offer = Offer(
        trace=found.path,
        file_name=f"{found.run_id or 'trace'}.pftrace.gz",
        title=found.title,
        route=route,
        ui=ui or PUBLIC_UI,
        build=ui_build() if route == "offline" else None,
    )
    size = check_trace(found.path)
    usual = URL_PORT if route == "url" else 0
    return OpenTrace(TraceServer(offer, port=usual if port is None else port), found, size)


def export_trace(
    settings: Settings,
    run: str,
    trace_format: str,
    destination: Path | BinaryIO,
    *,
    imported: bool = False,
    force: bool = False,
) -> list[Exported]:
    """Write the trace of a run in one of FORMATS, and return the files that were written.

    `destination`: a path, or an open stream for a format that is one file. Raises ReferenceNotFound, IntegrityError or
    ProtocolBroken for damaged files, UsageError when a file is there and `force` is not set, StorageFailed.
    """
    from mlbundle.runs.trace_summary import pass_names
    from mlbundle.trace import export

    found = find_trace(settings, run, imported=imported)
    if trace_format == "perfetto":
        return [export.export_perfetto(found.path, destination, force=force)]
    if imported or not found.run_id:
        raise UsageError(
            f"{trace_format} is made of the columns of a run, and {found.path.name} is a trace alone",
            hint="leave out --imported and name the run, or say --format perfetto",
        )
    columns = export.load_columns(found.folder, pass_names(found.folder))
    if trace_format == "csv":
        if not isinstance(destination, Path):
            raise UsageError("csv makes a file for each table", hint="name a folder with -o")
        return export.export_csv(columns, destination, force=force)
    return [export.export_chrome(columns, destination, title=found.title, force=force)]
