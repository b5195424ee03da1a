"""What takes how much space, in rows for people: nothing is counted twice but in the total."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlbundle.store.collect import Amount

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mlbundle.store.collect import Usage


@dataclass(frozen=True)
class DiskRow:
    """One kind of file: how much of it there is, and what it is or how one is rid of it."""

    name: str
    amount: Amount
    what: str


def disk_row_from_document(document: Mapping[str, Any]) -> DiskRow:
    """Return the row whose fields these are, as `dataclasses.asdict` gives them."""
    return DiskRow(document["name"], Amount(**document["amount"]), document["what"])


def disk_rows(usage: Usage) -> Iterator[DiskRow]:
    """Yield what the data folder and the cache hold, the total last."""
    of_one = _less(usage.blobs, usage.shared_blobs, usage.unused_blobs)
    other_cache = _less(usage.cache, usage.python_environments, usage.wheels)
    parts = [
        DiskRow("blobs of one bundle", of_one, "`mlbundle rm NAME`, then `mlbundle gc`"),
        DiskRow("blobs of several", usage.shared_blobs, "each is here once"),
        DiskRow("blobs of none", usage.unused_blobs, "`mlbundle gc` removes them"),
        DiskRow("partials", usage.partials, "transfers that broke or go on; `mlbundle gc` removes old ones"),
        DiskRow(
            "unpacked bundles", usage.trees, "what runs read; `mlbundle gc` removes those that no run names"
        ),
        DiskRow("runs", usage.runs, "records, traces, outputs; `mlbundle runs rm RUN`"),
        DiskRow("quarantine", usage.quarantine, "what `mlbundle repair` put aside as damaged"),
        DiskRow("other", usage.other, "the index of the runs, the library's entries, locks, logs"),
        DiskRow(
            "Python environments",
            usage.python_environments,
            "of the process runtime; `mlbundle gc --environments`",
        ),
        DiskRow("wheels", usage.wheels, "of image builds; `mlbundle gc --environments`"),
        DiskRow("other cache", other_cache, "made again when needed"),
    ]
    yield from parts
    files = sum(row.amount.files for row in parts)
    yield DiskRow("total", Amount(files, sum(row.amount.size_bytes for row in parts)), "")


def _less(whole: Amount, *parts: Amount) -> Amount:
    """Return an amount without its parts; files come and go while they are counted."""
    return replace(
        whole,
        files=max(0, whole.files - sum(part.files for part in parts)),
        size_bytes=max(0, whole.size_bytes - sum(part.size_bytes for part in parts)),
    )
