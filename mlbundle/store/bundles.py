"""Unpacked bundles by manifest digest: verified once while they are written, looked at again before each use.

A folder's stamp remembers size, modification time and inode of every file; where one of them differs the bundle
is unpacked anew. Files are read-only; folders stay listable for the unprivileged user of a container. Who uses a
folder holds a shared lock on it, so that it is not collected.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlbundle.files import locked, storage_failed, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mlbundle.bundle.document import ImagePin
    from mlbundle.bundle.reader import BundleReader


_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class StoredBundle:
    """An unpacked bundle: the folder of its files, the digests that name it, and the images that it pins.

    As long as this object is there `gc` leaves the folder alone: that is what `hold` is for.
    """

    folder: Path
    manifest_digest: str
    set_digest: str
    images: tuple[ImagePin, ...] = ()
    hold: Hold | None = field(default=None, repr=False, compare=False)


class Hold:
    """A shared lock on a folder that is in use, let go with this object or with the process."""

    __slots__ = ("_descriptor",)

    def __init__(self, folder: Path) -> None:
        self._descriptor = -1
        # Where folders can't be locked nothing is held: they are collected as if nobody used them.
        with suppress(OSError):
            self._descriptor = os.open(folder, _FOLDER_FLAGS)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def is_held(folder: Path) -> bool:
    """Return whether somebody uses an unpacked bundle; nobody begins to while the store's lock is held."""
    try:
        descriptor = os.open(folder, _FOLDER_FLAGS)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


class BundleStore:
    """The folder `<data>/bundles`."""

    def __init__(self, data_dir: Path) -> None:
        self._root = data_dir / "bundles"

    def materialise(self, path: Path, progress: Callable[[int, int], None] | None = None) -> StoredBundle:
        """Return the verified, unpacked files of a bundle file. Raises IntegrityError, StorageFailed."""
        from mlbundle.bundle.reader import open_bundle

        with open_bundle(path) as reader:
            return self.materialise_reader(reader, progress, verify_again=True)

    def materialise_reader(
        self,
        reader: BundleReader,
        progress: Callable[[int, int], None] | None = None,
        *,
        verify_again: bool = False,
    ) -> StoredBundle:
        """Return the verified, unpacked files of an open bundle.

        Where they are here already, `verify_again` checks every byte of the bundle all the same: what a user names is
        a file, and the answer is about that file. Raises IntegrityError, StorageFailed.
        """
        from mlbundle.bundle.agreement import check_names
        from mlbundle.bundle.verify import verify_reader

        check_names(reader)
        name = reader.manifest_hex
        folder, stamp = self._root / name, self._root / f"{name}.stamp.json"
        with locked(self._root / ".lock"):
            if not _unchanged(folder, stamp):
                self._unpack(reader, folder, stamp, progress)
            elif verify_again:
                verify_reader(reader, progress)
            hold = Hold(folder)
        return StoredBundle(
            folder=folder,
            manifest_digest=reader.manifest_digest,
            set_digest=reader.set_digest,
            images=reader.document.images,
            hold=hold,
        )

    def _unpack(
        self,
        reader: BundleReader,
        folder: Path,
        stamp: Path,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        from mlbundle.bundle.unpack import unpack_reader

        try:
            stamp.unlink(missing_ok=True)
            _remove(folder)
            unpack_reader(reader, folder, progress)
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
