"""The folder of one run: everything that happened, written by the host alone."""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import json
import os
import re
import secrets
import shutil
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from mlbundle.files import storage_failed, write_atomically
from mlbundle.runs.owner import own_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from mlbundle.config import Settings
    from mlbundle.wire.events import Event
    from mlbundle.wire.job import Job

RECORD = "record.json"
EVENTS = "events.jsonl"
OWNER_LOCK = "owner.lock"
JOB = "job.json"
TRACE = "trace.pftrace.gz"
WORKER_LOG = "worker.log"
_MOST_LINE = 1 << 16
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")


def new_run_id() -> str:
    """Return a name that sorts by time: `20261120T142503Z-7f3a9c`."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


class RunFolder:
    """An open run: holds the owner's lock and appends events until it is closed."""

    def __init__(self, runs_dir: Path, run_id: str) -> None:
        self.path = runs_dir / run_id
        self._seq = 0
        # Made under another name and renamed with the lock held: nobody ever sees the folder without an owner.
        unborn = runs_dir / f".{run_id}"
        try:
            unborn.mkdir(parents=True)
            self._lock = os.open(unborn / OWNER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            os.write(self._lock, own_document())
            self._events = (unborn / EVENTS).open("a", encoding="utf-8")
            unborn.rename(self.path)
        except OSError as error:
            shutil.rmtree(unborn, ignore_errors=True)
            raise storage_failed(error, self.path) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._events.close()
        os.close(self._lock)

    def append(self, event: Event, *, source: str) -> Event:
        """Give an event its number and source, write it down, return it."""
        numbered = dataclasses.replace(
            event, seq=self._seq, source=source, t_ns=event.t_ns or time.monotonic_ns()
        )
        self._seq += 1
        try:
            self._events.write(json.dumps(numbered.to_document(), separators=(",", ":")) + "\n")
            self._events.flush()
        except OSError as error:
            raise storage_failed(error, self.path / EVENTS) from error
        return numbered

    def write_job(self, job: Job) -> None:
        """Keep what the worker was asked."""
        write_atomically(self.path / JOB, json.dumps(job.to_document(), indent=2).encode())

    def write_record(self, record: dict[str, Any]) -> None:
        """Write the record, last and at once: its absence means that the run is unfinished."""
        write_atomically(self.path / RECORD, json.dumps(record, indent=2).encode())


@contextmanager
def owned(folder: Path) -> Iterator[bool]:
    """Take the ownership of a run's folder for the block; gives False when a living process has it."""
    try:
        descriptor = os.open(
            folder / OWNER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
        )
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def is_driven(folder: Path) -> bool:
    """Whether a living process drives a run, or closes it; also for who may only read."""
    try:
        descriptor = os.open(folder / OWNER_LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def run_folders(settings: Settings) -> list[Path]:
    """Return the folders of all runs, oldest first; whatever else lies there is passed over."""
    if not settings.runs_dir.is_dir():
        return []
    return sorted(p for p in settings.runs_dir.iterdir() if _RUN_ID.fullmatch(p.name) and p.is_dir())


def unfinished_folders(settings: Settings) -> list[Path]:
    """Return the folders of runs that have no record yet, newest first: quick where very many have one."""
    runs_dir = str(settings.runs_dir)
    try:
        changed_ns = os.stat(runs_dir).st_mtime_ns  # noqa: PTH116
        names = _UNFINISHED.get((runs_dir, changed_ns))
        if names is None:
            # In pieces: the names of a hundred thousand runs at once take 10 MB.
            with os.scandir(runs_dir) as entries:
                names = [entry.name for entry in entries if _lacks_record(runs_dir, entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    names = [name for name in names if _lacks_record(runs_dir, name)]
    _UNFINISHED.clear()
    if is_settled(changed_ns):
        _UNFINISHED[runs_dir, changed_ns] = names
    return [settings.runs_dir / name for name in sorted(names, reverse=True)]


_SETTLED_NS = 2_000_000_000
# (folder, when it was changed) -> runs without a record then: those with one never lose it.
_UNFINISHED: dict[tuple[str, int], list[str]] = {}


def is_settled(changed_ns: int) -> bool:
    """Whether a folder that was changed at this time will have another time when it is changed again.

    What happens in the same tick of the file system's clock would not be seen; neither would be what happens while
    the clock is set back, for which such a time is not trusted before it is past.
    """
    return 0 < changed_ns < time.time_ns() - _SETTLED_NS


def _lacks_record(runs_dir: str, name: str) -> bool:
    return _RUN_ID.fullmatch(name) is not None and not os.path.exists(f"{runs_dir}/{name}/{RECORD}")  # noqa: PTH110


def run_ids_in(runs_dir: Path, size: int = 1000) -> Iterator[list[str]]:
    """Yield the names of the folders of all runs, some at a time, in no order; raises StorageFailed."""
    try:
        with os.scandir(runs_dir) as entries:
            names = (entry.name for entry in entries if _RUN_ID.fullmatch(entry.name) and entry.is_dir())
            while some := list(itertools.islice(names, size)):
                yield some
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise storage_failed(error, runs_dir) from error


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return the record of a run folder, None when there is none or it can't be read."""
    try:
        document = json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def first_event(folder: Path) -> dict[str, Any]:
    """Return the first event of a run, which names the model; empty when there is none that can be read."""
    with suppress(OSError, ValueError), (folder / EVENTS).open(encoding="utf-8", errors="replace") as stream:
        event = json.loads(stream.readline(_MOST_LINE))
        if isinstance(event, dict):
            return event
    return {}
