"""The folder of a generated model: made beside its place, and replaced only while it is as it was generated."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import secrets
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.errors import UsageError
from mlbundle.files import lock_folder, storage_failed, sync_folder
from mlbundle.store.cached import sync_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORD_FILE = "generated.json"
RECORD_SCHEMA = "mlbundle/generated/v1"
_LEFTOVER = ".partial"
_NEW, _OLD = "new", "old"


@dataclass(frozen=True)
class GeneratedFile:
    """A file that was made: its path in the folder, with slashes."""

    path: str
    size_bytes: int
    sha256: str


def files_of(root: Path) -> tuple[GeneratedFile, ...]:
    """Make every file of a folder readable for all and return them, in order of path. Raises OSError."""
    found = []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        path.chmod(0o644)
        found.append(GeneratedFile(path.relative_to(root).as_posix(), path.stat().st_size, _sha256(path)))
    return tuple(found)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_destination(folder: Path, *, replace: bool) -> None:
    """Raise UsageError unless nothing is there, or it may be replaced and is as it was generated; or StorageFailed."""
    if not folder.parent.is_dir():
        raise UsageError(f"the folder {folder.parent} does not exist", where=str(folder))
    try:
        if not os.path.lexists(folder):
            return
        if not replace:
            raise UsageError(f"{folder} exists already", hint="name another with -o, or say --force")
        _check_unchanged(folder)
    except OSError as error:
        raise storage_failed(error, folder) from error


def _check_unchanged(folder: Path) -> None:
    """Raise UsageError where a folder holds anything that `generate` did not make; a missing file is no loss."""
    generated = _as_generated(folder)
    hint = "--force replaces only what `mlbundle generate` made; "
    if generated is None:
        raise UsageError(f"{folder} was not generated", hint=f"{hint}name another folder with -o")
    for path in sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()):
        name = path.relative_to(folder).as_posix()
        if name == RECORD_FILE:
            continue
        known = generated.get(name)
        if known is None or path.is_symlink() or not path.is_file():
            raise UsageError(
                f"{folder} holds {name}, which was not generated", hint=f"{hint}name another folder with -o"
            )
        if path.stat().st_size != known.size_bytes or _sha256(path) != known.sha256:
            raise UsageError(
                f"{name} in {folder} was changed since it was generated",
                hint=f"{hint}name another folder with -o, or move {name} away if it is not needed",
            )


def _as_generated(folder: Path) -> dict[str, GeneratedFile] | None:
    """Return the files that a generated folder says it was made with, by path; None for any other folder."""
    try:
        if folder.is_symlink():
            return None
        document = json.loads((folder / RECORD_FILE).read_text("utf-8"))
        if document["schema"] != RECORD_SCHEMA:
            return None
        return {e["path"]: GeneratedFile(e["path"], e["size"], e["sha256"]) for e in document["files"]}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


@contextmanager
def staging_folder(destination: Path) -> Iterator[Path]:
    """Make a locked hidden folder beside `destination`; what is left in it at the end goes."""
    guard = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}{_LEFTOVER}")
    guard.mkdir(mode=0o700)
    lock = lock_folder(guard)
    try:
        (guard / _NEW).mkdir()
        yield guard / _NEW
    finally:
        _clear(guard, destination)
        if lock is not None:
            os.close(lock)


def clear_leftovers(destination: Path) -> None:
    """Clear away what killed processes left; a lock shows that somebody is at work."""
    for path in destination.parent.glob(f".{glob.escape(destination.name)}.????????{_LEFTOVER}"):
        if (lock := lock_folder(path)) is not None:
            try:
                _clear(path, destination)
            finally:
                os.close(lock)


def _clear(guard: Path, destination: Path) -> None:
    """Remove a folder of `staging_folder`; whoever ended between its two renames gets back what was there before."""
    old = guard / _OLD
    if old.is_dir() and not os.path.lexists(destination):
        old.rename(destination)
        sync_folder(destination.parent)
    shutil.rmtree(guard, ignore_errors=True)


def publish(staging: Path, folder: Path, *, replace: bool) -> None:
    """Bring all bytes to the disk and give the folder its name; raises as `check_destination`, and OSError."""
    sync_tree(staging)
    check_destination(folder, replace=replace)
    if folder.exists():
        folder.rename(staging.with_name(_OLD))
    staging.rename(folder)
    sync_folder(folder.parent)
