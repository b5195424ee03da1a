"""`mlbundle rm`: take bundles out of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mlbundle.cli import output
from mlbundle.cli.params import complete_library

if TYPE_CHECKING:
    from mlbundle.store.entries import LibraryEntry
    from mlbundle.store.library import Library

_SHOWN = 20


@click.command("rm")
@click.argument("names", nargs=-1, required=True, shell_complete=complete_library)
@click.option("--all", "every", is_flag=True, help="All bundles of a name, when it has several.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@output.format_options("table", "json")
def command(*, names: tuple[str, ...], every: bool, dry_run: bool, output_format: str) -> None:
    """Take bundles out of the library, by NAME, NAME:VERSION or NAME:VERSION@DIGEST.

    A name that several bundles have is refused without --all. Their blobs stay until `mlbundle gc`.
    """
    from mlbundle.cli.add import entry_document
    from mlbundle.config import load_settings
    from mlbundle.store.library import Library

    library = Library(load_settings().data_dir)
    found = {entry.manifest_digest: entry for name in names for entry in _meant(library, name, every=every)}
    entries = list(found.values())
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


def _meant(library: Library, name: str, *, every: bool) -> list[LibraryEntry]:
    """Return what is to be removed for a name; raises UsageError, ReferenceNotFound."""
    from mlbundle.errors import ReferenceNotFound, UsageError
    from mlbundle.resources import built_in_models

    found = library.all_named(name)
    if len(found) > 1 and not every:
        listed = [entry.reference for entry in found]
        more = [f"… and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
        raise UsageError(
            f"{len(found)} bundles are called {name!r}",
            context=[*listed[:_SHOWN], *more],
            hint="name one of them as it stands here, or --all for all of them",
        )
    if found:
        return found
    try:
        return [library.find(name)]
    except ReferenceNotFound:
        if name in built_in_models():
            raise UsageError(
                f"{name!r} is built in: it is a part of mlbundle and can't be removed",
                hint="`mlbundle list` shows what is in the library",
            ) from None
        raise
