"""One measured run at a time on a machine, whatever MLBUNDLE_HOME says; others wait, visibly."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

MACHINE_BUSY = "machine-busy"
"""What a run says that waits."""

_POLL_S = 0.1


class MachineLock:
    """The right to measure on this machine. Where no lock file can be made, everybody has it."""

    def __init__(self) -> None:
        self._descriptor = _open_lock_file()

    @property
    def available(self) -> bool:
        """Whether there is a lock file that all users of this machine share."""
        return self._descriptor is not None

    def acquire(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the machine; True when it is ours until `close`."""
        if self._descriptor is None:
            return True
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_POLL_S)
            else:
                return True

    def close(self) -> None:
        """Let the machine go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


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
