"""Chooses from a framework manifest: the image or the lock for an architecture and an accelerator."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from mlbundle.errors import ImageMissing, PythonEnvironmentFailed
from mlbundle.manifest.versions import VersionConstraint
from mlbundle.platforms import check_accelerator, normalise_architecture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlbundle.manifest.framework import FrameworkManifest, ImageChoice
    from mlbundle.manifest.model import FrameworkConstraint

T = TypeVar("T")


def select_image(framework: FrameworkManifest, architecture: str, accelerator: str) -> ImageChoice:
    """Return the image for a machine; architectures may be named as the system names them (`x86_64`).

    Raises ImageMissing, which lists what exists, and UsageError for an unknown accelerator.
    """
    choice = _choose(framework.containers, architecture, accelerator)
    if choice is None:
        raise ImageMissing(
            f"{framework.name} {framework.version} has no image for {_place(architecture, accelerator)}",
            context=_listed(framework.containers),
            hint=_hint(framework.containers, "image"),
        )
    return choice


def select_lock(framework: FrameworkManifest, architecture: str, accelerator: str) -> str:
    """Return the path of the hash-locked requirements for a machine.

    Raises PythonEnvironmentFailed, which lists what exists, and UsageError for an unknown accelerator.
    """
    lock = _choose(framework.python, architecture, accelerator)
    if lock is None:
        raise PythonEnvironmentFailed(
            f"{framework.name} {framework.version} has no locked environment for {_place(architecture, accelerator)}",
            context=_listed(framework.python),
            hint=_hint(framework.python, "locked environment"),
        )
    return lock


def framework_matches(constraint: FrameworkConstraint, framework: FrameworkManifest) -> bool:
    """Return whether a framework is the one a model needs, in a version that will do; case does not matter."""
    if constraint.name.casefold() != framework.name.casefold():
        return False
    return VersionConstraint.parse(constraint.version).allows(framework.version)


def _choose(table: Mapping[str, Mapping[str, T]], architecture: str, accelerator: str) -> T | None:
    return table.get(normalise_architecture(architecture), {}).get(check_accelerator(accelerator))


def _place(architecture: str, accelerator: str) -> str:
    return f"{normalise_architecture(architecture)}/{accelerator}"


def _listed(table: Mapping[str, Mapping[str, object]]) -> list[str]:
    return [
        f"{architecture}/{accelerator}"
        for architecture, row in sorted(table.items())
        for accelerator in sorted(row)
    ]


def _hint(table: Mapping[str, Mapping[str, object]], what: str) -> str:
    existing = _listed(table)
    return (
        f"there is one for: {', '.join(existing)}" if existing else f"the framework manifest names no {what}"
    )
