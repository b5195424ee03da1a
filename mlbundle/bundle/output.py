"""A file that is written out of order: room is left for what is known last and filled at the end."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlbundle.errors import StorageFailed, UsageError
from mlbundle.files import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COPY_BYTES = 4 << 20


class Output:
    """The file being written, or only its length when there is no descriptor."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
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


@contextmanager
def temporary_beside(destination: Path) -> Iterator[tuple[Path, int]]:
    """Open a hidden new file beside `destination`; it is gone at the end unless it was renamed."""
    path = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}.partial")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        raise storage_failure(error, f"can't write in {destination.parent}") from error
    try:
        yield path, descriptor
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def publish(temporary: Path, destination: Path, *, overwrite: bool) -> None:
    """Give a finished file its name; raises UsageError when there is one and `overwrite` is not set."""
    try:
        if overwrite:
            if destination.exists() and not destination.is_file():
                raise UsageError(f"{destination} is no regular file", hint="name a file with -o")
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
