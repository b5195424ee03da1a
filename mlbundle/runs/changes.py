"""Whether runs began, ended or were removed, whoever did it: cheap enough to be asked every few seconds."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.runs.folder import is_driven, is_settled, unfinished_folders

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.config import Settings


@dataclass(frozen=True)
class RunsSeen:
    """What was seen of all runs: the ids of those that go on, newest first, and when the folder of runs was changed.

    Two that are equal, with no other look between them, mean that nothing came, ended or went. `settled` is part of it:
    what happens in the tick of the file system's clock in which the folder was looked at is noticed when it is over.
    """

    going: tuple[str, ...] = ()
    changed_ns: int = 0
    settled: bool = True


def look_at_runs(settings: Settings) -> RunsSeen:
    """Look at the folder of runs and at those without a record; records and the index are not read."""
    changed_ns = 0
    with suppress(OSError):
        changed_ns = os.stat(settings.runs_dir).st_mtime_ns  # noqa: PTH116
    going = tuple(folder.name for folder in _unfinished(settings) if is_driven(folder))
    return RunsSeen(going, changed_ns, settled=changed_ns == 0 or is_settled(changed_ns))


def _unfinished(settings: Settings) -> list[Path]:
    with suppress(OSError):
        return unfinished_folders(settings)
    return []
