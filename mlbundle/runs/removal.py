"""Taking runs away: the folder first, under another name, then the row of the index, then the bytes.

A kill at any moment leaves a run that is whole, or one that the next look at the runs finishes removing.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from mlbundle.errors import UsageError
from mlbundle.files import storage_failed, sync_folder
from mlbundle.runs.folder import owned

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.store.database import RunDatabase

# Not the name of a folder that is being made, which is `.<run id>`.
_REMOVED = re.compile(r"\.(\d{8}T\d{6}Z-[0-9a-f]{6})\.removed")


def remove_run(runs_dir: Path, run_id: str, database: RunDatabase) -> None:
    """Remove the folder of a run and its row. Raises UsageError when the run goes on, StorageFailed."""
    folder = runs_dir / run_id
    if folder.is_dir():
        with owned(folder) as ours:
            if not ours:
                raise UsageError(
                    f"run {run_id} goes on, or its folder can't be written",
                    where=str(folder),
                    hint=f"wait for its end, or stop it: `mlbundle runs stop {run_id}`",
                )
            try:
                folder.rename(folder.with_name(f".{run_id}.removed"))
                sync_folder(runs_dir)
            except OSError as error:
                raise storage_failed(error, folder) from error
    database.remove(run_id)
    finish_removals(runs_dir, database)


def finish_removals(runs_dir: Path, database: RunDatabase) -> None:
    """Do what is left to do for the runs whose removal has begun."""
    with suppress(FileNotFoundError, NotADirectoryError):
        with os.scandir(runs_dir) as entries:
            found = [match for entry in entries if (match := _REMOVED.fullmatch(entry.name)) is not None]
        for match in found:
            path = runs_dir / match[0]
            database.remove(match[1])
            # Another process may be at it, too; what can't be removed now is tried again the next time.
            with suppress(OSError):
                path.unlink() if path.is_symlink() else shutil.rmtree(path)
