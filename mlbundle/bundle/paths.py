"""The grammar of paths inside a bundle, and the keys by which two paths collide.

A path is relative, in Unicode NFC, with forward slashes. What is refused here is what some file system or
some extractor would read as another file than the one that was meant.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from mlbundle.errors import UnsafePath

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PART_BYTES = 255
MAX_PATH_BYTES = 1024
MAX_DEPTH = 32

_DEVICE = re.compile(r"(?i)(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])[ ]*(\.|$)")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SHOWN_CHARACTERS = 120


def check_path(path: str, *, where: str | None = None) -> str:
    """Return `path` unchanged when it obeys the grammar.

    Raises UnsafePath, with `where` and the rule that is broken, otherwise.
    """
    problem = _problem(path)
    if problem:
        raise UnsafePath(
            f"{_shown(path)} is not allowed as a path: {problem}",
            where=where,
            hint="paths in a bundle are relative, in Unicode NFC, with forward slashes and plain names",
        )
    return path


def collision_key(path: str) -> str:
    """Return the key under which two paths are the same file on some file system.

    Each part is folded by NFKC and case (Unicode caseless matching, D146), joined by a NUL that no part holds.
    """
    return "\0".join(_fold(part) for part in path.split("/"))


def check_collisions(paths: Iterable[str], *, where: str | None = None) -> None:
    """Raise UnsafePath when two paths are the same file somewhere, or one is a folder of the other."""
    seen: dict[str, str] = {}
    for path in paths:
        key = collision_key(path)
        if key in seen:
            what = "is listed twice" if seen[key] == path else f"collides with {_shown(seen[key])}"
            raise UnsafePath(
                f"{_shown(path)} {what}",
                where=where,
                hint="names that differ only in case or in Unicode form are one file on some systems",
            )
        seen[key] = path
    for key, path in seen.items():
        parts = key.split("\0")
        for depth in range(1, len(parts)):
            folder = "\0".join(parts[:depth])
            if folder in seen:
                raise UnsafePath(
                    f"{_shown(seen[folder])} is a file and the folder of {_shown(path)}", where=where
                )


def _fold(part: str) -> str:
    if part.isascii():
        return part.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", part).casefold())


def _shown(path: str) -> str:
    return ascii(path if len(path) <= _SHOWN_CHARACTERS else path[:_SHOWN_CHARACTERS] + "…")


def _problem(path: str) -> str | None:
    try:
        size_bytes = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if not path:
        return "it is empty"
    if size_bytes > MAX_PATH_BYTES:
        return f"it is longer than {MAX_PATH_BYTES} bytes"
    if not unicodedata.is_normalized("NFC", path):
        return "it is not in Unicode normal form C"
    if _CONTROL.search(path):
        return "it holds a control character"
    for character, name in (("\\", "a backslash"), (":", "a colon")):
        if character in path:
            return f"it holds {name}"
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        return f"it is deeper than {MAX_DEPTH} folders"
    return next(filter(None, map(_part_problem, parts)), None)


def _part_problem(part: str) -> str | None:
    if not part:
        return "it is absolute or has an empty part"
    if part in {".", ".."}:
        return f"it has the part {part!r}"
    if len(part.encode("utf-8")) > MAX_PART_BYTES:
        return f"a part is longer than {MAX_PART_BYTES} bytes"
    if _DEVICE.match(part):
        return f"{part!r} is the name of a device on Windows"
    folded = _fold(part)
    if folded in {"", ".", ".."} or "/" in folded or "\\" in folded:
        return "a part turns into a separator or a parent folder under Unicode normalisation"
    return None
