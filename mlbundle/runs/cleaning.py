"""`gc` of everything: the library and its blobs, unpacked bundles, and what the cache keeps for runs and builds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.runs.catalog import bundles_of_runs
from mlbundle.runtime.environments import drop_unused
from mlbundle.store.collect import gc

if TYPE_CHECKING:
    from mlbundle.config import Settings


@dataclass(frozen=True)
class Cleaned:
    """What was removed, or would be: files and their bytes in all, and how many things of each kind."""

    files: int
    size_bytes: int
    blobs: int
    partials: int
    trees: int
    quarantine: int
    environments: int
    wheels: int


def clean(
    settings: Settings,
    *,
    partials: bool = False,
    quarantine: bool = False,
    environments: bool = False,
    dry_run: bool = False,
) -> Cleaned:
    """Remove what nothing refers to and what nobody has used for 30 days; `gc` of the store says what that is.

    `partials`, `quarantine` and `environments` (and wheels of image builds) also take what is younger. With `dry_run`
    nothing is removed. Raises StorageFailed.
    """
    collected = gc(
        settings.data_dir,
        keep=bundles_of_runs(settings),
        partials=partials,
        quarantine=quarantine,
        cache_dir=settings.cache_dir,
        dry_run=dry_run,
    )
    dropped = drop_unused(settings.cache_dir, everything=environments, dry_run=dry_run)
    return Cleaned(
        files=collected.files + dropped.files,
        size_bytes=collected.size_bytes + dropped.size_bytes,
        blobs=collected.blobs,
        partials=collected.partials + dropped.leftovers,
        trees=collected.trees,
        quarantine=collected.quarantine,
        environments=dropped.environments,
        wheels=dropped.wheels,
    )
