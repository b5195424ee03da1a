"""A blob on its way into the store: one file that one process at a time may append to.

The file is its own lock. What a killed process left is hashed again before the next one goes on from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from mlbundle.bundle.hashing import Lane
from mlbundle.bundle.writeback import WriteBack
from mlbundle.errors import DigestMismatch, StorageFailed
from mlbundle.files import storage_failed, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BLOCK_BYTES = 256 << 10
BLOB_MODE = 0o444
_PARTIAL_MODE = 0o600
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FIRST_WAIT_S = 0.005
_LONGEST_WAIT_S = 0.2


class PartialFile:
    """The partial file of one blob, open for writing; `lock` is what `open_partial` gave. Implements `PartialBlob`."""

    def __init__(self, path: Path, hexadecimal: str, size_bytes: int, lock: int) -> None:
        self._path = path
        self._hexadecimal = hexadecimal
        self._descriptor = _open_for_writing(path, lock)
        self._size_bytes = size_bytes
        self._received_bytes = 0
        self._hash = hashlib.sha256()
        self._mark = (0, self._hash.copy())
        self._write_back = WriteBack(self._descriptor)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hash")
        self._lane = Lane(self._pool)
        try:
            self._take_up()
        except BaseException:
            self.close()
            raise

    @property
    def size_bytes(self) -> int:
        """The size that the blob will have."""
        return self._size_bytes

    @property
    def received_bytes(self) -> int:
        """How many bytes are here already, from the beginning."""
        return self._received_bytes

    def write(self, view: memoryview) -> None:
        """Append bytes; raises DigestMismatch beyond `size_bytes`, StorageFailed when the disk refuses."""
        view = view.cast("B")
        if self._received_bytes + len(view) > self._size_bytes:
            self._mark = (0, hashlib.sha256())
            self.rollback()
            raise DigestMismatch(
                f"more than the {self._size_bytes} bytes that the blob has came in",
                where=f"sha256:{self._hexadecimal}",
                hint="the source sends other data than it announces: try another source",
            )
        state = self._hash.copy()
        self._lane.do(partial(state.update, view), len(view))
        try:
            self._write_at(view, self._received_bytes)
        except OSError as error:
            raise storage_failed(error, self._path) from error
        finally:
            self._lane.wait()
        self._hash = state
        self._received_bytes += len(view)
        self._write_back.reached(self._received_bytes)

    def _write_at(self, view: memoryview, offset: int) -> None:
        while view:
            count = os.pwrite(self._descriptor, view, offset)
            offset, view = offset + count, view[count:]

    def mark(self) -> None:
        """Remember this place for `rollback`."""
        self._mark = (self._received_bytes, self._hash.copy())

    def rollback(self) -> None:
        """Forget everything after the last mark, or everything when there is none."""
        position, state = self._mark
        self._restart(position, state.copy())

    def commit(self, whole: Path) -> os.stat_result:
        """Give the blob its name `whole`, on disk, when size and digest are right; returns the file's status.

        Raises DigestMismatch, after which nothing is left of what was received, and StorageFailed.
        """
        try:
            if self._received_bytes != self._size_bytes or not self._is_right():
                self._path.unlink(missing_ok=True)
                raise self._mismatch()
            os.ftruncate(self._descriptor, self._size_bytes)
            os.fchmod(self._descriptor, BLOB_MODE)
            os.fsync(self._descriptor)
            self._path.rename(whole)
            sync_folder(whole.parent)
            return os.fstat(self._descriptor)
        except OSError as error:
            raise storage_failed(error, whole) from error

    def leave(self) -> None:
        """Keep what was received for the next try; an empty file goes."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, self._received_bytes)
            if not self._received_bytes:
                self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; the lock is the caller's."""
        self._pool.shutdown()
        os.close(self._descriptor)

    def _restart(self, position: int, state: hashlib._Hash) -> None:
        try:
            os.ftruncate(self._descriptor, position)
        except OSError as error:
            raise storage_failed(error, self._path) from error
        self._received_bytes, self._hash = position, state

    def _take_up(self) -> None:
        """Hash what an earlier try left. A part that can't be the beginning of the blob goes."""
        try:
            left = os.fstat(self._descriptor).st_size
            if left <= self._size_bytes:
                self._hash_left(left)
            if left > self._size_bytes or (left == self._size_bytes and not self._is_right()):
                self._restart(0, hashlib.sha256())
        except OSError as error:
            raise storage_failed(error, self._path) from error

    def _hash_left(self, left: int) -> None:
        buffer = memoryview(bytearray(min(left, BLOCK_BYTES) or 1))
        while self._received_bytes < left:
            count = os.preadv(self._descriptor, [buffer], self._received_bytes)
            if not count:
                break
            self._hash.update(buffer[:count])
            self._received_bytes += count

    def _mismatch(self) -> DigestMismatch:
        came = f"{self._received_bytes} of {self._size_bytes} bytes came in"
        return DigestMismatch(
            f"{came}, with the digest sha256:{self._hash.hexdigest()}",
            where=f"sha256:{self._hexadecimal}",
            hint="try again; if it stays so, the source is damaged",
        )

    def _is_right(self) -> bool:
        return self._hash.hexdigest() == self._hexadecimal


def open_partial(path: Path, waiting: Callable[[], None] | None = None) -> int | None:
    """Return a descriptor that is the lock of the partial file, made if need be: this process alone holds it.

    While another holds it, `waiting` is called now and then; it may raise. None when the file that was waited for has
    gone: it may have become the blob. Raises StorageFailed.
    """
    try:
        # For reading alone, as a kill just before the file became the blob leaves it read-only.
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | _FLAGS, _PARTIAL_MODE)
    except OSError as error:
        raise storage_failed(error, path) from error
    try:
        pause_s = _FIRST_WAIT_S
        # Asked again and again instead of a lock that blocks: a thread that waits can be told to stop.
        while not _lock(descriptor, path):
            if waiting is not None:
                waiting()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_WAIT_S)
        if _is_at(path, descriptor):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def remove_if_free(path: Path) -> bool:
    """Remove a partial file unless a process holds it; returns whether it is gone by this. Raises StorageFailed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
        try:
            if not _lock(descriptor, path) or not _is_at(path, descriptor):
                return False
            path.unlink()
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_failed(error, path) from error
    return True


def check_space(folder: Path, needed_bytes: int) -> None:
    """Raise StorageFailed when the file system of `folder` has less free space than is needed."""
    try:
        status = os.statvfs(folder)
    except OSError as error:
        raise storage_failed(error, folder) from error
    free_bytes = status.f_bavail * status.f_frsize
    if needed_bytes > free_bytes:
        raise StorageFailed(
            f"{needed_bytes} bytes are needed, {free_bytes} are free",
            where=str(folder),
            hint="free some space (`mlbundle gc` removes what nothing refers to) or set MLBUNDLE_HOME to another disk",
        )


def _open_for_writing(path: Path, lock: int) -> int:
    try:
        os.fchmod(lock, _PARTIAL_MODE)
        return os.open(path, os.O_RDWR | _FLAGS)
    except OSError as error:
        raise storage_failed(error, path) from error


def _lock(descriptor: int, path: Path) -> bool:
    """Return whether the file is ours now; False while another holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise storage_failed(error, path) from error
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_failed(error, path) from error
