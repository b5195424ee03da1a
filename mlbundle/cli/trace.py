"""`mlbundle trace`: what the trace of a run says, without opening it."""

from __future__ import annotations

import click

from mlbundle.cli import output, units
from mlbundle.cli.params import complete_run


@click.group("trace")
def command() -> None:
    """Say where the time of a traced run went."""


@command.command("summary")
@click.argument("run", default="latest", shell_complete=complete_run)
@output.format_options()
def summary(run: str, output_format: str) -> None:
    """Show every step of RUN (default: the latest): how often, how long.

    Steps of the accuracy pass run side by side in threads of their own, so they take longer there than alone; the
    latency of a model is the one of the measured pass.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.catalog import trace_summary

    rows = trace_summary(load_settings(), run)
    if output_format == "json":
        output.document({"schema": "mlbundle/trace-summary/v1", "rows": rows})
        return
    columns = ("pass", "step", "count", "total", "mean", "p50")
    shown = [
        (
            r["pass"],
            r["step"],
            r["count"],
            *(units.duration(r[f"{name}_ns"]) for name in ("total", "mean", "p50")),
        )
        for r in rows
    ]
    output.table(columns, shown, output_format=output_format)
