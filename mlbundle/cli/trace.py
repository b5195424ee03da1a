"""`mlbundle trace`: what the trace of a run says."""

from __future__ import annotations

import click

from mlbundle.cli.trace_export import export
from mlbundle.cli.trace_import import command as import_
from mlbundle.cli.trace_open import open_
from mlbundle.cli.trace_query import query
from mlbundle.cli.trace_summary import summary


@click.group("trace")
def command() -> None:
    """Look into the trace of a run: a summary, Perfetto's UI, SQL, other formats."""


for _command in (summary, open_, query, export, import_):
    command.add_command(_command)
