"""Whether anything can be kept in the data folder now."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mlbundle.errors import StorageFailed
from mlbundle.files import check_writable

if TYPE_CHECKING:
    from mlbundle.config import Settings

_LEAST_BYTES = 1 << 20


def folder_problem(settings: Settings) -> str:
    """Return in a line why nothing can be kept in the data folder, empty where it can; the folder is made."""
    folder = settings.data_dir
    try:
        check_writable(folder)
        found = os.statvfs(folder)
    except (StorageFailed, OSError) as error:
        why = error.message if isinstance(error, StorageFailed) else error.strerror
        return f"the data folder can't be written: set MLBUNDLE_HOME ({folder}: {why})"
    # Some file systems do not say how big they are.
    if found.f_blocks and found.f_bavail * found.f_frsize < _LEAST_BYTES:
        return f"the disk is full: `mlbundle gc` and `mlbundle runs rm` free some of {folder}"
    return ""
