"""Writing to the disk begins while a file still grows: the fsync at its end has little left to wait for."""

from __future__ import annotations

import os
from contextlib import suppress

STEP_BYTES = 32 << 20


class WriteBack:
    """Follows a file that is written from its beginning to its end; a hint to the system, which never fails."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._begun_bytes = 0

    def reached(self, size_bytes: int) -> None:
        """Note that the file is written up to here."""
        if size_bytes - self._begun_bytes >= STEP_BYTES:
            begun, self._begun_bytes = self._begun_bytes, size_bytes
            # Linux begins to write what is dirty in a range that is not needed soon; it drops only what is clean.
            if hasattr(os, "posix_fadvise"):
                with suppress(OSError):
                    os.posix_fadvise(self._descriptor, begun, size_bytes - begun, os.POSIX_FADV_DONTNEED)
