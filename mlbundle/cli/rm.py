"""`mlbundle rm`: take bundles out of the library."""

from __future__ import annotations

import click

from mlbundle.cli import output
from mlbundle.cli.params import complete_library


@click.command("rm")
@click.argument("names", nargs=-1, required=True, shell_complete=complete_library)
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@output.format_options("table", "json")
def command(*, names: tuple[str, ...], dry_run: bool, output_format: str) -> None:
    """Take bundles out of the library, by NAME, NAME:VERSION or NAME:VERSION@DIGEST.

    Their blobs stay until `mlbundle gc`.
    """
    from mlbundle.cli.add import entry_document
    from mlbundle.config import load_settings
    from mlbundle.store.library import Library

    library = Library(load_settings().data_dir)
    entries = [library.find(name) for name in names]
    for entry in entries:
        if not dry_run:
            library.remove(entry)
    if output_format == "json":
        output.document(
            {
                "schema": "mlbundle/removed/v1",
                "removed": not dry_run,
                "bundles": [entry_document(entry) for entry in entries],
            }
        )
        return
    for entry in entries:
        output.data(f"{'would remove' if dry_run else 'removed'} {entry.reference}")
    if not dry_run:
        output.narrate("`mlbundle gc` gives the space back")
