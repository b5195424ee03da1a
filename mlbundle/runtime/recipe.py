"""The recipes of framework images that we ship: one Dockerfile, a folder of each framework, a lock of each image.

containers/Dockerfile
containers/<framework>/recipe.toml                                title, licences, indexes
containers/<framework>/check.py                                   what the image must import
containers/<framework>/<accelerator>/requirements-<architecture>.lock
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import UsageError
from mlbundle.resources import resource_folder

if TYPE_CHECKING:
    from pathlib import Path

_BASE_IMAGE = re.compile(r"^ARG BASE_IMAGE=(\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Recipe:
    """What an image is made from; `licence` is an SPDX expression, `index` where wheels lie that PyPI has not."""

    dockerfile: Path
    check: Path
    lock: Path
    title: str
    licence: str
    index: str | None

    @property
    def name(self) -> str:
        """Return the name of the framework's folder."""
        return self.check.parent.name

    def default_base(self) -> str:
        """Return the base image that the Dockerfile names."""
        found = _BASE_IMAGE.search(self.dockerfile.read_text("utf-8"))
        if found is None:
            raise UsageError(
                "the recipe has no default base image", where=str(self.dockerfile), hint="give --base-image"
            )
        return found[1]


def find_recipe(folder: str, architecture: str) -> Recipe:
    """Return the recipe that a framework manifest names: `containers/<framework>/<accelerator>`.

    Raises UsageError for one that we do not ship, or not for this architecture.
    """
    root = resource_folder("containers").resolve()
    place = (root.parent / folder).resolve()
    files = (root / "Dockerfile", place.parent / "check.py", place / f"requirements-{architecture}.lock")
    if place.parent.parent != root or not all(path.is_file() for path in files):
        raise UsageError(
            f"the framework manifest names a recipe that is not installed: {folder!r}",
            hint="recipes lie in containers/<framework>/<accelerator> and have a lock for each architecture",
        )
    described = _described(place.parent)
    dockerfile, check, lock = files
    return Recipe(
        dockerfile=dockerfile,
        check=check,
        lock=lock,
        title=str(described["title"]),
        licence=str(described["license"][place.name]),
        index=index_of(lock),
    )


def index_of(lock: Path) -> str | None:
    """Return the index that has the wheels of a recipe's lock which PyPI has not; None for any other lock."""
    folder = lock.parent.parent
    if not (folder / "recipe.toml").is_file():
        return None
    index = _described(folder).get("index", {}).get(lock.parent.name)
    return None if index is None else str(index)


def _described(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "recipe.toml").read_text("utf-8"))
