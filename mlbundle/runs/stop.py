"""Stopping a run from anywhere: its owner is told, and its record waited for."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.errors import ReferenceNotFound, RunFailed
from mlbundle.runs.folder import OWNER_LOCK, RECORD, is_driven
from mlbundle.runs.owner import signal_owner
from mlbundle.runs.recover import ended_record

if TYPE_CHECKING:
    from mlbundle.config import Settings

_POLL_S = 0.1


@dataclass(frozen=True)
class Stopped:
    """What became of a run: `status` as in its record; `was_over` when there was nothing to stop."""

    run_id: str
    status: str
    was_over: bool


def stop_run(settings: Settings, run_id: str, *, timeout_s: float = 60.0) -> Stopped:
    """Cancel a run that goes on or waits, and wait until its record is written.

    A run that was over stays as it is. Raises ReferenceNotFound, OwnerOutOfReach (another user's, or its process is not
    proven), RunFailed when the run has not ended after `timeout_s`.
    """
    folder = settings.runs_dir / run_id
    if not folder.is_dir():
        raise ReferenceNotFound(f"no run is called {run_id!r}", hint="`mlbundle runs list` shows them")
    was_over, pid = True, None
    if not (folder / RECORD).exists() and is_driven(folder):
        was_over = False
        pid = signal_owner(folder / OWNER_LOCK, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while not was_over and is_driven(folder) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    record = ended_record(folder, settings, timeout_s=max(0.0, deadline - time.monotonic()))
    if record is None:
        raise RunFailed(
            f"run {run_id} has not ended {timeout_s:g} s after it was told to",
            where=str(folder),
            hint=f"it may still be taking its worker away; `kill -9 {pid}` ends it at once, and the next command "
            "closes the run",
        )
    return Stopped(run_id, str(record.get("status")), was_over)
