"""`mlbundle du`: what takes how much space."""

from __future__ import annotations

from dataclasses import asdict, fields

import click

from mlbundle.cli import output
from mlbundle.wording import units


@click.command("du")
@output.format_options("table", "json")
def command(output_format: str) -> None:
    """Say what takes how much space.

    By kind, and by bundle of the library. In JSON `shared_blobs` and `unused_blobs` are parts of `blobs`,
    `python_environments` and `wheels` parts of `cache`.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.disk import disk_rows
    from mlbundle.store.collect import Amount, du

    settings = load_settings()
    usage = du(settings.data_dir, settings.cache_dir)
    kinds = {f.name: getattr(usage, f.name) for f in fields(usage)}
    amounts = {name: value for name, value in kinds.items() if isinstance(value, Amount)}
    if output_format == "json":
        output.document(
            {
                "schema": "mlbundle/du/v1",
                "data_dir": str(settings.data_dir),
                "cache_dir": str(settings.cache_dir),
                "kinds": {name: asdict(amount) for name, amount in amounts.items()},
                "bundles": [
                    {"reference": b.entry.reference, "own_bytes": b.own_bytes, "shared_bytes": b.shared_bytes}
                    for b in usage.bundles
                ],
            }
        )
        return
    rows = [
        (row.name, str(row.amount.files), units.size(row.amount.size_bytes), row.what)
        for row in disk_rows(usage)
    ]
    output.table(("kind", "files", "size", "what"), rows)
    if usage.quarantine.files:
        output.narrate("`mlbundle gc --quarantine` removes what was put aside as damaged")
    output.narrate("framework images are kept by the container engine: `mlbundle images list` shows them")
    if usage.bundles:
        output.data("")
        output.table(
            ("bundle", "own", "shared"),
            [(b.entry.reference, units.size(b.own_bytes), units.size(b.shared_bytes)) for b in usage.bundles],
        )
