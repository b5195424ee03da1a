"""A log of any size, read in pieces: the lines around a place, and the next one that holds a text.

Places are offsets in bytes at which a line begins. Nothing but what is asked for is read or kept, so 1 GB is as fast
as 1 kB. A file that grows is fine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from mlbundle.files import storage_failed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

T = TypeVar("T")

LONGEST_LINE = 4096
"""Bytes of a line that are read; what is beyond goes into lines of its own."""

_PIECE = 1 << 20
# Commands to a terminal: colours and the like.
_COMMAND = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True)
class Line:
    """A line, and where it begins and ends in the file (bytes)."""

    begin: int
    end: int
    text: str


class LogFile:
    """A log of bytes that are nearly always text. Methods raise StorageFailed where it can't be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def size_bytes(self) -> int:
        """Return how big the file is now; 0 where there is none."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise storage_failed(error, self.path) from error

    def after(self, place: int, count: int) -> list[Line]:
        """Return up to so many lines from a place on."""
        return self._with_file(lambda stream: _after(stream, place, count), [])

    def before(self, place: int, count: int) -> list[Line]:
        """Return up to so many lines that end at a place or earlier, in their order."""
        return self._with_file(lambda stream: _before(stream, place, count), [])

    def last(self, count: int) -> list[Line]:
        """Return the last lines."""
        return self.before(self.size_bytes(), count)

    def find(
        self, text: str, place: int, *, backwards: bool = False, stop: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Return where the next line begins that holds a text (capital letters or not), from a place on or before it.

        `stop` is asked now and then; None when it says so or nothing is found.
        """
        wanted = text.encode(errors="surrogateescape").lower()
        if not wanted:
            return None
        search = _find_before if backwards else _find_after
        return self._with_file(lambda stream: search(stream, wanted, place, stop), None)

    def places(self, text: str, most: int, *, stop: Callable[[], bool] = lambda: False) -> list[int]:
        """Return where all lines begin that hold a text (capital letters or not), at most so many.

        All of the file is read, a piece at a time; when `stop` says so, what was found by then is returned.
        """
        wanted = text.encode(errors="surrogateescape").lower()
        if not wanted:
            return []
        return self._with_file(lambda stream: _find_all(stream, wanted, most, stop), [])

    def _with_file(self, read: Callable[[BinaryIO], T], nothing: T) -> T:
        try:
            with self.path.open("rb") as stream:
                return read(stream)
        except FileNotFoundError:
            return nothing
        except OSError as error:
            raise storage_failed(error, self.path) from error


def _after(stream: BinaryIO, place: int, count: int) -> list[Line]:
    stream.seek(place)
    found = []
    for _ in range(count):
        begin = stream.tell()
        raw = stream.readline(LONGEST_LINE)
        if not raw:
            break
        found.append(Line(begin, begin + len(raw), _text(raw)))
    return found


def _before(stream: BinaryIO, place: int, count: int) -> list[Line]:
    begin, data = _whole_lines_before(stream, place, min(_PIECE, count * LONGEST_LINE))
    return list(_lines(data, begin))[-count:]


def _find_after(stream: BinaryIO, wanted: bytes, place: int, stop: Callable[[], bool]) -> int | None:
    stream.seek(place)
    begin, data = place, b""
    while not stop():
        piece = stream.read(_PIECE)
        data += piece
        at = data.lower().find(wanted)
        if at >= 0:
            return begin + _line_begin(data, at)
        if not piece:
            return None
        # The last line may go on, and with it what is looked for.
        kept = max(data.rfind(b"\n") + 1, len(data) - _PIECE)
        begin, data = begin + kept, data[kept:]
    return None


def _find_all(stream: BinaryIO, wanted: bytes, most: int, stop: Callable[[], bool]) -> list[int]:
    begin, data = 0, b""
    found: list[int] = []
    while not stop():
        piece = stream.read(_PIECE)
        data += piece
        # The last line may go on: it is looked at when all of it is here, unless it is longer than anything we keep.
        whole = max(data.rfind(b"\n") + 1, len(data) - _PIECE) if piece else len(data)
        for at in _lines_with(data[:whole].lower(), wanted):
            found.append(begin + at)
            if len(found) == most:
                return found
        if not piece:
            break
        begin, data = begin + whole, data[whole:]
    return found


def _lines_with(data: bytes, wanted: bytes) -> Iterator[int]:
    """Yield where the lines (of long ones the parts) begin that hold a text."""
    at = data.find(wanted)
    while at >= 0:
        line = _line_begin(data, at)
        yield line
        end = data.find(b"\n", at, line + LONGEST_LINE)
        at = data.find(wanted, line + LONGEST_LINE if end < 0 else end + 1)


def _find_before(stream: BinaryIO, wanted: bytes, place: int, stop: Callable[[], bool]) -> int | None:
    while place > 0 and not stop():
        begin, data = _whole_lines_before(stream, place, _PIECE)
        at = data.lower().rfind(wanted)
        if at >= 0:
            return begin + _line_begin(data, at)
        place = begin
    return None


def _whole_lines_before(stream: BinaryIO, place: int, size_bytes: int) -> tuple[int, bytes]:
    """Return where the lines before a place begin, as many as fit into a size, and these; of a longer line its end."""
    begin = max(0, place - size_bytes)
    stream.seek(begin)
    data = stream.read(place - begin)
    # What comes first is the end of a line that began earlier, unless there is nothing else.
    cut = data.find(b"\n", 0, len(data) - 1) + 1 if begin else 0
    return begin + cut, data[cut:]


def _lines(data: bytes, begin: int) -> Iterator[Line]:
    at = 0
    while at < len(data):
        newline = data.find(b"\n", at, at + LONGEST_LINE)
        end = min(at + LONGEST_LINE, len(data)) if newline < 0 else newline + 1
        yield Line(begin + at, begin + end, _text(data[at:end]))
        at = end


def _line_begin(data: bytes, at: int) -> int:
    """Return where the line (or the part of a long one) begins that holds a place."""
    begin = data.rfind(b"\n", 0, at) + 1
    return at - (at - begin) % LONGEST_LINE


def _text(raw: bytes) -> str:
    """Return a line as it can be shown: no line ends, tabs as spaces, nothing that a terminal would obey."""
    text = _COMMAND.sub("", raw.decode(errors="replace").rstrip("\r\n"))
    if not text.isprintable():
        text = "".join(c for c in text if c.isprintable() or c in "\t\xa0")
    return text.expandtabs(8)
