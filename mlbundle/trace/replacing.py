"""A file that appears whole or not at all."""

from __future__ import annotations

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
        _sync_folder(path.parent)
    except OSError as error:
        raise StorageFailed(
            error.strerror or str(error),
            where=str(error.filename or path),
            hint="free some space, or choose a folder that you can write to",
        ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
