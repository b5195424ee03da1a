"""One measured run at a time on a machine, whatever MLBUNDLE_HOME says; others wait, visibly."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_POLL_S = 0.2


def _lock_file() -> Path:
    system = Path("/run/lock")
    return (system if os.access(system, os.W_OK) else Path(tempfile.gettempdir())) / "mlbundle"


def _open(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    with suppress(OSError):  # another user's file: it has these rights already
        os.fchmod(descriptor, 0o666)
    return descriptor


@contextmanager
def machine_to_ourselves(waiting: Callable[[float], None], *, concurrent: bool = False) -> Iterator[None]:
    """Hold the machine's lock while the block runs; `waiting` hears the seconds spent in the queue so far.

    With `concurrent` nobody is waited for and the lock is left alone. Where no lock file can be made, none is held.
    """
    if concurrent:
        yield
        return
    try:
        descriptor = _open(_lock_file())
    except OSError:
        yield
        return
    try:
        begun = time.monotonic()
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting(time.monotonic() - begun)
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
