"""When a blob was last verified: its size, modification time and inode then, a line each in `<data>/blobs/stamps.txt`.

Lines are appended, each by one write, so several processes need no lock; the last line about a blob holds. A line that
is lost or damaged costs one more verification and nothing else, so nothing here is synced.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from mlbundle.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Stamp = tuple[int, int, int]
"""Size in bytes, modification time in ns, inode."""

_LINE = re.compile(rb"^([a-f0-9]{64}) (\d{1,20}) (-?\d{1,20}) (\d{1,20})$", re.ASCII | re.MULTILINE)


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file."""
    return status.st_size, status.st_mtime_ns, status.st_ino


class Stamps:
    """The stamps of one store; one object may be used by several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: Stamp | None = None
        self._stamps: dict[str, Stamp] = {}

    def hold(self, hexadecimal: str, stamp: Stamp) -> bool:
        """Return whether a blob was verified when its file was as `stamp` says."""
        if self._stamps.get(hexadecimal) != stamp:
            self._refresh()
        return self._stamps.get(hexadecimal) == stamp

    def put(self, hexadecimal: str, stamp: Stamp) -> None:
        """Write down that a blob was verified; a disk that refuses is no error, as the blob is verified again."""
        line = f"{hexadecimal} {stamp[0]} {stamp[1]} {stamp[2]}\n".encode("ascii")
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)

    def keep_only(self, wanted: Callable[[str], bool]) -> None:
        """Drop the lines of blobs that are gone, and all but the last line of each. Raises StorageFailed."""
        try:
            content = self._path.read_bytes()
        except OSError:
            return
        lines = [
            f"{hexadecimal} {stamp[0]} {stamp[1]} {stamp[2]}\n"
            for hexadecimal, stamp in _parse(content).items()
            if wanted(hexadecimal)
        ]
        shorter = "".join(lines).encode("ascii")
        if shorter != content:
            write_atomically(self._path, shorter)

    def _refresh(self) -> None:
        with suppress(OSError):
            now = stamp_of(self._path.stat())
            if now != self._seen:
                self._stamps, self._seen = _parse(self._path.read_bytes()), now


def _parse(content: bytes) -> dict[str, Stamp]:
    return {
        match[1].decode("ascii"): (int(match[2]), int(match[3]), int(match[4]))
        for match in _LINE.finditer(content)
    }
