"""Python environments for the `process` runtime, made from hash-locked requirements and kept in the cache.

`<cache>/envs/<framework>-<hash of lock, Python ABI, architecture>`: made under a temporary name, renamed when
complete, shared by every bundle with the same lock, gone with `mlbundle gc` when nobody has used it for long.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlbundle.bundle.layout import MAX_FURTHER_NAME, is_further_name
from mlbundle.errors import UsageError
from mlbundle.files import locked, storage_failed, sync_folder, write_atomically
from mlbundle.platforms import this_architecture
from mlbundle.resources import resource_folder
from mlbundle.runtime.environment_steps import Made, Making
from mlbundle.runtime.installing import make_environment, requirements_of
from mlbundle.store import cached
from mlbundle.store.bundles import Hold

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UNUSED_S = 30 * 24 * 3600.0
"""What nobody has used for so long goes with `mlbundle gc`."""

_COMPLETE = "mlbundle-environment.json"
_ENVIRONMENTS, _WHEELS = "envs", "wheels"


@dataclass(frozen=True)
class PythonEnvironment:
    """An environment: its Python, and the sha256 of the lock it was made from.

    As long as this object is there `gc` leaves the environment alone: that is what `hold` is for.
    """

    python: Path
    lock_sha256: str
    hold: Hold | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Dropped:
    """What was removed from the cache, or would be: how many of each kind, the files and bytes in all."""

    environments: int
    wheels: int
    leftovers: int
    files: int
    size_bytes: int


def environment_folder(cache_dir: Path, framework: str, lock: Path) -> Path:
    """Return where the environment of a lock lies or would lie.

    Raises UsageError for a framework whose name can't be part of a path: manifests of others state it.
    """
    if not is_further_name(framework):
        raise UsageError(
            f"no environment can be named after the framework {ascii(framework)[:80]}",
            hint=f"its name must be up to {MAX_FURTHER_NAME} letters and digits, and between two of them one of . _ -; "
            "`--python PATH` and `--runtime docker` need no such environment",
        )
    key = hashlib.sha256(lock.read_bytes())
    key.update(f"\n{sysconfig.get_config_var('SOABI')}\n{this_architecture()}".encode())
    return environments_folder(cache_dir) / f"{framework.lower()}-{key.hexdigest()[:24]}"


def environments_folder(cache_dir: Path) -> Path:
    """Return the folder of all environments; it is changed when one is made or removed."""
    return cache_dir / _ENVIRONMENTS


def has_environment(cache_dir: Path, framework: str, lock: Path) -> bool:
    """Return whether the environment of a lock is made. Raises UsageError as `environment_folder` does."""
    return _is_complete(environment_folder(cache_dir, framework, lock))


def ensure_environment(
    cache_dir: Path,
    framework: str,
    lock: Path,
    *,
    make: bool = True,
    report: Callable[[str], None] = lambda _line: None,
) -> PythonEnvironment:
    """Return the environment of a lock, made now if it is not there; `report` hears how it goes.

    Without `make` it is only said where it would be.

    Raises UsageError as `environment_folder` does, DigestMismatch where a package is not the lock's,
    PythonEnvironmentFailed or StorageFailed.
    """
    folder = environment_folder(cache_dir, framework, lock)
    python, digest = folder / "bin" / "python", hashlib.sha256(lock.read_bytes()).hexdigest()
    if not make:
        if not _is_complete(folder):
            report(f"the {framework} environment is not there yet; a run would make it")
        return PythonEnvironment(python, digest)
    if _is_complete(folder) and not os.access(folder.parent, os.W_OK):
        return PythonEnvironment(python, digest, Hold(folder))  # a cache that an administrator filled
    # Who removes one holds the lock, too: what is held here before the lock is let go stays.
    with locked(cached.lock_path(folder)):
        if not _is_complete(folder):
            report(str(Making(framework, len(requirements_of(lock)))))
            started = time.monotonic()
            _make(folder, lock, report)
            report(str(Made(framework, round(time.monotonic() - started))))
        cached.note_use(folder)
        return PythonEnvironment(python, digest, Hold(folder))


def drop_unused(cache_dir: Path, *, everything: bool = False, dry_run: bool = False) -> Dropped:
    """Remove environments and wheels that nobody has used for 30 days, and environments of locks not shipped any more.

    What a process uses or makes stays, also with `everything`, which removes all others whatever their age. With
    `dry_run` nothing is removed. Raises StorageFailed.
    """
    oldest = 0.0 if everything else time.time() - UNUSED_S
    shipped = _shipped_locks()
    environments = [
        folder
        for folder in cached.cached_folders(cache_dir / _ENVIRONMENTS)
        if everything or not folder.whole or folder.used_at < oldest or not _is_shipped(folder.path, shipped)
    ]
    wheels = [
        folder
        for folder in cached.cached_folders(cache_dir / _WHEELS)
        if everything or not folder.whole or folder.used_at < oldest
    ]
    remove = cached.is_free if dry_run else cached.remove_if_free
    environments = [folder for folder in environments if remove(folder)]
    wheels = [folder for folder in wheels if remove(folder)]
    return Dropped(
        environments=sum(folder.whole for folder in environments),
        wheels=sum(folder.whole for folder in wheels),
        leftovers=sum(not folder.whole for folder in (*environments, *wheels)),
        files=sum(folder.files for folder in (*environments, *wheels)),
        size_bytes=sum(folder.size_bytes for folder in (*environments, *wheels)),
    )


def _is_complete(folder: Path) -> bool:
    """Whether an environment can be used: made to its end, and the Python it was made with is still there."""
    return (folder / _COMPLETE).is_file() and os.access(folder / "bin" / "python", os.X_OK)


def _make(folder: Path, lock: Path, report: Callable[[str], None]) -> None:
    # Interpreters find their own place through the symbolic link, so the folder may be renamed; pip's scripts
    # would not survive it and are not used.
    temporary = cached.temporary_path(folder)
    try:
        cached.remove_leftovers(folder)
        make_environment(temporary, lock, report)
        document = {
            "schema": "mlbundle/environment/v1",
            "lock": lock.name,
            "lock_sha256": hashlib.sha256(lock.read_bytes()).hexdigest(),
            "python": sys.version.split()[0],
        }
        write_atomically(temporary / _COMPLETE, json.dumps(document).encode())
        cached.sync_tree(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise storage_failed(error, temporary) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _shipped_locks() -> frozenset[str]:
    paths = resource_folder("containers").rglob("*.lock")
    return frozenset(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)


def _is_shipped(folder: Path, shipped: frozenset[str]) -> bool:
    try:
        document = json.loads((folder / _COMPLETE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("lock_sha256") in shipped
