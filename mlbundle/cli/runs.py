"""`mlbundle runs`: what was run so far, on what, how two runs differ, and removing runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.cli.params import complete_run
from mlbundle.cli.runs_attach import command as attach_command
from mlbundle.cli.runs_stop import command as stop_command
from mlbundle.store.run_filter import SORTS, most_first
from mlbundle.wire.words import counted
from mlbundle.wording import units
from mlbundle.wording.run_rows import form_text, headline_text, runtime_text, status_word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_COLUMNS = (
    "run", "model", "framework", "scenario", "runtime", "status", "headline", "p99", "throughput", "accuracy",
)  # fmt: skip
_SPARE = ("p99", "throughput", "accuracy", "scenario")


@click.group("runs")
def command() -> None:
    """List, show, compare and remove the runs made so far; attach to those that go on, and stop them."""


command.add_command(attach_command)
command.add_command(stop_command)


@command.command("list")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many, newest first."
)
@click.option("--model", help="Only this model; * and ? are wildcards.")
@click.option("--framework", metavar="NAME", help="Only this framework, or this form of a model.")
@click.option(
    "--filter",
    "text",
    metavar="TEXT",
    default="",
    help="Only runs that every word fits: model:resnet* scenario:online status:invalid runtime:docker trace:full "
    "since:7d, any other word anywhere.",
)
@click.option(
    "--sort", type=click.Choice(SORTS), default="run", help="By this instead of the time.", metavar="COLUMN"
)
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Leave out so many of the first.")
@output.format_options()
def list_(text: str, sort: str, *, reverse: bool, offset: int, output_format: str, **chosen: Any) -> None:
    """List the latest runs, those that go on or wait among them.

    With --filter, --sort, --reverse or --offset: runs that have ended. COLUMN is run, model, framework, scenario,
    runtime, status, headline, p50, p99, throughput or accuracy; runs that lack it come last.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.catalog import refresh_runs, search_runs
    from mlbundle.runs.recover import recover_left_runs
    from mlbundle.runs.running import running_rows

    settings = load_settings()
    recover_left_runs(settings)
    limit, named = chosen["limit"], {"model": chosen["model"], "framework": chosen["framework"]}
    searched = bool(text or reverse or offset or sort != "run")
    going = [] if searched else running_rows(settings, **named)
    refresh_runs(settings)
    descending = most_first(sort) != reverse
    over = search_runs(settings, text, **named, sort=sort, descending=descending, offset=offset, limit=limit)
    # A run may have ended between the two looks.
    known = {row["run_id"] for row in over.rows}
    going = [row for row in going if row["run_id"] not in known]
    rows = (going + [{**row, "phase": None, "progress": None} for row in over.rows])[:limit]
    if output_format == "json":
        total = len(going) + over.total
        output.document({"schema": "mlbundle/runs/v1", "runs": rows, "offset": offset, "total": total})
        return
    if not rows and output_format == "table":
        _say_that_there_are_none(like_that=searched or any(named.values()))
    output.records(rows, _COLUMNS, _cells, output_format=output_format, spare=_SPARE)


def _say_that_there_are_none(*, like_that: bool) -> None:
    if like_that:
        output.narrate("no runs like that: `mlbundle runs list` shows the latest")
    else:
        output.narrate("no runs yet: `mlbundle run digits-cnn` makes one")


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    def shown(name: str, how: Callable[[Any], str]) -> str:
        return "" if row[name] is None else how(row[name])

    return (
        row["run_id"],
        f"{row['model']}:{row['model_version']}",
        form_text(row["framework"], row["framework_version"], row["variant"]),
        row["scenario"],
        runtime_text(row["runtime"], row["isolation"]),
        _status(row),
        headline_text(row),
        # Starts are too few for one.
        "" if row["scenario"] == "cold-start" else shown("p99_ns", units.duration),
        shown("throughput_per_s", units.rate),
        shown("accuracy", "{:.4f}".format),
    )


def _status(row: Mapping[str, Any]) -> str:
    if row["status"] == "running" and row["phase"]:
        share = "" if row["progress"] is None else f" {100 * row['progress']:.0f} %"
        return f"running: {row['phase']}{share}"
    return status_word(row)


@command.command("show")
@click.argument("run", default="latest", shell_complete=complete_run)
@click.option("--environment", is_flag=True, help="Show on what it ran: software, machine, limits, warnings.")
@output.format_options("table", "json")
def show(run: str, environment: bool, output_format: str) -> None:
    """Show one RUN.

    RUN is an id, the beginning of one, or `latest`, which is the default.
    """
    from mlbundle.cli.record_table import show_record
    from mlbundle.cli.record_views import show_environment
    from mlbundle.config import load_settings
    from mlbundle.runs.catalog import show_run
    from mlbundle.runs.recover import recover_left_runs

    settings = load_settings()
    recover_left_runs(settings)
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
    "--all",
    "everything",
    is_flag=True,
    help="Fold nothing; also what differs between any two runs: clocks, phases, times.",
)
@output.format_options("table", "json")
def diff(left: str, right: str, everything: bool, output_format: str) -> int:
    """Say what differs between two runs.

    What can explain other numbers comes first, the numbers come last; long lists are folded without --all. Exit code
    0 when both ran under the same conditions, 1 when something other than the measured values differs.
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
        show_difference(found, everything=everything)
        output.narrate(
            "the conditions are the same" if found.same_conditions else "the conditions differ", level=0
        )
    return EXIT_YES if found.same_conditions else EXIT_NO


@command.command("rm")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=complete_run)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@output.format_options("table", "json")
def rm(*, runs: tuple[str, ...], yes: bool, dry_run: bool, output_format: str) -> None:
    """Remove runs: records, traces, outputs.

    A RUN is an id, the beginning of one, or `latest`. A run that goes on is refused. Nothing brings a run back.
    """
    from mlbundle.config import load_settings
    from mlbundle.errors import UsageError
    from mlbundle.runs.catalog import choose_runs, remove_run
    from mlbundle.store.folders import tree_size

    settings = load_settings()
    chosen = choose_runs(settings, runs)
    if not dry_run and not yes:
        if output_format == "json" or not sys.stdin.isatty():
            raise UsageError(
                f"{counted(len(chosen), 'run', 'runs')} would be removed for good",
                context=chosen,
                hint="say --yes, or --dry-run",
            )
        for run_id in chosen:
            output.narrate(run_id)
        click.confirm(f"Remove {counted(len(chosen), 'run', 'runs')} for good?", abort=True, err=True)
    size_bytes = sum(tree_size(settings.runs_dir / run_id)[1] for run_id in chosen)
    for run_id in chosen:
        if not dry_run:
            remove_run(settings, run_id)
        if output_format != "json":
            output.data(f"{'would remove' if dry_run else 'removed'} {run_id}")
    if output_format == "json":
        document = {"removed": not dry_run, "runs": chosen, "size_bytes": size_bytes}
        output.document({"schema": "mlbundle/removed-runs/v1", **document})
        return
    output.narrate(f"{units.size(size_bytes)} of records, traces and outputs")
    if not dry_run:
        output.narrate("`mlbundle gc` removes unpacked bundles that no run names any more")
