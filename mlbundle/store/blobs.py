"""Blobs by digest: `<data>/blobs/sha256/<hex>`, whole and read-only; `<data>/blobs/partial/<hex>`, on their way in.

A blob has its name only when its bytes had that digest and were on disk. Whether they still have it is asked again
where size, modification time or inode of the file are no longer what they were (`mlbundle.store.stamps`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import threading
from collections import OrderedDict
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mlbundle.bundle.digests import is_hex
from mlbundle.errors import BundleCorrupt, DigestMismatch, StorageFailed
from mlbundle.files import storage_failed, sync_folder
from mlbundle.store.partial import BLOCK_BYTES, PartialFile, check_space, open_partial
from mlbundle.store.stamps import Stamps, stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mlbundle.bundle.blobs import PartialBlob

_OPEN_FILES = 64
_HINT_AGAIN = "add or pull the bundle again"


class BlobStore:
    """The blobs of one data folder. Implements `BlobReader` and `BlobSink`; safe between threads and processes."""

    def __init__(self, data_dir: Path) -> None:
        self.root = data_dir / "blobs"
        self.whole = self.root / "sha256"
        self.partial = self.root / "partial"
        self.quarantine = data_dir / "quarantine"
        self.stamps = Stamps(self.root / "stamps.txt")
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._files_lock = threading.Lock()

    @property
    def name(self) -> str:
        """How errors and tables call the store: its folder."""
        return str(self.whole)

    def path(self, hexadecimal: str) -> Path:
        """Return where a blob is, or would be. Raises BundleCorrupt for what is no hex form of a sha256."""
        if not is_hex(hexadecimal):
            raise BundleCorrupt(f"{ascii(hexadecimal)[:100]} names no blob", where=self.name)
        return self.whole / hexadecimal

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        """Return the place of a byte of a blob, for errors."""
        return f"{self.path(hexadecimal)}, byte {offset}"

    def size_of(self, hexadecimal: str) -> int | None:
        """Return the size in bytes of a blob that is here whole, or None. Raises StorageFailed."""
        status = _status(self.path(hexadecimal))
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None

    def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes of a blob from `offset`; fewer only at its end.

        Raises BundleCorrupt when the blob is not here or no regular file, StorageFailed when it can't be read.
        """
        file = self._file(hexadecimal)
        buffer = bytearray(max(0, min(size_bytes, file.size_bytes - offset)))
        view = memoryview(buffer)
        while view:
            count = file.read(view, offset)
            if not count:
                break
            view, offset = view[count:], offset + count
        return bytes(buffer[: len(buffer) - len(view)])

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset` of a blob; raises BundleCorrupt when it ends before, StorageFailed."""
        file, view = self._file(hexadecimal), view.cast("B")
        while view:
            count = file.read(view, offset)
            if not count:
                raise BundleCorrupt(
                    "the blob ends here", where=self.where(hexadecimal, offset), hint=_HINT_AGAIN
                )
            view, offset = view[count:], offset + count

    def close(self) -> None:
        """Let go of all files; a later read opens them again."""
        with self._files_lock:
            self._files.clear()

    @contextmanager
    def receive(
        self, hexadecimal: str, size_bytes: int, *, waiting: Callable[[], None] | None = None
    ) -> Iterator[PartialBlob | None]:
        """Take a blob in; gives None when it is here already, or came from another process meanwhile.

        At the end of the block the blob is whole, has its digest, is on disk and has its name; else DigestMismatch is
        raised and what was received is gone. After an exception in the block what was received stays for the next
        try. While another process receives the same blob this one waits and calls `waiting` now and then, which may
        raise. Raises StorageFailed, before anything is received when there is too little space.
        """
        path, partial = self.path(hexadecimal), self.partial / hexadecimal
        self.make_folders()
        lock = None
        while lock is None:
            if self._has(hexadecimal, size_bytes):
                yield None
                return
            lock = open_partial(partial, waiting)
        try:
            # It may have come in between the look and the lock; only who holds the lock sets a damaged one aside.
            if self._has(hexadecimal, size_bytes):
                partial.unlink(missing_ok=True)
                yield None
                return
            if _status(path) is not None:
                self.set_aside(path)
            with closing(PartialFile(partial, hexadecimal, size_bytes, lock)) as part:
                try:
                    check_space(self.partial, size_bytes - part.received_bytes)
                    yield part
                except BaseException:
                    part.leave()
                    raise
                self.stamps.put(hexadecimal, stamp_of(part.commit(path)))
        finally:
            os.close(lock)

    def verify(self, hexadecimal: str, progress: Callable[[int], None] | None = None) -> None:
        """Read a blob again, whatever its stamp says; `progress` hears of bytes as they are read.

        Raises DigestMismatch when it is damaged, BundleCorrupt when it is not here, StorageFailed.
        """
        file = _File(self.path(hexadecimal))
        before, state, offset = stamp_of(file.status()), hashlib.sha256(), 0
        buffer = memoryview(bytearray(BLOCK_BYTES))
        while count := file.read(buffer, offset):
            state.update(buffer[:count])
            offset += count
            if progress is not None:
                progress(count)
        if state.hexdigest() != hexadecimal:
            raise DigestMismatch(
                f"a blob of the store is damaged: its bytes have the digest sha256:{state.hexdigest()}",
                where=str(self.path(hexadecimal)),
                hint=_HINT_AGAIN,
            )
        if stamp_of(file.status()) == before and not self.stamps.hold(hexadecimal, before):
            self.stamps.put(hexadecimal, before)

    def is_intact(self, hexadecimal: str) -> bool:
        """Return whether a blob is here and sound; it is read only if it is not as it was when last verified."""
        status = _status(self.path(hexadecimal))
        if status is None or not stat.S_ISREG(status.st_mode):
            return False
        if self.stamps.hold(hexadecimal, stamp_of(status)):
            return True
        try:
            self.verify(hexadecimal)
        except (BundleCorrupt, DigestMismatch):
            return False
        return True

    def set_aside_if_damaged(self, hexadecimal: str) -> Path | None:
        """Read a blob and move it to the quarantine if it is not sound; returns its new place, or None.

        Raises StorageFailed.
        """
        self.make_folders()
        path, partial = self.path(hexadecimal), self.partial / hexadecimal
        # Who receives this blob holds its partial file, so what is moved is never a new one.
        while (lock := open_partial(partial)) is None:
            pass
        try:
            if _status(path) is None:
                return None
            self.verify(hexadecimal)
        except (BundleCorrupt, DigestMismatch):
            return self.set_aside(path)
        else:
            return None
        finally:
            if not os.fstat(lock).st_size:
                partial.unlink(missing_ok=True)
            os.close(lock)

    def set_aside(self, path: Path) -> Path:
        """Move a damaged file of the data folder to `<data>/quarantine` and return its new place.

        Raises StorageFailed.
        """
        place = self.quarantine / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{path.name}"
        try:
            self.quarantine.mkdir(parents=True, exist_ok=True)
            shutil.move(path, place)
            sync_folder(self.quarantine)
        except OSError as error:
            raise storage_failed(error, path) from error
        with self._files_lock:
            self._files.pop(path.name, None)
        return place

    def _has(self, hexadecimal: str, size_bytes: int) -> bool:
        """Return whether the blob is here and sound. Raises DigestMismatch when it is, but of another size."""
        if not self.is_intact(hexadecimal):
            return False
        found = self.size_of(hexadecimal)
        if found not in {None, size_bytes}:
            raise DigestMismatch(
                f"the blob has {found} bytes, not {size_bytes}",
                where=f"sha256:{hexadecimal}",
                hint="the source announces a wrong size: try another source",
            )
        return found is not None

    def make_folders(self) -> None:
        """Make the folders of the store, if need be. Raises StorageFailed."""
        try:
            for folder in (self.whole, self.partial):
                if not folder.is_dir():
                    folder.mkdir(parents=True, exist_ok=True)
                    sync_folder(self.root)
                    sync_folder(self.root.parent)
        except OSError as error:
            raise storage_failed(error, self.root) from error

    def _file(self, hexadecimal: str) -> _File:
        path = self.path(hexadecimal)
        with self._files_lock:
            file = self._files.get(hexadecimal)
            if file is None:
                file = self._files[hexadecimal] = _File(path)
                if len(self._files) > _OPEN_FILES:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(hexadecimal)
        return file


class _File:
    """A blob open for reading, closed when nobody uses it any more: a thread may still read what left the cache."""

    __slots__ = ("_descriptor", "_path", "size_bytes")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._descriptor = _open_regular(path)
        self.size_bytes = self.status().st_size

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def status(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def read(self, view: memoryview, offset: int) -> int:
        try:
            return os.preadv(self._descriptor, [view], offset)
        except OSError as error:
            raise storage_failed(error, self._path) from error


def _open_regular(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise BundleCorrupt(
            f"the blob sha256:{path.name} is not in the store", where=str(path), hint=_HINT_AGAIN
        ) from None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise _not_regular(path) from error
        raise storage_failed(error, path) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return descriptor


def _not_regular(path: Path) -> BundleCorrupt:
    return BundleCorrupt("a blob of the store is no regular file", where=str(path), hint=_HINT_AGAIN)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageFailed(f"can't look at {path}: {error.strerror}", where=str(path)) from error
