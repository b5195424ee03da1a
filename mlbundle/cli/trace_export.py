"""`mlbundle trace export`: the trace of a run for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from mlbundle.cli import output, units
from mlbundle.cli.params import complete_run

SCHEMA = "mlbundle/trace-export/v1"
_FORMATS = ("perfetto", "chrome", "csv")
_COLUMNS = ("file", "size", "rows")


@click.command("export")
@click.argument("run", shell_complete=complete_run)
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
    help="File to write; for csv a folder.",
)
@click.option("--force", is_flag=True, help="Replace files that are there.")
@click.option("--json", "as_json", is_flag=True, help="Say as JSON what was written.")
def export(*, run: str, trace_format: str, destination: Path, force: bool, as_json: bool) -> None:
    """Write the trace of a run for other tools.

    RUN is the id of a run, its beginning, or latest.

    \b
    perfetto  the trace as it is; unpacked unless the name ends in .gz
    chrome    Chrome's trace events (JSON) from the columns of the run; compressed if the name ends in .gz
    csv       a file for each table of the run: spans, layers, kernels, samples
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.traces import export_trace

    written = export_trace(load_settings(), run, trace_format, destination, force=force)
    if as_json:
        files = [{"path": str(file.path), "size": file.size_bytes, "rows": file.rows} for file in written]
        output.document({"schema": SCHEMA, "format": trace_format, "files": files})
    else:
        output.table(_COLUMNS, [(file.path, units.size(file.size_bytes), file.rows) for file in written])
