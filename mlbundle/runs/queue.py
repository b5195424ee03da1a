"""One measured run at a time on a machine, whatever MLBUNDLE_HOME says; others wait, visibly."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

MACHINE_BUSY = "machine-busy"
"""What a run says that waits."""

_LOOK_S = 1.0


class MachineLock:
    """The right to measure on this machine. Where no lock file can be made, everybody has it."""

    def __init__(self) -> None:
        self._descriptor = _open_lock_file()

    @property
    def available(self) -> bool:
        """Whether there is a lock file that all users of this machine share."""
        return self._descriptor is not None

    def acquire(self) -> bool:
        """Take the machine if nobody has it; True when it is ours until `close`."""
        if self._descriptor is None:
            return True
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait(self) -> None:
        """Wait for the machine, behind those who came before; what a signal raises ends the waiting.

        Linux keeps the order of those who wait in flock(2), and nobody looks again and again beside what is measured.
        """
        if self._descriptor is None:
            return
        # In a thread: a signal that comes just before the call would not end it.
        waiting = threading.Thread(target=_wait_for, args=(self._descriptor,), name="queue", daemon=True)
        waiting.start()
        while waiting.is_alive():
            waiting.join(_LOOK_S)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # it is ours, or this says why not

    def close(self) -> None:
        """Let the machine go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _wait_for(descriptor: int) -> None:
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _open_lock_file() -> int | None:
    system = Path("/run/lock")
    path = (system if os.access(system, os.W_OK) else Path(tempfile.gettempdir())) / "mlbundle"
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        # Without O_CREAT first: in a sticky folder the kernel may refuse to "create" another user's file.
        descriptor = os.open(path, flags)
    except OSError:
        try:
            descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        except OSError:
            return None
    with suppress(OSError):  # another user's file has these rights already
        os.fchmod(descriptor, 0o666)
    return descriptor
