"""`mlbundle trace import`: traces of other tools beside the run's own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from mlbundle.cli import output
from mlbundle.cli.params import complete_run

_COLUMNS = ("file", "made by", "spans", "within the run", "skipped")


@click.command("import")
@click.argument("run", shell_complete=complete_run)
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@click.option("-o", "--output", "target", type=click.Path(path_type=Path), help="Write the trace here.")
@click.option(
    "--from",
    "file_format",
    type=click.Choice(["auto", "kineto", "otlp"]),
    default="auto",
    show_default=True,
    help="What made the files: PyTorch's profiler (Kineto) or OpenTelemetry (OTLP as JSON).",
)
@output.format_options()
def command(
    run: str, files: tuple[Path, ...], target: Path | None, file_format: str, output_format: str
) -> None:
    """Put traces of other tools beside that of a RUN.

    FILES are what they made meanwhile; all lie on one timeline then.

    Times are related by the real-time clock of the machine. The run's own trace stays as it is: what is written is
    another file, by default in the run's folder.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.importing import import_traces

    found = import_traces(load_settings(), run, files, output=target, file_format=file_format)
    rows = [asdict(one) for one in found.files]
    if output_format == "json":
        output.document({"schema": "mlbundle/trace-import/v1", "trace": str(found.path), "files": rows})
        return
    output.records(
        rows,
        _COLUMNS,
        lambda row: (row["path"], row["kind"], row["spans"], row["within_run"], row["skipped"]),
        output_format=output_format,
    )
    outside = [one.path for one in found.files if not one.within_run]
    for path in outside:
        output.narrate(
            f"warning: nothing of {path} happened while the run went on: is it of this run, and this machine?"
        )
    output.narrate(f"written to {found.path}")
