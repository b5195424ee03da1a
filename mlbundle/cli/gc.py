"""`mlbundle gc`: give back the space of what nothing refers to."""

from __future__ import annotations

from dataclasses import asdict

import click

from mlbundle.cli import output, units


@click.command("gc")
@click.option("--partials", is_flag=True, help="Also what broken transfers of the last day left.")
@click.option("--quarantine", is_flag=True, help="Also what `mlbundle repair` put aside as damaged.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would go; remove nothing.")
@output.format_options("table", "json")
def command(*, partials: bool, quarantine: bool, dry_run: bool, output_format: str) -> None:
    """Remove blobs that no bundle of the library uses, and unpacked bundles that neither it nor a run names."""
    from mlbundle.config import load_settings
    from mlbundle.runs.catalog import bundles_of_runs
    from mlbundle.store.collect import gc

    settings = load_settings()
    found = gc(
        settings.data_dir,
        keep=bundles_of_runs(settings),
        partials=partials,
        quarantine=quarantine,
        cache_dir=settings.cache_dir,
        dry_run=dry_run,
    )
    if output_format == "json":
        output.document({"schema": "mlbundle/gc/v1", "removed": not dry_run, **asdict(found)})
        return
    rows = [
        ("blobs", str(found.blobs)),
        ("unpacked bundles", str(found.trees)),
        ("broken transfers", str(found.partials)),
        *([("put aside as damaged", str(found.quarantine))] if quarantine else []),
        ("space", units.size(found.size_bytes)),
    ]
    output.table(("would remove" if dry_run else "removed", ""), rows)
