"""`mlbundle trace import`: traces of other tools beside the run's own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from mlbundle.cli import output
from mlbundle.cli.params import complete_run

_COLUMNS = ("file", "made by", "spans", "within the run", "skipped")


@click.command("import")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] FILE...", shell_complete=complete_run)
@click.option("-o", "--output", "target", type=click.Path(path_type=Path), help="Write the trace here.")
@click.option(
    "--from",
    "file_format",
    type=click.Choice(["auto", "kineto", "otlp"]),
    default="auto",
    show_default=True,
    help="What made the files: PyTorch's profiler (Kineto) or OpenTelemetry (OTLP as JSON).",
)
@click.option(
    "--force",
    is_flag=True,
    help="Replace what was imported before, and take files of another time than the run's.",
)
@output.format_options()
def command(
    *, words: tuple[str, ...], target: Path | None, file_format: str, force: bool, output_format: str
) -> None:
    """Put traces of other tools beside that of a RUN.

    RUN is the latest by default. FILES are what other tools made meanwhile; all lie on one timeline then.

    Times are related by the real-time clock of the machine. The run's own trace stays as it is: what is written is
    another file, by default in the run's folder, where open, query and export find it with --imported.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.importing import import_traces

    run, files = _run_and_files(words)
    settings = load_settings()
    found = import_traces(settings, run, files, output=target, file_format=file_format, force=force)
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
    for one in found.files:
        if not one.within_run:
            output.warn(f"nothing of {one.path} happened while the run went on")
        for note in one.notes:
            output.warn(f"{one.path}: {note}")
    output.narrate(f"written to {found.path}")
    output.narrate(f"`mlbundle trace open {f'{run} --imported' if target is None else target}` shows it")


def _run_and_files(words: tuple[str, ...]) -> tuple[str, list[Path]]:
    """Return the run, which may be left out, and the files. Raises UsageError."""
    from mlbundle.errors import UsageError

    run, names = ("latest", words) if Path(words[0]).is_file() else (words[0], words[1:])
    if not names:
        raise UsageError(
            f"there is no file {run}" if "/" in run or "." in run else "a FILE is missing",
            hint="see `mlbundle trace import --help`",
        )
    missing = [name for name in names if not Path(name).is_file()]
    if missing:
        raise UsageError(f"there is no file {missing[0]}", where=missing[0])
    return run, [Path(name) for name in names]
