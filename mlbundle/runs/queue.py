"""One measured run at a time on a machine, whatever MLBUNDLE_HOME says; others wait, visibly."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from mlbundle.manifest.problems import printable

MACHINE_BUSY = "machine-busy"
"""What a run says that waits."""

_LOOK_S = 1.0
_MOST_BYTES = 4096
_MOST_TEXT = 64


@dataclass(frozen=True)
class Holder:
    """Who measures now, as they say: any user of this machine can write there."""

    run_id: str
    user: str
    pid: int

    def __str__(self) -> str:
        return f"run {self.run_id} of {self.user}, process {self.pid}"


class MachineLock:
    """The right to measure on this machine. Where no lock file can be made, everybody has it.

    `run_id` is told to those who wait for it.
    """

    def __init__(self, run_id: str = "") -> None:
        self._run_id = run_id
        self._descriptor = _open_lock_file()
        self._held = False

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
        self._tell()
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
        self._tell()

    def holder(self) -> Holder | None:
        """Return who has the machine; None where nobody says so. What it says is not proven."""
        return None if self._descriptor is None else _holder(self._descriptor)

    def close(self) -> None:
        """Let the machine go."""
        if self._descriptor is not None:
            if self._held:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _tell(self) -> None:
        assert self._descriptor is not None
        self._held = True
        said = {"run_id": self._run_id, "user": user_name(), "pid": os.getpid()}
        with suppress(OSError):  # a full disk: it is a kindness, no more
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(said).encode("ascii"), 0)


def machine_holder() -> Holder | None:
    """Return who measures on this machine now; None where nobody does or says so."""
    with closing(MachineLock()) as lock:
        return lock.holder()


def _holder(descriptor: int) -> Holder | None:
    try:
        said = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
        run_id, user, pid = (said[name] for name in ("run_id", "user", "pid"))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    if not (isinstance(run_id, str) and run_id and isinstance(user, str) and type(pid) is int):
        return None
    return Holder(printable(run_id)[:_MOST_TEXT], printable(user)[:_MOST_TEXT], pid)


def user_name() -> str:
    """Return the name of who runs this process, or its number."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


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
