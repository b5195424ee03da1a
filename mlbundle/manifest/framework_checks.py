"""What a JSON Schema can't say about a framework manifest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mlbundle.errors import UsageError
from mlbundle.manifest.common_checks import check_name, check_path, check_version
from mlbundle.manifest.locks import installed_lock, installed_locks
from mlbundle.manifest.problems import listing, shown
from mlbundle.manifest.values import is_elided, path_fault
from mlbundle.manifest.versions import VersionConstraint
from mlbundle.platforms import normalise_architecture

if TYPE_CHECKING:
    from mlbundle.manifest.view import Path, View

DIGEST = re.compile(r"sha256:[a-f0-9]{64}\Z")


def check_framework(view: View) -> None:
    """Add to the view every problem of a framework manifest that the schema does not see."""
    check_name(view, ("name",))
    check_version(view, ("version",), comparable=True)
    for table in ("containers", "python"):
        _check_aliases(view, table)
    for architecture in view.keys("containers"):
        for accelerator in view.keys("containers", architecture):
            _check_image(view, ("containers", architecture, accelerator))
    for architecture in view.keys("python"):
        for accelerator in view.keys("python", architecture):
            _check_lock(view, ("python", architecture, accelerator))


def _check_aliases(view: View, table: str) -> None:
    first: dict[str, str] = {}
    for name in view.keys(table):
        same = first.setdefault(normalise_architecture(name), name)
        if same != name:
            view.error_at_key((table, name), f"{shown(name)} and {shown(same)} are the same architecture")


def _check_lock(view: View, path: Path) -> None:
    check_path(view, path)
    text = view.text(*path)
    if text and path_fault(text) is None and installed_lock(text) is None:
        view.warning(
            path,
            f"the lock {shown(text)} is none of those that come with mlbundle",
            listing(installed_locks()),
            "without one, a run as a process needs --python PATH",
        )


def _check_image(view: View, path: Path) -> None:
    reference = view.text(*path) or view.text(*path, "image")
    if reference is None:
        return
    if isinstance(view.get(*path), dict):
        check_path(view, (*path, "build"))
        _check_driver(view, (*path, "driver"))
    _, _, inner = reference.partition("@")
    place = path if view.text(*path) else (*path, "image")
    stated = view.text(*path, "digest")
    digests = [_check_digest(view, place, inner)] if inner else []
    digests += [_check_digest(view, (*path, "digest"), stated)] if stated is not None else []
    if len(digests) == 2 and None not in digests and digests[0] != digests[1]:
        view.error((*path, "digest"), "the image reference names another digest")
    if not digests:
        view.warning(place, f"the image {shown(reference)} is unpinned", hint="state its digest")


def _check_driver(view: View, path: Path) -> None:
    text = view.text(*path)
    if text is None:
        return
    try:
        VersionConstraint.parse(text)
    except UsageError as error:
        view.error(path, error.message, "a range of versions of the driver", error.hint)


def _check_digest(view: View, path: Path, digest: str) -> str | None:
    """Report what is no digest, and one that is shortened; returns a good one."""
    if DIGEST.match(digest):
        return digest
    if is_elided(digest):
        view.warning(path, f"the digest {shown(digest)} is shortened; the image counts as unpinned")
    else:
        view.error(path, f"{shown(digest)} is no digest", "sha256:<64 hex digits, lower case>")
    return None
