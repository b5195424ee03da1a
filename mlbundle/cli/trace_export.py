"""`mlbundle trace export`: the trace of a run for other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import click

from mlbundle.cli import output
from mlbundle.cli.params import complete_run
from mlbundle.wording import units

SCHEMA = "mlbundle/trace-export/v1"
_FORMATS = ("perfetto", "chrome", "csv")
_COLUMNS = ("file", "size", "rows")


@click.command("export")
@click.argument("run", default="latest", shell_complete=complete_run)
@click.option(
    "--format",
    "trace_format",
    type=click.Choice(_FORMATS),
    default=_FORMATS[0],
    show_default=True,
    help="What to write.",
)
@click.option(
    "-o",
    "--output",
    "destination",
    type=click.Path(path_type=Path),
    required=True,
    help="File to write, - for stdout; for csv a folder.",
)
@click.option("--imported", is_flag=True, help="The trace that `mlbundle trace import` has made.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@click.option("--json", "as_json", is_flag=True, help="Say as JSON what was written.")
def export(
    *, run: str, trace_format: str, destination: Path, imported: bool, force: bool, as_json: bool
) -> None:
    """Write the trace of a run for other tools.

    RUN is the id of a run, its beginning, or latest, which is the default.

    \b
    perfetto  the trace as it is; unpacked unless the name ends in .gz
    chrome    Chrome's trace events (JSON) from the columns of the run; compressed if the name ends in .gz
    csv       a file for each table of the run: spans, layers, kernels, counters
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.traces import export_trace

    settings = load_settings()
    if str(destination) == "-":
        export_trace(settings, run, trace_format, _stdout(trace_format, as_json=as_json), imported=imported)
        return
    written = export_trace(settings, run, trace_format, destination, imported=imported, force=force)
    if as_json:
        files = [{"path": str(file.path), "size": file.size_bytes, "rows": file.rows} for file in written]
        output.document({"schema": SCHEMA, "format": trace_format, "files": files})
    else:
        output.table(_COLUMNS, [(file.path, units.size(file.size_bytes), file.rows) for file in written])


def _stdout(trace_format: str, *, as_json: bool) -> BinaryIO:
    """Return stdout for the trace itself. Raises UsageError where it can't be put there."""
    from mlbundle.errors import UsageError

    if trace_format == "csv":
        raise UsageError("csv makes a file for each table", hint="name a folder with -o")
    if as_json:
        raise UsageError("stdout holds either the trace or what --json says of it", hint="leave out one")
    if trace_format == "perfetto" and sys.stdout.isatty():
        raise UsageError("a trace is nothing for a terminal", hint="send it on: `... -o - | program`")
    return sys.stdout.buffer
