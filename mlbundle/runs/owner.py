"""Which process drives a run: written into the run's `owner.lock`, and proven before that process is told anything.

The number of a process is given out again when it has ended. So the file also says when the process started, as the
kernel counts it, and whoever is to be signalled has to have the locked file open.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlbundle.errors import OwnerOutOfReach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMA = "mlbundle/owner/v1"
_PROCESSES = Path("/proc")
_MOST_BYTES = 4096


@dataclass(frozen=True)
class Owner:
    """A process; `started` is a text that no other process of that number has."""

    pid: int
    started: str


def own_document() -> bytes:
    """Return what this process writes into the `owner.lock` of a run that it drives."""
    pid = os.getpid()
    return json.dumps({"schema": SCHEMA, "pid": pid, "started": _started(pid)}).encode("ascii") + b"\n"


def read_owner(lock: Path) -> Owner | None:
    """Return whom an `owner.lock` names; None when it names nobody, or can't be read."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        with lock.open("rb") as stream:
            document = json.loads(stream.read(_MOST_BYTES))
        pid, started = document["pid"], document["started"]
        if document["schema"] == SCHEMA and type(pid) is int and pid > 1 and isinstance(started, str):
            return Owner(pid, started)
    return None


def owner_lives(lock: Path) -> bool:
    """Whether the process that an `owner.lock` names is there, whoever has it locked.

    In a copy of a data folder nobody has locked the runs that were going on: they are somebody else's to clean up.
    """
    owner = read_owner(lock)
    return owner is not None and _started(owner.pid) == owner.started


def signal_owner(lock: Path, number: signal.Signals) -> int | None:
    """Send a signal to the process that has the `owner.lock` of a run; returns its number, None when it is gone.

    Nobody is told who was not proven to be the one. Raises OwnerOutOfReach when that can't be proven, or when the
    process is another user's.
    """
    _require_own(lock)
    owner = read_owner(lock)
    if owner is None:
        raise OwnerOutOfReach(
            "the run does not say which process drives it",
            where=str(lock),
            hint="it was started by an older version: stop it with Ctrl-C where it was started",
        )
    with suppress(ProcessLookupError), _process(owner.pid) as send:
        # From here on the number can't become another process's.
        _require_same(owner, lock)
        send(number)
        return owner.pid
    return None


def _require_own(lock: Path) -> None:
    with suppress(FileNotFoundError):
        if os.geteuid() not in {0, lock.stat().st_uid}:
            raise OwnerOutOfReach(
                "the run is another user's",
                where=str(lock),
                hint="ask whoever started it, or an administrator",
            )


def _require_same(owner: Owner, lock: Path) -> None:
    found = _started(owner.pid)
    if found == "" and not _exists(owner.pid):
        raise ProcessLookupError
    if found != owner.started or not _has_open(owner.pid, lock):
        raise OwnerOutOfReach(
            f"process {owner.pid} is not the one that drives the run: it is left alone",
            where=str(lock),
            hint="is the run one of another container or another machine that shares this folder? Stop it there",
        )


@contextmanager
def _process(pid: int) -> Iterator[Callable[[signal.Signals], None]]:
    """Give what sends a signal to a process, by a handle where the kernel has them. Raises ProcessLookupError."""
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, PermissionError):  # not Linux, or an old one
        yield lambda number: os.kill(pid, number)
        return
    try:
        yield lambda number: signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _has_open(pid: int, lock: Path) -> bool:
    """Whether a process has this very file open; taken for granted where the system does not tell."""
    if not _PROCESSES.joinpath("self/fd").is_dir():
        return True
    with suppress(OSError):
        wanted = lock.stat()
        for entry in (_PROCESSES / str(pid) / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if os.path.samestat(entry.stat(), wanted):
                    return True
    return False


def _started(pid: int) -> str:
    """Return when a process started: boot and clock ticks since then, or what `ps` says; empty when it is gone."""
    try:
        # proc(5): the name in brackets may hold anything; field 22 is the start.
        fields = (_PROCESSES / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        boot = (_PROCESSES / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return "" if (_PROCESSES / "self").exists() else _started_by_ps(pid)
    return f"{boot}/{fields[19]}"


def _started_by_ps(pid: int) -> str:
    try:
        done = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return " ".join(done.stdout.split())
