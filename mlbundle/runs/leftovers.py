"""Containers that may be left of runs whose engine went away: noted here until an engine says that they are gone.

`<data>/left-containers/<run id>` holds the address of the engine (DOCKER_HOST), nothing for that of this machine.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mlbundle.errors import EngineUnavailable, StorageFailed
from mlbundle.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.config import Settings

_FOLDER = "left-containers"
_LONGEST_ADDRESS = 4096
_GIVE_UP_S = 30 * 86_400.0


def note_left_container(settings: Settings, run_id: str) -> None:
    """Note that the engine may still have the container of a run."""
    with suppress(StorageFailed):  # a full disk: the container ends by itself all the same
        write_atomically(settings.data_dir / _FOLDER / run_id, _engine().encode())


def remove_noted_containers(settings: Settings) -> None:
    """Remove what is noted, as far as its engine answers; cheap when nothing is."""
    notes = _notes(settings)
    if not notes:
        return
    from mlbundle.runtime.docker import remove_left_containers
    from mlbundle.runtime.engine import engine_client

    try:
        client = engine_client()
    except EngineUnavailable:
        return
    for path in notes:
        with suppress(Exception):  # an engine that goes away again is asked again
            # Whether it is gone, the next command sees.
            if remove_left_containers(client, path.name) == 0:
                path.unlink(missing_ok=True)


def _notes(settings: Settings) -> list[Path]:
    try:
        paths = sorted(path for path in (settings.data_dir / _FOLDER).iterdir() if path.name[:1] != ".")
    except OSError:
        return []
    for path in paths:
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _GIVE_UP_S:
                path.unlink()
    return [path for path in paths if _is_of_this_engine(path)]


def _is_of_this_engine(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as stream:
        return stream.read(_LONGEST_ADDRESS) == _engine().encode()
    return False


def _engine() -> str:
    return os.environ.get("DOCKER_HOST", "")
