"""`mlbundle list`: the bundles that can be run by name."""

from __future__ import annotations

import click

from mlbundle.cli import output


@click.command("list")
@output.format_options()
def command(output_format: str) -> None:
    """List the bundles that can be run by name."""
    from mlbundle.runs.catalog import built_in_bundles

    bundles = built_in_bundles()
    if output_format == "json":
        output.document({"schema": "mlbundle/bundles/v1", "bundles": bundles})
        return
    columns = ("name", "version", "framework", "description")
    output.table(columns, [[b[c] for c in columns] for b in bundles], output_format=output_format)
