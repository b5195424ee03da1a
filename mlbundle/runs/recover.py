"""Runs whose owner died: their folders become partial records, their containers are removed."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mlbundle.errors import StorageFailed
from mlbundle.files import write_atomically
from mlbundle.runs.folder import JOB, OWNER_LOCK, RECORD, first_event, owned, read_record, run_folders
from mlbundle.runs.leftovers import note_left_container, remove_noted_containers
from mlbundle.runs.owner import owner_lives
from mlbundle.runs.partial_trace import attributes_of_folder, write_partial_trace
from mlbundle.runs.record import partial_record
from mlbundle.store.database import DATABASE, RunDatabase
from mlbundle.wire.job import ASSETS_IN_CONTAINER

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.config import Settings

_POLL_S = 0.1


def recover_left_runs(settings: Settings) -> list[str]:
    """Close every run that nobody drives any more; returns their ids. Cheap when there is none."""
    folders = run_folders(settings)
    closed = [
        folder.name
        for folder in folders
        if not (folder / RECORD).exists() and close_left_run(folder, settings)
    ]
    _remove_left_scratch(folders)
    remove_noted_containers(settings)
    return closed


def close_left_run(folder: Path, settings: Settings) -> bool:
    """Write a partial record, unless somebody drives the run or it was finished meanwhile; says whether it did."""
    with owned(folder) as ours:
        if not ours or (folder / RECORD).exists():
            return False
        job = _job(folder)
        record = partial_record(folder.name, job, first_event(folder), folder)
        if job.get("trace_level", "none") != "none":
            record["files"] = write_partial_trace(folder, attributes_of_folder(folder.name, job))
        in_container = (job.get("paths") or {}).get("assets") == ASSETS_IN_CONTAINER
        if in_container and not owner_lives(folder / OWNER_LOCK):
            note_left_container(settings, folder.name)
        write_atomically(folder / RECORD, json.dumps(record, indent=2).encode())
    with suppress(StorageFailed):
        RunDatabase(settings.data_dir / DATABASE).add(record)
    return True


def ended_record(folder: Path, settings: Settings, *, timeout_s: float = 10.0) -> dict[str, Any] | None:
    """Return the record of a run that has ended: a partial one, written now, when its owner died without one.

    Waits up to `timeout_s` for somebody else who is about to write it; None when it is not there then, as the run goes
    on or was removed. Raises StorageFailed.
    """
    deadline = time.monotonic() + timeout_s
    while (record := read_record(folder)) is None:
        if not folder.is_dir():
            return None
        if not close_left_run(folder, settings):
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)
    return record


def _remove_left_scratch(folders: list[Path]) -> None:
    """Remove scratch folders of runs that are over: a second signal may have cut their clean-up short."""
    from mlbundle.runtime.process import left_scratch

    left = left_scratch()
    for folder in folders:
        if folder.name in left and (folder / RECORD).exists():
            with owned(folder) as ours:
                if ours and not owner_lives(folder / OWNER_LOCK):
                    shutil.rmtree(left[folder.name], ignore_errors=True)


def _job(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        document = json.loads((folder / JOB).read_bytes())
        if isinstance(document, dict):
            return document
    return {}
