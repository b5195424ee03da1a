"""Following a run by its folder, from whatever process: what has happened so far, and what comes.

A follower only reads. It looks four times a second at most, so that it does not disturb what is measured.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from mlbundle.runs.folder import EVENTS, is_driven
from mlbundle.runs.seen import MOST_LINE_BYTES, event_of_line
from mlbundle.wire.events import End, Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import FileIO
    from pathlib import Path

_POLL_S = 0.25
_MOST_AT_ONCE_BYTES = 1 << 20


class EventTail:
    """The events of a run as they are appended, for somebody who has other things to do: it never waits.

    `behind` says that there was more than one call reads: call again at once. A file that was cut, or replaced, is
    read anew; events that were told are not told again.
    """

    def __init__(self, folder: Path, *, last_bytes: int | None = None) -> None:
        """With `last_bytes` what lies further back than that is left out, and with it a line that it cuts."""
        self._path = folder / EVENTS
        self._last_bytes = last_bytes
        self._stream: FileIO | None = None
        self._rest = b""
        self._passing_over = False
        # What was told last: of a file that takes the place of another the rest is told.
        self._told = (-1, -1)
        self._again = False
        self.behind = False

    def read(self) -> list[Event]:
        """Return what is new: of at most 1 MiB a call, whole lines only; what can't be read is passed over."""
        data = b""
        with suppress(OSError):  # not there yet, or taken away
            if self._stream is None:
                self._stream = self._open()
            data = self._stream.read(_MOST_AT_ONCE_BYTES) or b""
            if not data and self._is_another(self._stream):
                self._begin_anew()
                self._stream = self._open()
                data = self._stream.read(_MOST_AT_ONCE_BYTES) or b""
        self.behind = len(data) == _MOST_AT_ONCE_BYTES
        if not data:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines and self._passing_over:
            del lines[0]
            self._passing_over = False
        if len(self._rest) > MOST_LINE_BYTES:  # no event is that long
            self._rest, self._passing_over = b"", True
        events = (event_of_line(line) for line in lines)
        return [event for event in events if event is not None and self._is_new(event)]

    def read_all(self) -> Iterator[Event]:
        """Yield what is new, all of it."""
        yield from self.read()
        while self.behind:
            yield from self.read()

    def close(self) -> None:
        """Let the file go."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _is_another(self, stream: FileIO) -> bool:
        """Whether the file was cut, or another one has its name: what is appended comes elsewhere."""
        there, read = self._path.stat(), os.fstat(stream.fileno())
        return (there.st_ino, there.st_dev) != (read.st_ino, read.st_dev) or read.st_size < stream.tell()

    def _begin_anew(self) -> None:
        self.close()
        self._rest, self._passing_over, self._again = b"", False, True

    def _is_new(self, event: Event) -> bool:
        seq, t_ns = self._told
        if self._again and event.seq <= seq and event.t_ns <= t_ns:
            return False
        self._told = max(seq, event.seq), max(t_ns, event.t_ns)
        return True

    def _open(self) -> FileIO:
        stream = self._path.open("rb", buffering=0)
        if self._last_bytes is not None:
            end = stream.seek(0, 2)
            self._passing_over = end > self._last_bytes
            stream.seek(max(0, end - self._last_bytes))
        return stream


def follow_events(
    folder: Path, from_seq: int = 0, stop: Callable[[], bool] = lambda: False
) -> Iterator[Event]:
    """Yield the events of a run, those that were and those that come, from number `from_seq` on.

    Ends with the run's `end`; without one when nobody drives the run any more, or when `stop` says so (asked between
    two looks at the file).
    """
    with closing(EventTail(folder)) as tail:
        while not stop():
            # Asked before reading: what an owner wrote last is read after it is known to be gone.
            driven = tail.behind or is_driven(folder)
            for event in tail.read():
                if event.seq >= from_seq:
                    yield event
                if isinstance(event, End):
                    return
            if not tail.behind:
                if not driven:
                    return
                time.sleep(_POLL_S)
