"""Speaks the protocol: events and files as frames on a descriptor that nobody else writes to."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

from mlbundle.wire import events, frames, passes


def claim_standard_streams() -> tuple[int, int]:
    """Keep stdin and stdout for the protocol and send whatever prints to stdout to stderr instead.

    Returns the descriptors to read from and to write to. Frameworks print; this keeps their chatter out of the
    protocol.
    """
    read_fd, write_fd = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return read_fd, write_fd


class Emitter:
    """Writes events and files as frames; `folders` is how many folders of passes there are already."""

    def __init__(self, write_fd: int, folders: int = 0) -> None:
        self._fd = write_fd
        self._folders = folders

    def folder(self, kind: str) -> str:
        """Return a new folder for a pass of this kind (`passes/03-batch`), in the order in which they are asked for."""
        self._folders += 1
        return passes.folder(self._folders - 1, kind)

    def frame(self, data: bytes) -> None:
        """Write one encoded frame; raises BrokenPipeError when the reader is gone."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def event(self, event: events.Event) -> None:
        """Write one event, stamped now unless it carries a time."""
        if event.t_ns == 0:
            event = dataclasses.replace(event, t_ns=time.monotonic_ns())
        self.frame(frames.encode_document(frames.EVENT, event.to_document()))

    def phase(self, name: str, state: str) -> None:
        """Say that a phase has begun or is done."""
        self.event(events.Phase(name=name, state=state))

    def file(self, name: str, content: bytes | memoryview) -> None:
        """Send one file by name; the host decides whether it wants a file of that name."""
        head: dict[str, Any] = {"name": name, "size": len(content)}
        self.frame(frames.encode_document(frames.FILE_BEGIN, head))
        view = memoryview(content)
        for start in range(0, len(view), frames.FILE_CHUNK_BYTES):
            self.frame(frames.encode(frames.FILE_DATA, bytes(view[start : start + frames.FILE_CHUNK_BYTES])))
        self.frame(frames.encode_document(frames.FILE_END, {"name": name}))
