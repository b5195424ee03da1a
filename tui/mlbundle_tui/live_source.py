"""What the live screen reads of a run's folder: its events as they come, and the end of the worker's log."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlbundle.errors import MlbundleError
from mlbundle.runs.folder import JOB, WORKER_LOG, is_driven
from mlbundle.runs.following import EventTail
from mlbundle.runs.log_file import LogFile
from mlbundle.runs.watching import RunView, expected_phases

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mlbundle.config import Settings

_LOG_LINES = 200
# Looking for who waits costs more than reading one run.
_QUEUE_EACH = 5
_MOST_JOB_BYTES = 4 << 20


@dataclass
class Seen:
    """What is known of a run now. `since_s` is how long nothing was heard; `place` the runs that begin before it.

    While it waits `holder` is who measures, of whatever home or user.
    `driven`: a process drives it; `over`: it has ended, or nobody drives it. `log` are the last lines of the worker's
    log, None where they are not asked for or have not changed.
    """

    view: RunView
    job: Mapping[str, Any] = field(default_factory=dict)
    driven: bool = False
    over: bool = False
    place: int | None = None
    holder: str = ""
    since_s: float = 0.0
    log: Sequence[str] | None = None


class LiveSource:
    """Reads a run's folder. `read` is called by one thread at a time, never by that of the screen."""

    def __init__(self, settings: Settings, run_id: str, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._run_id = run_id
        self._clock = clock
        self._folder = settings.runs_dir / run_id
        self._tail = EventTail(self._folder)
        self._log = LogFile(self._folder / WORKER_LOG)
        self._log_size = -1
        self._closed = False
        self._reads = 0
        self._place: int | None = None
        self._holder = ""
        self._heard_s = clock()
        self._job: dict[str, Any] = {}
        self.view = RunView()
        self.wants_log = False

    def read(self) -> Seen:
        """Return what is known now; all events so far are taken in."""
        # Asked before reading: what an owner wrote last is read after it is known to be gone.
        driven = is_driven(self._folder)
        if not self._job:
            self._job = _read_job(self._settings, self._run_id)
            self.view.expected = expected_phases(self._job)
        self._take_events()
        if not driven:
            self.view.end()
        return Seen(
            view=self.view,
            job=self._job,
            driven=driven,
            over=self.view.over,
            place=self._queue_place() if self.view.waiting else None,
            holder=self._holder if self.view.waiting else "",
            since_s=0.0 if self.view.over else self._clock() - self._heard_s,
            log=self._last_lines() if self.wants_log else None,
        )

    def record(self, *, close: bool) -> dict[str, Any] | None:
        """Return the record of a run that is over; `close` writes that of one whose process has died.

        None when there is none. Raises StorageFailed.
        """
        from mlbundle.runs.folder import read_record
        from mlbundle.runs.recover import ended_record

        return ended_record(self._folder, self._settings) if close else read_record(self._folder)

    def close(self) -> None:
        """Let the file go, and end a reading that goes on."""
        self._closed = True
        self._tail.close()

    def _take_events(self) -> None:
        while not self._closed:
            events = self._tail.read()
            for event in events:
                self.view.take(event)
            if events:
                self._heard_s = self._clock()
            if not self._tail.behind:
                return

    def _queue_place(self) -> int | None:
        from mlbundle.runs.queue import machine_holder
        from mlbundle.runs.running import running_runs, waiting_order

        if self._reads % _QUEUE_EACH == 0:
            order = waiting_order(running_runs(self._settings))
            self._place = order.index(self._run_id) if self._run_id in order else None
            holder = machine_holder()
            self._holder = "" if holder is None else str(holder)
        self._reads += 1
        return self._place

    def _last_lines(self) -> Sequence[str] | None:
        try:
            size_bytes = self._log.size_bytes()
            if size_bytes == self._log_size:
                return None
            self._log_size = size_bytes
            return [line.text for line in self._log.last(_LOG_LINES)]
        except MlbundleError as error:
            return [error.message]


def _read_job(settings: Settings, run_id: str) -> dict[str, Any]:
    path = settings.runs_dir / run_id / JOB
    with suppress(OSError, ValueError, RecursionError):
        with path.open("rb") as stream:
            document = json.loads(stream.read(_MOST_JOB_BYTES))
        if isinstance(document, dict):
            return document
    return {}
