"""`mlbundle add`: take a bundle into the library."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from mlbundle.cli import output
from mlbundle.cli.network import network, network_options
from mlbundle.cli.params import complete_reference
from mlbundle.cli.progress import byte_progress
from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mlbundle.store.entries import LibraryEntry


@click.command("add")
@click.argument("reference", shell_complete=complete_reference)
@network_options
@output.format_options("table", "json")
def command(*, reference: str, plain_http: bool, ca_file: Path | None, output_format: str) -> None:
    """Take a bundle into the library, where it has a name: NAME:VERSION.

    REFERENCE is a bundle file, an https address, a manifest (which is packed) or a repository (as `pull` does).
    Every byte is checked; blobs that are there already are not copied.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.opening import bring
    from mlbundle.runs.references import resolve
    from mlbundle.store.library import Library

    settings = load_settings()
    before, _ = Library(settings.data_dir).scan()
    with byte_progress("adding") as progress:
        entry = bring(
            resolve(reference, settings),
            settings,
            network(plain_http=plain_http, ca_file=ca_file),
            report=output.narrate,
            progress=progress,
        )
    show_entry(entry, output_format)
    warn_of_takeover(before, entry)


def warn_of_takeover(before: Sequence[LibraryEntry], entry: LibraryEntry) -> None:
    """Say when a bare name means a new bundle now and another one before; `before` are the entries of before."""
    from mlbundle.resources import built_in_models
    from mlbundle.store.find import taken_over

    earlier = taken_over(before, entry)
    meant = earlier.reference if earlier is not None else None
    of_ours = entry.source == entry.name
    if entry.name in built_in_models() and not of_ours and not any(old.name == entry.name for old in before):
        meant = f"the built-in {entry.name}"
    if meant is not None:
        output.warn(
            f"{entry.name} now means {entry.reference}; before: {meant}",
            hint=f"`mlbundle rm {shlex.quote(entry.reference)}` takes it out again",
        )


def show_entry(entry: LibraryEntry, output_format: str) -> None:
    """Print a bundle of the library."""
    if output_format == "json":
        output.document(entry_document(entry))
        return
    rows = [
        ("name", entry.label),
        ("manifest", entry.manifest_digest),
        ("set", entry.set_digest),
        ("size", units.size(entry.size_bytes)),
        ("from", entry.source),
    ]
    output.table(("in the library", ""), rows)


def entry_document(entry: LibraryEntry) -> dict[str, object]:
    """Return what is told about an entry: all but its index and its blobs."""
    return {
        "schema": "mlbundle/library-bundle/v1",
        "name": entry.name,
        "version": entry.version,
        "reference": entry.reference,
        "manifest_digest": entry.manifest_digest,
        "set_digest": entry.set_digest,
        "size": entry.size_bytes,
        "added_at": entry.added_at,
        "source": entry.source,
    }
