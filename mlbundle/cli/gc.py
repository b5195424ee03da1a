"""`mlbundle gc`: give back the space of what nothing refers to."""

from __future__ import annotations

from dataclasses import asdict

import click

from mlbundle.cli import output
from mlbundle.wording import units


@click.command("gc")
@click.option("--partials", is_flag=True, help="Also what broken transfers of the last day left.")
@click.option("--quarantine", is_flag=True, help="Also what `mlbundle repair` put aside as damaged.")
@click.option(
    "--environments",
    is_flag=True,
    help="Also Python environments and wheels used in the last 30 days, unless they are in use now.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Say what would go; remove nothing.")
@output.format_options("table", "json")
def command(
    *, partials: bool, quarantine: bool, environments: bool, dry_run: bool, output_format: str
) -> None:
    """Remove what nothing refers to.

    That is: blobs that no bundle of the library uses, unpacked bundles that neither it nor a run names, Python
    environments and downloaded wheels that nobody has used for 30 days, environments of requirements that this version
    does not ship any more.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.cleaning import clean

    found = clean(
        load_settings(),
        partials=partials,
        quarantine=quarantine,
        environments=environments,
        dry_run=dry_run,
    )
    if output_format == "json":
        output.document({"schema": "mlbundle/gc/v1", "removed": not dry_run, **asdict(found)})
        return
    rows = [
        ("blobs", str(found.blobs)),
        ("unpacked bundles", str(found.trees)),
        ("broken transfers", str(found.partials)),
        ("Python environments", str(found.environments)),
        ("wheels of image builds", str(found.wheels)),
        *([("put aside as damaged", str(found.quarantine))] if quarantine else []),
        ("space", units.size(found.size_bytes)),
    ]
    output.table(("would remove" if dry_run else "removed", ""), rows)
