"""Runs whose owner died: their folders become partial records, their containers are removed."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mlbundle.errors import EngineUnavailable
from mlbundle.files import write_atomically
from mlbundle.runs.execute import DATABASE
from mlbundle.runs.folder import EVENTS, JOB, RECORD, is_owned
from mlbundle.runs.record import partial_record
from mlbundle.store.database import RunDatabase

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.config import Settings


def recover_left_runs(settings: Settings) -> list[str]:
    """Close every run that nobody drives any more; returns their ids. Cheap when there is none."""
    if not settings.runs_dir.is_dir():
        return []
    left = [
        folder
        for folder in sorted(settings.runs_dir.iterdir())
        if folder.is_dir()
        and not folder.name.startswith(".")
        and not (folder / RECORD).exists()
        and not is_owned(folder)
    ]
    from mlbundle.runtime.process import remove_left_scratch

    for folder in left:
        _close(folder, settings)
        remove_left_scratch(folder.name)
    if left:
        _remove_containers([folder.name for folder in left])
    return [folder.name for folder in left]


def _close(folder: Path, settings: Settings) -> None:
    try:
        record = partial_record(folder.name, _job(folder), _events(folder))
    except ValueError:
        return  # not a folder of ours
    write_atomically(folder / RECORD, json.dumps(record, indent=2).encode())
    RunDatabase(settings.data_dir / DATABASE).add(record)


def _job(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        document = json.loads((folder / JOB).read_bytes())
        if isinstance(document, dict):
            return document
    return {}


def _events(folder: Path) -> list[dict[str, Any]]:
    found = []
    with suppress(OSError):
        for line in (folder / EVENTS).read_text("utf-8", "replace").splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
    return found


def _remove_containers(run_ids: list[str]) -> None:
    from mlbundle.runtime.docker import remove_left_containers
    from mlbundle.runtime.images import engine_client

    try:
        client = engine_client()
    except EngineUnavailable:
        return
    for run_id in run_ids:
        remove_left_containers(client, run_id)
