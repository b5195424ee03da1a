"""`mlbundle du`: what takes how much space."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING

import click

from mlbundle.cli import output, units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlbundle.store.collect import Amount, Usage


@click.command("du")
@output.format_options("table", "json")
def command(output_format: str) -> None:
    """Say what takes how much space.

    By kind, and by bundle of the library. In JSON `shared_blobs` and `unused_blobs` are parts of `blobs`,
    `python_environments` and `wheels` parts of `cache`.
    """
    from mlbundle.config import load_settings
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
        (name, str(amount.files), units.size(amount.size_bytes), what) for name, amount, what in _rows(usage)
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


def _rows(usage: Usage) -> Iterator[tuple[str, Amount, str]]:
    """Yield what the folders hold; nothing is counted in two rows but the total."""
    of_one = _less(usage.blobs, usage.shared_blobs, usage.unused_blobs)
    parts = [
        ("blobs of one bundle", of_one, "`mlbundle rm NAME`, then `mlbundle gc`"),
        ("blobs of several", usage.shared_blobs, "each is here once"),
        ("blobs of none", usage.unused_blobs, "`mlbundle gc` removes them"),
        ("partials", usage.partials, "transfers that broke or go on; `mlbundle gc` removes old ones"),
        ("unpacked bundles", usage.trees, "what runs read; `mlbundle gc` removes those that no run names"),
        ("runs", usage.runs, "records, traces, outputs; `mlbundle runs rm RUN`"),
        ("quarantine", usage.quarantine, "what `mlbundle repair` put aside as damaged"),
        ("other", usage.other, "the index of the runs, the library's entries, locks, logs"),
        (
            "Python environments",
            usage.python_environments,
            "of the process runtime; `mlbundle gc --environments`",
        ),
        ("wheels", usage.wheels, "of image builds; `mlbundle gc --environments`"),
        (
            "other cache",
            _less(usage.cache, usage.python_environments, usage.wheels),
            "made again when needed",
        ),
    ]
    yield from parts
    every = [amount for _, amount, _ in parts]
    total = replace(every[0], files=sum(a.files for a in every), size_bytes=sum(a.size_bytes for a in every))
    yield "total", total, ""


def _less(whole: Amount, *parts: Amount) -> Amount:
    """Return an amount without its parts; files come and go while they are counted."""
    return replace(
        whole,
        files=max(0, whole.files - sum(part.files for part in parts)),
        size_bytes=max(0, whole.size_bytes - sum(part.size_bytes for part in parts)),
    )
