"""Checks that both manifests need: names, versions, paths, checksums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle.errors import UsageError
from mlbundle.manifest.problems import shown
from mlbundle.manifest.values import is_elided, name_fault, parse_checksum, path_fault, version_form
from mlbundle.manifest.versions import parse_version

if TYPE_CHECKING:
    from mlbundle.manifest.view import Path, View

STRONG = "sha256"


def check_name(view: View, path: Path) -> None:
    """Report a name that can't be printed or compared."""
    name = view.text(*path)
    fault = None if name is None else name_fault(name)
    if fault:
        view.error(path, f"{shown(name)} is no name: {fault}", "1 to 128 printable characters")


def check_version(view: View, path: Path, *, comparable: bool = False) -> None:
    """Report what is no semantic version.

    `comparable` is for versions that constraints are held against: it must be one that Python packages could have,
    so `2.1.0rc1` is fine and `1.0.0-left.right`, which has no place in their order, is not.
    """
    version = view.text(*path)
    if version is None:
        return
    form = version_form(version)
    if form == "short":
        hint = f"write {version + '.0' * (2 - version.count('.'))}"
        view.warning(path, f"{shown(version)} has fewer than three parts", "a semantic version", hint)
    elif not (_has_order(version) if comparable else form == "semantic"):
        view.error(path, f"{shown(version)} is no version", "a semantic version like 1.0.0")


def check_path(view: View, path: Path, *, folder: bool = False) -> None:
    """Report a path that leaves its folder or means different things on different systems.

    With `folder`, a slash at its end is allowed: it says that a folder is meant.
    """
    text = view.text(*path)
    bare = text.removesuffix("/") if text and folder else text
    fault = path_fault(bare) if bare else None
    if fault:
        view.error(
            path,
            f"{shown(text)} is not allowed as a path: {fault}",
            "a path relative to the manifest, with forward slashes",
        )


def check_checksum(view: View, path: Path, *, required: Path | None = None) -> str | None:
    """Report a checksum that is missing (at `required`, when given), weak, shortened or none; return its algorithm."""
    text = view.text(*path)
    hint = "state sha256:<64 hex digits>; packing records one in any case"
    if text is None:
        if required is not None and view.get(*path) is None and view.get(*required) is not None:
            view.warning(required, "it has no checksum", hint=hint)
        return None
    checksum = parse_checksum(text)
    if checksum is None:
        if is_elided(text):
            view.warning(path, f"the checksum {shown(text)} is shortened and counts as missing", hint=hint)
        else:
            view.error(path, f"{shown(text)} is no checksum", "sha256:<64 hex digits>")
        return None
    if checksum.algorithm != STRONG:
        view.warning(path, f"{checksum.algorithm} is a weak checksum", "sha256:<64 hex digits>", hint)
    return checksum.algorithm


def _has_order(text: str) -> bool:
    try:
        parse_version(text)
    except UsageError:
        return False
    return True
