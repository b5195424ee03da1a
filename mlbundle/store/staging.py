"""Folders in the cache for what is made in several steps; locked while they are used, so that leftovers are known."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlbundle.files import lock_folder, storage_failed
from mlbundle.store.folders import children

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PREFIX = "staging-"
_NAME = re.compile(rf"{_PREFIX}[a-f0-9]{{8}}", re.ASCII)


@contextmanager
def staging(cache_dir: Path) -> Iterator[Path]:
    """Make a folder for this block alone; it is gone at the end, and after a kill with the next one.

    Raises StorageFailed.
    """
    for path in leftovers(cache_dir):
        remove_if_free(path)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        path, descriptor = _make_locked(cache_dir)
    except OSError as error:
        raise storage_failed(error, cache_dir) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def leftovers(cache_dir: Path) -> list[Path]:
    """Return the staging folders that nobody uses. Raises StorageFailed."""
    return [path for path, _ in children(cache_dir) if _NAME.fullmatch(path.name) and _is_free(path)]


def remove_if_free(path: Path) -> bool:
    """Remove a staging folder unless somebody uses it; whether it is gone. What can't be removed does no harm."""
    descriptor = lock_folder(path)
    if descriptor is None:
        return False
    try:
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()
    finally:
        os.close(descriptor)


def _make_locked(cache_dir: Path) -> tuple[Path, int]:
    while True:
        path = cache_dir / f"{_PREFIX}{secrets.token_hex(4)}"
        path.mkdir(mode=0o700)
        # Between the two another process may have taken it for a leftover.
        descriptor = lock_folder(path)
        if descriptor is not None:
            return path, descriptor


def _is_free(path: Path) -> bool:
    descriptor = lock_folder(path)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None
