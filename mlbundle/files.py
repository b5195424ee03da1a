"""Writing files so that a kill at any moment leaves the old one or the new one, and locks between processes."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from mlbundle.errors import StorageFailed

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Write to a temporary name beside `path`; at the end fsync, rename, sync the folder.

    An exception inside the block leaves what was there before. Raises StorageFailed when the disk refuses.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                stream.flush()
                os.fchmod(stream.fileno(), mode)
                os.fsync(stream.fileno())
            Path(temporary).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(temporary).unlink()
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise storage_failed(error, path) from error


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a small file at once, or not at all; makes its folder if need be. Raises StorageFailed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_failed(error, path) from error
    with replacing(path, mode=mode) as stream:
        stream.write(content)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(folder: Path) -> None:
    """Make a folder, if it is not there, and a nameless file in it. Raises StorageFailed where either can't be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise storage_failed(error, folder) from error


def sync_file_system(descriptor: int) -> None:
    """Bring everything on the file system of an open file to the disk: for thousands of files, once for all.

    syncfs(2) where the C library has it, else sync(2), which waits for all file systems.
    """
    import ctypes

    function = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if function is None:
        os.sync()
    elif function(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def storage_failed(error: OSError, path: Path) -> StorageFailed:
    """Return the typed error of a failed file operation."""
    return StorageFailed(
        error.strerror or str(error),
        where=str(error.filename or path),
        hint="free some space or set MLBUNDLE_HOME to a folder you can write to; `mlbundle doctor` shows the folders",
    )


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold an flock on `path` (made if need be) while the block runs; waits for others.

    Holders of a shared lock keep out only those who want it for themselves. Raises StorageFailed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise storage_failed(error, path) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except OSError as error:
            raise storage_failed(error, path) from error
        yield
    finally:
        os.close(descriptor)


def lock_folder(path: Path) -> int | None:
    """Return the locked descriptor of a folder, None when somebody else has it or it is gone; never waits."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(path.lstat(), os.fstat(descriptor)):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
