"""Looking into folders that other processes change meanwhile: what has gone is left out, nothing is followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mlbundle.files import storage_failed


def children(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Return what a folder holds, by name, with each file's own status; nothing when there is no such folder.

    Raises StorageFailed.
    """
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise storage_failed(error, folder) from error
    return sorted(found, key=lambda item: item[0].name)


def hidden_files(folder: Path) -> list[Path]:
    """Return the regular files of a folder whose names begin with a dot. Raises StorageFailed."""
    return [
        path
        for path, status in children(folder)
        if path.name.startswith(".") and stat.S_ISREG(status.st_mode)
    ]


def tree_size(path: Path) -> tuple[int, int]:
    """Return the number of files at or below `path` and their bytes in all. Raises StorageFailed."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return 0, 0
    except OSError as error:
        raise storage_failed(error, path) from error
    if not stat.S_ISDIR(status.st_mode):
        return 1, status.st_size
    files = size_bytes = 0
    waiting = [path]
    while waiting:
        for child, child_status in children(waiting.pop()):
            if stat.S_ISDIR(child_status.st_mode):
                waiting.append(child)
            else:
                files, size_bytes = files + 1, size_bytes + child_status.st_size
    return files, size_bytes
