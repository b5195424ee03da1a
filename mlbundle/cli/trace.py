"""`mlbundle trace`: what the trace of a run says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output, units
from mlbundle.cli.params import complete_run
from mlbundle.cli.trace_export import export
from mlbundle.cli.trace_import import command as import_
from mlbundle.cli.trace_open import open_
from mlbundle.cli.trace_query import query

if TYPE_CHECKING:
    from collections.abc import Mapping

_COLUMNS = ("pass", "step", "count", "total", "mean", "p50")


@click.group("trace")
def command() -> None:
    """Look into the trace of a run: a summary, Perfetto's UI, SQL, other formats."""


@command.command("summary")
@click.argument("run", default="latest", shell_complete=complete_run)
@output.format_options()
def summary(run: str, output_format: str) -> None:
    """Show how often and how long each step ran.

    RUN is the latest by default. Steps of the accuracy pass run side by side in threads of their own, so they take
    longer there than alone; the latency of a model is the one of the measured pass.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.catalog import trace_summary

    rows = trace_summary(load_settings(), run)
    if output_format == "json":
        output.document({"schema": "mlbundle/trace-summary/v1", "rows": rows})
        return
    output.records(rows, _COLUMNS, _cells, output_format=output_format)


def _cells(row: Mapping[str, Any]) -> tuple[Any, ...]:
    times = (units.duration(row[f"{name}_ns"]) for name in ("total", "mean", "p50"))
    return (row["pass"], row["step"], row["count"], *times)


for _command in (open_, query, export, import_):
    command.add_command(_command)
