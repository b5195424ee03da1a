"""Folders of the cache that take long to make: `<root>/<name>`, made as `.<name>.<anything>.tmp` under `.<name>.lock`.

Whoever makes or removes one holds its lock, whoever uses one holds a shared lock on the folder itself. A kill leaves a
temporary folder, which nobody takes for a whole one.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.files import storage_failed, sync_file_system
from mlbundle.store.bundles import is_held
from mlbundle.store.folders import children, tree_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WHOLE = re.compile(r"(?:[a-z0-9][a-z0-9_.-]*-)?[0-9a-f]{24}", re.ASCII)
_TEMPORARY = re.compile(rf"\.({_WHOLE.pattern})(?:\.[0-9a-z]+)?\.tmp", re.ASCII)


@dataclass(frozen=True)
class CachedFolder:
    """One folder, or what a kill left of one; `used_at` is the time of its last use, seconds since 1970."""

    path: Path
    whole: bool
    used_at: float
    files: int
    size_bytes: int


def lock_path(folder: Path) -> Path:
    """Return the lock file of a folder."""
    return folder.with_name(f".{folder.name}.lock")


def temporary_path(folder: Path) -> Path:
    """Return where a folder is made, a name that nothing else has; its lock must be held."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left of the making of a folder; its lock must be held."""
    for path, _ in children(folder.parent):
        found = _TEMPORARY.fullmatch(path.name)
        if found is not None and found.group(1) == folder.name:
            shutil.rmtree(path, ignore_errors=True)


def sync_tree(folder: Path) -> None:
    """Bring every file of a folder to the disk, before a name says that they are there. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file_system(descriptor)
    finally:
        os.close(descriptor)


def cached_folders(root: Path) -> list[CachedFolder]:
    """Return what lies under `root`; files that mlbundle did not name are left out. Raises StorageFailed."""
    found = []
    for path, status in children(root):
        whole = _WHOLE.fullmatch(path.name) is not None
        if stat.S_ISDIR(status.st_mode) and (whole or _TEMPORARY.fullmatch(path.name)):
            found.append(CachedFolder(path, whole, status.st_mtime, *tree_size(path)))
    return found


def is_free(folder: CachedFolder) -> bool:
    """Return whether nobody makes, removes or uses a folder at this moment."""
    with _locked_now(_lock_of(folder.path)) as ours:
        return ours and not is_held(folder.path)


def remove_if_free(folder: CachedFolder) -> bool:
    """Remove a folder unless somebody makes or uses it; whether it was removed. Raises StorageFailed."""
    path = folder.path
    with _locked_now(_lock_of(path)) as ours:
        if not ours or is_held(path):
            return False
        try:
            if folder.whole:
                # Renamed first: a kill in the middle leaves no folder that looks whole.
                path = path.rename(temporary_path(path))
            shutil.rmtree(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_failed(error, path) from error
    return True


def note_use(folder: Path) -> None:
    """Remember that a folder is used now; a cache that can't be written remembers nothing."""
    with suppress(OSError):
        os.utime(folder)


def _lock_of(path: Path) -> Path:
    temporary = _TEMPORARY.fullmatch(path.name)
    return lock_path(path if temporary is None else path.with_name(temporary.group(1)))


@contextmanager
def _locked_now(path: Path) -> Iterator[bool]:
    """Hold a lock file if nobody has it; says whether it is held."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise storage_failed(error, path) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)
