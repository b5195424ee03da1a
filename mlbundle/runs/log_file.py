"""A log of any size, read in pieces: the lines around a place, and the next one that holds a text.

Places are offsets in bytes at which a line begins. Nothing but what is asked for is read or kept, so 1 GB is as fast
as 1 kB. A file that grows is fine.
"""

from __future__ import annotations

import itertools
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
# Small enough that others have their turn between two.
_SEARCHED = 256 << 10
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
        self,
        text: str,
        place: int,
        *,
        backwards: bool = False,
        until: int | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> int | None:
        """Return where the next line begins that holds a text (capital letters or not), from a place on or before it.

        Nothing beyond `until` is looked at. `stop` is asked now and then; None when it says so or nothing is found.
        """
        wanted = text.encode(errors="surrogateescape").lower()
        if not wanted:
            return None
        if backwards:
            return self._with_file(lambda stream: _find_before(stream, wanted, place, until or 0, stop), None)
        return self._with_file(lambda stream: next(_places(stream, wanted, place, until, stop), None), None)

    def places(self, text: str, most: int, *, stop: Callable[[], bool] = lambda: False) -> list[int]:
        """Return where all lines begin that hold a text (capital letters or not), at most so many.

        All of the file is read, a piece at a time; when `stop` says so, what was found by then is returned.
        """
        wanted = text.encode(errors="surrogateescape").lower()
        if not wanted:
            return []
        return self._with_file(
            lambda stream: list(itertools.islice(_places(stream, wanted, 0, None, stop), most)), []
        )

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


def _places(
    stream: BinaryIO, wanted: bytes, place: int, until: int | None, stop: Callable[[], bool]
) -> Iterator[int]:
    """Yield where the lines (of long ones the parts) begin that hold a text, from the begin of a line on.

    Of what was read before no more is kept than a text may begin in: a line without end takes no more than others.
    """
    stream.seek(place)
    line, begin, rest, past = place, place, b"", place
    while not stop():
        piece = stream.read(_SEARCHED)
        data = (rest + piece).lower()
        at = data.find(wanted, max(0, past - begin))
        while at >= 0:
            held = begin + at
            newline = data.rfind(b"\n", 0, at)
            line = line if newline < 0 else begin + newline + 1
            part = held - (held - line) % LONGEST_LINE
            if until is not None and part >= until:
                return
            yield part
            end = data.find(b"\n", at)
            past = part + LONGEST_LINE if end < 0 else min(part + LONGEST_LINE, begin + end + 1)
            at = data.find(wanted, past - begin)
        if not piece or (until is not None and begin + len(data) >= until + LONGEST_LINE + len(wanted)):
            return
        newline = data.rfind(b"\n")
        line = line if newline < 0 else begin + newline + 1
        kept = min(len(data), len(wanted) - 1)
        begin, rest = begin + len(data) - kept, data[len(data) - kept :]


def _find_before(
    stream: BinaryIO, wanted: bytes, place: int, until: int, stop: Callable[[], bool]
) -> int | None:
    while place > until and not stop():
        begin, data = _whole_lines_before(stream, place, _SEARCHED)
        # What begins in a part of a long line may end in the next.
        at = (data + stream.read(len(wanted) - 1)).lower().rfind(wanted)
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
