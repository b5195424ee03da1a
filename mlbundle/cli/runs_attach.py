"""`mlbundle runs attach`: a run that goes on, in whatever terminal it was started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.cli.params import complete_any_run

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.config import Settings


@click.command("attach")
@click.argument("run", required=False, shell_complete=complete_any_run)
@output.format_options("table", "json", "jsonl")
def command(run: str | None, output_format: str) -> int:
    """Show how a run goes on, and its result at the end.

    RUN is an id, the beginning of one, or `latest`; by default the latest that goes on. Of a run that is over the
    result is shown. Ctrl-C ends the watching, not the run. `--json` prints the record, `--format jsonl` the events.
    Exit status: that of the run; 143 when it was stopped, 4 when its process died, 130 after Ctrl-C.
    """
    from mlbundle.config import load_settings
    from mlbundle.errors import Interrupted, ReferenceNotFound
    from mlbundle.runs.catalog import choose_runs
    from mlbundle.runs.running import latest_running

    settings = load_settings()
    run_id = latest_running(settings) if run is None else choose_runs(settings, [run])[0]
    if run_id is None:
        raise ReferenceNotFound("no run goes on", hint="`mlbundle runs show latest` shows the one before")
    try:
        record = _watch(settings.runs_dir / run_id, settings, output_format)
    except KeyboardInterrupt:
        raise Interrupted(
            f"no longer attached; run {run_id} goes on",
            hint=f"`mlbundle runs attach {run_id}` shows it again, `mlbundle runs stop {run_id}` stops it",
        ) from None
    if output_format == "json":
        output.document(record)
    elif output_format == "table":
        from mlbundle.cli.record_table import show_record

        show_record(record, settings)
    return _exit_status(record)


def _watch(folder: Path, settings: Settings, output_format: str) -> dict[str, Any]:
    """Show the events of a run to its end; returns its record, a partial one when its owner has died."""
    from mlbundle.cli.live import LiveView
    from mlbundle.errors import ReferenceNotFound
    from mlbundle.runs.folder import RECORD
    from mlbundle.runs.following import follow_events
    from mlbundle.runs.recover import ended_record

    if output_format == "jsonl" or not (folder / RECORD).exists():
        with LiveView() as view:
            for event in follow_events(folder):
                view.show(event)
                if output_format == "jsonl":
                    output.json_line(event.to_document())
    record = ended_record(folder, settings)
    if record is None:
        raise ReferenceNotFound(
            f"run {folder.name} was removed meanwhile", hint="`mlbundle runs list` shows the others"
        )
    return record


def _exit_status(record: dict[str, Any]) -> int:
    """Return what `mlbundle run` would have: a run that was stopped has 143, as its owner is told by SIGTERM."""
    from mlbundle.errors import EXIT_RUN_FAILED, EXIT_TERMINATED, EXIT_YES, CheckFailed
    from mlbundle.runs.verdict import require_good

    if record["status"] == "cancelled":
        return EXIT_TERMINATED
    if record["status"] != "completed":
        return int((record.get("error") or {}).get("exit_code", EXIT_RUN_FAILED))
    try:
        require_good(record)
    except CheckFailed as error:
        output.error(error)
        return error.exit_code
    return EXIT_YES
