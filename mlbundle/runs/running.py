"""The runs that go on, in whatever process or terminal they were started: read from their folders, without waiting."""

from __future__ import annotations

import json
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from mlbundle.manifest.problems import printable
from mlbundle.runs.folder import JOB, RECORD, first_event, is_driven, unfinished_folders
from mlbundle.runs.following import EventTail
from mlbundle.runs.queue import MACHINE_BUSY
from mlbundle.store.database import ROW_COLUMNS
from mlbundle.wire.events import Event, Phase, Progress, Warned, Window

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mlbundle.config import Settings

# Windows and progress name their phase twice a second, so that the end of the file says it. What is further back than
# the second of these is not looked for.
_LAST_BYTES = (256 << 10, 8 << 20)


@dataclass(frozen=True)
class RunningRun:
    """A run that goes on.

    `progress` is the share of the phase that is done, 0 to 1, None while nobody can tell; `waiting` for another
    measurement on this machine to end, and then in no phase, since `waits_since_ns` (CLOCK_MONOTONIC, 0 for one that
    does not wait); `started_at` UTC, ISO 8601. What its folder does not say yet is empty.
    """

    run_id: str
    model: str
    model_version: str
    framework: str
    scenario: str
    trace_level: str
    phase: str
    progress: float | None
    started_at: str
    waiting: bool
    waits_since_ns: int = 0

    @property
    def status(self) -> str:
        """`waiting` or `running`."""
        return "waiting" if self.waiting else "running"

    def to_row(self) -> dict[str, Any]:
        """Return the run with the members that `catalog.list_runs` gives a finished one, and two more."""
        return {
            **dict.fromkeys(ROW_COLUMNS),
            "valid": False,
            "quick": False,
            "run_id": self.run_id,
            "started_at": self.started_at,
            "status": self.status,
            "model": self.model,
            "model_version": self.model_version,
            "framework": self.framework,
            "framework_version": "",
            "scenario": self.scenario,
            "trace_level": self.trace_level,
            "phase": self.phase,
            "progress": self.progress,
        }


def running_runs(settings: Settings) -> list[RunningRun]:
    """Return the runs that go on, newest first."""
    found = [running_run(folder) for folder in unfinished_folders(settings)]
    return [run for run in found if run is not None]


def running_run(folder: Path) -> RunningRun | None:
    """Return what is known of a run that goes on, None when it does not."""
    if (folder / RECORD).exists() or not is_driven(folder):
        return None
    job = _job(folder)
    model, _, version = str(first_event(folder).get("message", "")).rpartition(":")
    state = _state(folder)
    started_at = datetime.strptime(folder.name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return RunningRun(
        run_id=folder.name,
        model=model,
        model_version=version,
        framework=str(_member(job, "model").get("predictor", "")),
        scenario=str(_member(job, "scenario").get("name", "")),
        trace_level=str(job.get("trace_level", "")),
        phase="" if state.waiting else state.phase,
        progress=state.progress,
        started_at=f"{started_at:%Y-%m-%dT%H:%M:%S}.000Z",
        waiting=state.waiting,
        waits_since_ns=state.waits_since_ns,
    )


def waiting_order(runs: Iterable[RunningRun]) -> list[str]:
    """Return the ids of the runs that wait, the next to begin first. Runs of other homes are not among them."""
    return [run.run_id for run in sorted(runs, key=lambda run: run.waits_since_ns) if run.waiting]


def running_rows(
    settings: Settings, *, model: str | None = None, framework: str | None = None
) -> list[dict[str, Any]]:
    """Return the rows of the runs that go on, newest first; chosen as by `catalog.list_runs`."""
    return [
        run.to_row()
        for run in running_runs(settings)
        if (not model or fnmatchcase(run.model, model))
        and (not framework or run.framework.lower() == framework.lower())
    ]


def runs_go_on(settings: Settings, *, most: int = 3) -> list[str]:
    """Return what is said to somebody who leaves while runs go on: a line for each, or how many there are."""
    runs = running_runs(settings)
    if len(runs) > most:
        return [f"{len(runs)} runs go on: `mlbundle runs list`"]
    return [
        f"run {run.run_id} goes on ({printable(run.model)}): `mlbundle runs attach {run.run_id}`"
        for run in runs
    ]


def latest_running(settings: Settings) -> str | None:
    """Return the id of the run that was started last among those that go on, None when there is none."""
    return next((run.run_id for run in running_runs(settings)), None)


@dataclass
class _State:
    phase: str = ""
    progress: float | None = None
    waiting: bool = False
    waits_since_ns: int = 0

    def take(self, event: Event) -> None:
        if isinstance(event, Warned):
            if event.reference == MACHINE_BUSY:
                self.waiting, self.waits_since_ns = True, event.t_ns
        elif isinstance(event, Phase):
            self.waiting = False
            if event.state == "begun":
                self.phase, self.progress = event.name, None
        elif isinstance(event, Progress):
            self.phase = event.phase
            self.progress = min(1.0, max(0.0, event.done / event.total)) if event.total else None
        elif isinstance(event, Window):
            self.phase = event.phase


def _state(folder: Path) -> _State:
    state = _State()
    for last_bytes in _LAST_BYTES:
        with closing(EventTail(folder, last_bytes=last_bytes)) as tail:
            state = _State()
            for event in tail.read_all():
                state.take(event)
        if state.phase:
            break
    return state


def _job(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        document = json.loads((folder / JOB).read_bytes())
        if isinstance(document, dict):
            return document
    return {}


def _member(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}
