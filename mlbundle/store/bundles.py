"""Unpacked bundles by manifest digest: verified once while they are written, looked at again before each use.

A folder's stamp remembers size, modification time and inode of every file; where one of them differs the bundle
is unpacked anew. Files are read-only; folders stay listable for the unprivileged user of a container.
"""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.errors import DigestMismatch
from mlbundle.files import locked, storage_failed, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class StoredBundle:
    """An unpacked bundle: the folder of its files and the digests that name it."""

    folder: Path
    manifest_digest: str
    set_digest: str


class BundleStore:
    """The folder `<data>/bundles`."""

    def __init__(self, data_dir: Path) -> None:
        self._root = data_dir / "bundles"

    def materialise(self, path: Path, progress: Callable[[int, int], None] | None = None) -> StoredBundle:
        """Return the verified, unpacked files of a bundle file. Raises IntegrityError, StorageFailed."""
        from mlbundle.bundle.reader import open_bundle
        from mlbundle.bundle.verify import verify

        with open_bundle(path) as reader:
            manifest_digest, set_digest = reader.manifest_digest, reader.set_digest
        name = manifest_digest.removeprefix("sha256:")
        folder, stamp = self._root / name, self._root / f"{name}.stamp.json"
        with locked(self._root / ".lock"):
            if not _unchanged(folder, stamp):
                self._unpack(path, folder, stamp, manifest_digest, progress)
            else:
                # The files are here already; what the user named is a file, and the answer is about that file.
                verify(path, progress)
        return StoredBundle(folder=folder, manifest_digest=manifest_digest, set_digest=set_digest)

    def _unpack(
        self,
        path: Path,
        folder: Path,
        stamp: Path,
        manifest_digest: str,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        from mlbundle.bundle.unpack import unpack

        try:
            stamp.unlink(missing_ok=True)
            _remove(folder)
            unpacked = unpack(path, folder, progress)
            if unpacked.manifest_digest != manifest_digest:
                _remove(folder)
                raise DigestMismatch(
                    "the bundle was replaced by another while it was read", where=str(path), hint="try again"
                )
            _set_modes(folder, folders=0o755, files=0o444)
            write_atomically(stamp, json.dumps(_fingerprint(folder)).encode())
        except OSError as error:
            raise storage_failed(error, folder) from error


def _remove(folder: Path) -> None:
    if folder.exists():
        _set_modes(folder, folders=0o700, files=0o600)
        shutil.rmtree(folder)


def _fingerprint(folder: Path) -> dict[str, list[int]]:
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            found[path.relative_to(folder).as_posix()] = [status.st_size, status.st_mtime_ns, status.st_ino]
    return found


def _unchanged(folder: Path, stamp: Path) -> bool:
    try:
        return folder.is_dir() and bool(json.loads(stamp.read_bytes()) == _fingerprint(folder))
    except (OSError, ValueError):
        return False


def _set_modes(folder: Path, *, folders: int, files: int) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(folders if path.is_dir() else files)
