"""The bundle file as bytes at offsets; one descriptor, so that a file that is replaced meanwhile is not mixed in."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from mlbundle.errors import BundleCorrupt, NotABundle, ReferenceNotFound, StorageFailed

if TYPE_CHECKING:
    from pathlib import Path


class BundleFile:
    """A regular file, open for reading; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _open(path)
        self.size_bytes = os.fstat(self._descriptor).st_size

    @property
    def name(self) -> str:
        """How errors call the file."""
        return str(self.path)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes from `offset`; fewer only at the end of the file."""
        pieces: list[bytes] = []
        while size_bytes > 0:
            piece = self._pread(size_bytes, offset)
            if not piece:
                break
            pieces.append(piece)
            offset, size_bytes = offset + len(piece), size_bytes - len(piece)
        return b"".join(pieces)

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset`; raises BundleCorrupt when the file ends before."""
        while view:
            try:
                count = os.preadv(self._descriptor, [view], offset)
            except OSError as error:
                raise self._unreadable(error) from error
            if count == 0:
                raise BundleCorrupt("the file became shorter while it was read", where=str(self.path))
            view, offset = view[count:], offset + count

    def _pread(self, size_bytes: int, offset: int) -> bytes:
        try:
            return os.pread(self._descriptor, size_bytes, offset)
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> StorageFailed:
        return StorageFailed(f"can't read {self.path}: {error.strerror}", where=str(self.path))


def _open(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise ReferenceNotFound(f"there is no file {path}", where=str(path)) from None
    except OSError as error:
        raise StorageFailed(f"can't read {path}: {error.strerror}", where=str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotABundle(f"{path} is no regular file", where=str(path), hint="name a .mlb file")
    return descriptor
