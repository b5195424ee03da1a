"""`mlbundle runs`: what was run so far, on what, and how two runs differ."""

from __future__ import annotations

from typing import Any

import click

from mlbundle.cli import output, units
from mlbundle.cli.params import complete_run


@click.group("runs")
def command() -> None:
    """List, show and compare the runs made so far."""


@command.command("list")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many, newest first."
)
@click.option("--model", help="Only this model; * and ? are wildcards.")
@output.format_options()
def list_(limit: int, model: str | None, output_format: str) -> None:
    """List the latest runs."""
    from mlbundle.config import load_settings
    from mlbundle.runs.catalog import list_runs
    from mlbundle.runs.recover import recover_left_runs

    settings = load_settings()
    recover_left_runs(settings)
    rows = list_runs(settings, limit=limit, model=model)
    if output_format == "json":
        output.document({"schema": "mlbundle/runs/v1", "runs": rows})
        return
    columns = (
        "run",
        "model",
        "scenario",
        "runtime",
        "status",
        "trimmed mean",
        "p99",
        "throughput",
        "accuracy",
    )
    if not rows and output_format == "table":
        output.narrate("no runs yet: `mlbundle run digits-cnn` makes one")
    output.table(columns, [_row(row) for row in rows], output_format=output_format)


def _row(row: dict[str, object]) -> tuple[object, ...]:
    def shown(name: str, how: object) -> str:
        value = row[name]
        return "" if value is None or not callable(how) else str(how(value))

    status = row["status"] if row["valid"] or row["status"] != "completed" else "invalid"
    return (
        row["run_id"],
        f"{row['model']}:{row['model_version']}",
        row["scenario"],
        row["runtime"],
        status,
        shown("trimmed_mean_ns", units.duration),
        shown("p99_ns", units.duration),
        shown("throughput_per_s", units.rate),
        shown("accuracy", "{:.4f}".format),
    )


@command.command("show")
@click.argument("run", shell_complete=complete_run)
@click.option("--environment", is_flag=True, help="Show on what it ran: software, machine, limits, warnings.")
@output.format_options("table", "json")
def show(run: str, environment: bool, output_format: str) -> None:
    """Show one RUN: its id, the beginning of it, or `latest`."""
    from mlbundle.cli.record_views import show_environment
    from mlbundle.cli.run import show_record
    from mlbundle.config import load_settings
    from mlbundle.runs.catalog import show_run

    settings = load_settings()
    record = show_run(settings, run)
    if output_format == "json":
        output.document(_environment_part(record) if environment else record)
    elif environment:
        show_environment(record)
    else:
        show_record(record, settings)


def _environment_part(record: dict[str, Any]) -> dict[str, Any]:
    names = (
        "run_id",
        "framework",
        "runtime",
        "isolation",
        "image",
        "worker",
        "environment",
        "mlbundle_version",
    )
    return {"schema": "mlbundle/run-environment/v1", **{name: record[name] for name in names}}


@command.command("diff")
@click.argument("left", shell_complete=complete_run)
@click.argument("right", shell_complete=complete_run)
@click.option(
    "--all", "everything", is_flag=True, help="Also what differs between any two runs: clocks, phases, times."
)
@output.format_options("table", "json")
def diff(left: str, right: str, everything: bool, output_format: str) -> int:
    """Say what differs between two runs, first what can explain other numbers.

    Exit code 0 when both ran under the same conditions, 1 when something other than the measured values differs.
    """
    from mlbundle.cli.record_views import show_difference
    from mlbundle.config import load_settings
    from mlbundle.errors import EXIT_NO, EXIT_YES
    from mlbundle.runs.catalog import show_run
    from mlbundle.runs.record_diff import diff_records

    settings = load_settings()
    found = diff_records(show_run(settings, left), show_run(settings, right), everything=everything)
    if output_format == "json":
        output.document(found.to_document())
    else:
        show_difference(found)
        output.narrate(
            "the conditions are the same" if found.same_conditions else "the conditions differ", level=0
        )
    return EXIT_YES if found.same_conditions else EXIT_NO
