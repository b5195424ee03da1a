"""A file that is written out of order: room is left for what is known last and filled at the end."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.bundle.writeback import WriteBack
from mlbundle.errors import SourceChanged, StorageFailed, UsageError
from mlbundle.files import sync_folder
from mlbundle.platforms import free_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COPY_BYTES = 1 << 20
_PERMISSIONS = 0o777


class Output:
    """The file being written, or only its length when there is no descriptor."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._write_back = WriteBack(descriptor) if descriptor is not None else None
        self._buffer = bytearray()
        self.position = 0

    def skip(self, size_bytes: int) -> None:
        """Leave room that `patch` fills later."""
        self._flush()
        self.position += size_bytes

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; small ones are gathered."""
        if self._descriptor is not None:
            large = len(data) >= COPY_BYTES // 4
            if large or len(self._buffer) + len(data) > COPY_BYTES:
                self._flush()
            if large:
                self._write_at(data, self.position)
            else:
                self._buffer += data
        self.position += len(data)

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite bytes at `offset`, which lies in room left by `skip`."""
        if self._descriptor is not None:
            self._write_at(data, offset)

    def rewind(self, offset: int) -> None:
        """Forget everything from `offset` on."""
        self._flush()
        self.position = offset

    def finish(self) -> None:
        """Bring the file to its final length with all bytes handed to the system."""
        self._flush()
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, self.position)

    def _flush(self) -> None:
        if self._descriptor is not None and self._buffer:
            self._write_at(self._buffer, self.position - len(self._buffer))
            self._buffer = bytearray()

    def _write_at(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        assert self._descriptor is not None
        view = memoryview(data)
        while view:
            try:
                written = os.pwrite(self._descriptor, view, offset)
            except OSError as error:
                raise storage_failure(error, "can't write the bundle") from error
            view, offset = view[written:], offset + written
        assert self._write_back is not None
        self._write_back.reached(offset)


def check_space(needed_bytes: int, destination: Path) -> None:
    """Raise StorageFailed when there is too little room for a bundle, UsageError when there is no such folder.

    What killed processes left of the same bundle goes before.
    """
    if not destination.parent.is_dir():
        raise UsageError(f"the folder {destination.parent} does not exist", where=str(destination))
    with suppress(OSError):
        _remove_leftovers(destination)
    require_room(
        destination.parent,
        needed_bytes,
        "the bundle takes more than",
        "make room or write it to another disk with -o",
    )


def require_room(folder: Path, needed_bytes: int, what: str, hint: str) -> None:
    """Raise StorageFailed when less is free where a folder lies; `what` begins the message: "the files take"."""
    free = free_bytes(folder)
    if needed_bytes > free:
        raise StorageFailed(f"{what} {needed_bytes} bytes and {free} are free", where=str(folder), hint=hint)


@contextmanager
def temporary_beside(destination: Path) -> Iterator[tuple[Path, int]]:
    """Open a hidden new file beside `destination`; it is gone at the end unless it was renamed.

    It is locked while it is open, so that what a killed process left can be told from what is being written.
    """
    try:
        path, descriptor = _open_locked(destination)
    except OSError as error:
        raise storage_failure(error, f"can't write in {destination.parent}") from error
    try:
        yield path, descriptor
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _open_locked(destination: Path) -> tuple[Path, int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        path = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}.partial")
        descriptor = os.open(path, flags, 0o666)
        # On a disk without locks nobody can take it for a leftover either.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Between the two another process may have found it unlocked.
        if _is_at(path, descriptor):
            with suppress(OSError):
                # What takes the place of a private file is private while it is written, too.
                os.fchmod(descriptor, _permissions(destination) | stat.S_IRUSR | stat.S_IWUSR)
            return path, descriptor
        os.close(descriptor)


def _permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) & _PERMISSIONS


def _remove_leftovers(destination: Path) -> None:
    """Remove the temporary files of `destination` that nobody holds; one that can't be removed does no harm."""
    name = re.compile(rf"\.{re.escape(destination.name)}\.[a-f0-9]{{8}}\.partial", re.ASCII)
    for path in destination.parent.iterdir():
        if name.fullmatch(path.name):
            with suppress(OSError):
                _remove_if_free(path)


def _remove_if_free(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and _is_at(path, descriptor):
            path.unlink()
    finally:
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@dataclass(frozen=True)
class Held:
    """A file that is locked while something new is made of it, and how it looked then."""

    path: Path
    status: os.stat_result

    def check(self) -> None:
        """Raise SourceChanged when another file has the name now, or the file was written to."""
        try:
            now = self.path.lstat()
        except OSError:
            now = None
        if now is None or _looks(now) != _looks(self.status):
            raise SourceChanged(
                f"{self.path} changed while it was read; it stays as it is now",
                where=str(self.path),
                hint="try again",
            )


@contextmanager
def holding(path: Path) -> Iterator[Held]:
    """Keep others who replace a file from doing so while the block runs; waits for them.

    `path` is no symbolic link. Raises StorageFailed.
    """
    try:
        descriptor = _open_current(path)
    except OSError as error:
        raise storage_failure(error, f"can't read {path}") from error
    try:
        yield Held(path, os.fstat(descriptor))
    finally:
        os.close(descriptor)


def _open_current(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        # On a disk without locks, the check before the file is replaced has to do.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Who held it may have replaced it meanwhile.
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)


def _looks(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def publish(temporary: Path, destination: Path, *, overwrite: bool, held: Held | None = None) -> None:
    """Give a finished file its name, and the permissions of the file that it replaces.

    Raises UsageError when there is one and `overwrite` is not set, SourceChanged when it is not the one that is `held`.
    """
    try:
        if overwrite:
            if destination.exists():
                if not destination.is_file():
                    raise UsageError(f"{destination} is no regular file", hint="name a file with -o")
                temporary.chmod(_permissions(destination))
            if held is not None:
                held.check()
            temporary.replace(destination)
        else:
            _rename_new(temporary, destination)
        sync_folder(destination.parent)
    except FileExistsError:
        raise already_there(destination) from None
    except OSError as error:
        raise storage_failure(error, f"can't write {destination}") from error


def _rename_new(temporary: Path, destination: Path) -> None:
    """Rename without ever replacing a file; where there are no hard links, as well as can be."""
    try:
        os.link(temporary, destination, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        if destination.exists():
            raise FileExistsError(destination) from None
        temporary.rename(destination)


def already_there(destination: Path) -> UsageError:
    """Return the error of a name that is taken."""
    return UsageError(f"{destination} exists already", hint="--force replaces it; -o writes somewhere else")


def storage_failure(error: OSError, what: str) -> StorageFailed:
    """Return the typed error of a failed file operation."""
    return StorageFailed(f"{what}: {error.strerror}", hint="check free space and permissions")
