"""Reading ahead in a file far away: who reads on where they stopped gets more with each request.

Never is more fetched ahead than was read in that place before, so single looks cost no more than they need.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_AHEAD_BYTES = 16 << 20
_STREAMS = 4
_GAP_BYTES = 4 << 10
"""What may be left out between two reads that belong together: the header and the padding of a tar member."""


@dataclass(slots=True)
class _Stream:
    """A place where somebody reads on: `data` is what was fetched last, from `start` in the file."""

    start: int
    data: bytearray
    read_bytes: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def goes_on(self, offset: int) -> bool:
        return self.start <= offset <= self.end + _GAP_BYTES

    def copy(self, view: memoryview, offset: int) -> int:
        """Copy what is at hand into the beginning of `view`; return how much that was."""
        if offset >= self.end:
            return 0
        first = offset - self.start
        count = min(len(view), len(self.data) - first)
        view[:count] = memoryview(self.data)[first : first + count]
        return count


class ReadAhead:
    """Reads of a file of `size_bytes` through `fetch(view, offset)`; safe to use from several threads.

    It holds at most four times 16 MiB.
    """

    def __init__(self, fetch: Callable[[memoryview, int], None], size_bytes: int) -> None:
        self._fetch = fetch
        self._size_bytes = size_bytes
        self._streams: list[_Stream] = []
        self._lock = threading.Lock()

    def fill(self, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset`, which must be in the file to its end; raises what `fetch` raises."""
        stream = self._take(offset)
        copied = stream.copy(view, offset)
        if copied < len(view):
            self._go_on(stream, view[copied:], offset + copied)
        stream.read_bytes += len(view)
        with self._lock:
            self._streams.append(stream)
            del self._streams[:-_STREAMS]

    def _take(self, offset: int) -> _Stream:
        """Return the stream that a read goes on with, which nobody else has meanwhile, or a new one."""
        with self._lock:
            for number, stream in enumerate(self._streams):
                if stream.goes_on(offset):
                    return self._streams.pop(number)
        return _Stream(offset, bytearray())

    def _go_on(self, stream: _Stream, view: memoryview, offset: int) -> None:
        ahead_bytes = min(stream.read_bytes, MAX_AHEAD_BYTES, self._size_bytes - offset)
        if ahead_bytes <= len(view):
            self._fetch(view, offset)
            stream.start, stream.data = offset + len(view), bytearray()
            return
        # The old part goes first: the two are never held together.
        stream.start, stream.data = offset, bytearray()
        data = bytearray(ahead_bytes)
        self._fetch(memoryview(data), offset)
        view[:] = memoryview(data)[: len(view)]
        stream.data = data
