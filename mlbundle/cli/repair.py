"""`mlbundle repair`: read every blob of the store again, and put aside what is damaged."""

from __future__ import annotations

import click

from mlbundle.cli import output
from mlbundle.cli.progress import byte_progress
from mlbundle.errors import EXIT_NO, EXIT_YES


@click.command("repair")
@output.format_options("table", "json")
def command(output_format: str) -> int:
    """Read every blob of the store again; move what is damaged aside, and say which bundles lack something.

    Nothing is deleted: what is damaged goes to the folder `quarantine` beside it, which `mlbundle gc --quarantine`
    empties. Exit code 1 when a bundle lacks
    blobs: add or pull it again.
    """
    from mlbundle.config import load_settings
    from mlbundle.store.library import Library

    with byte_progress("reading") as progress:
        found = Library(load_settings().data_dir).repair(progress)
    if output_format == "json":
        output.document(
            {
                "schema": "mlbundle/repair/v1",
                "verified": found.verified,
                "removed": [str(path) for path in found.removed],
                "set_aside": [str(path) for path in found.set_aside],
                "incomplete": [
                    {"reference": entry.reference, "source": entry.source, "lacks": list(lacks)}
                    for entry, lacks in found.incomplete
                ],
            }
        )
    else:
        rows = [
            ("blobs read", str(found.verified)),
            ("temporary files removed", str(len(found.removed))),
            *(("moved aside", str(path)) for path in found.set_aside),
            *(("incomplete", f"{entry.reference}, from {entry.source}") for entry, _ in found.incomplete),
        ]
        output.table(("repair", ""), rows)
        if found.set_aside:
            output.narrate("`mlbundle gc --quarantine` removes what was put aside")
    return EXIT_NO if found.incomplete else EXIT_YES
