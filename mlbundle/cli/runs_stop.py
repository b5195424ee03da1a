"""`mlbundle runs stop`: cancel runs that go on, in whatever terminal they were started."""

from __future__ import annotations

import click

from mlbundle.cli import output
from mlbundle.cli.params import SECONDS, complete_running


@click.command("stop")
@click.argument("runs", nargs=-1, metavar="RUN...", shell_complete=complete_running)
@click.option("--all", "everything", is_flag=True, help="All runs that go on or wait.")
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    default="60s",
    show_default=True,
    help="Longest wait for the record of each.",
)
@output.format_options("table", "json")
def command(*, runs: tuple[str, ...], everything: bool, timeout_s: float, output_format: str) -> int:
    """Cancel runs that go on or wait; what was seen of them is kept.

    A RUN is an id, the beginning of one, or `latest`, the latest that goes on. Returns when the records are written. A
    run that is over stays as it is.
    """
    from mlbundle.config import load_settings
    from mlbundle.errors import EXIT_YES, MlbundleError, UsageError
    from mlbundle.runs.catalog import choose_runs
    from mlbundle.runs.running import latest_running, running_runs
    from mlbundle.runs.stop import stop_run

    if everything == bool(runs):
        raise UsageError("which runs?", hint="name runs, or say --all")
    settings = load_settings()
    if everything:
        # Those that wait first: none of them is to begin in between.
        going = sorted(running_runs(settings), key=lambda run: not run.waiting)
        chosen = [run.run_id for run in going]
    else:
        named = [(latest_running(settings) or name) if name == "latest" else name for name in runs]
        chosen = choose_runs(settings, named)
    if not chosen:
        output.narrate("no run goes on")
    stopped, status = [], EXIT_YES
    for run_id in chosen:
        try:
            found = stop_run(settings, run_id, timeout_s=timeout_s)
        except MlbundleError as error:
            if len(chosen) == 1:
                raise
            # The others can be stopped all the same.
            status = status or error.exit_code
            output.error(error)
            continue
        stopped.append({"run_id": run_id, "status": found.status, "was_over": found.was_over})
        if output_format != "json":
            output.data(f"{run_id} {'was over: ' if found.was_over else ''}{found.status}")
    if output_format == "json":
        output.document({"schema": "mlbundle/stopped-runs/v1", "runs": stopped})
    return status
