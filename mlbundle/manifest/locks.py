"""The hash-locked requirements that come with mlbundle: what a framework manifest may name under `python`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle.resources import resource_folder

if TYPE_CHECKING:
    from pathlib import Path


def installed_lock(name: str) -> Path | None:
    """Return the file of a lock that we ship, None for any other: a manifest can't name one elsewhere."""
    root = resource_folder("containers").resolve()
    try:
        path = (root.parent / name).resolve()
        return path if path.is_relative_to(root) and path.is_file() else None
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return None


def installed_locks() -> list[str]:
    """Return the names of the locks that we ship, as a framework manifest writes them."""
    root = resource_folder("containers").resolve()
    return sorted(path.relative_to(root.parent).as_posix() for path in root.rglob("*.lock"))
