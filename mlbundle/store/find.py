"""What a reference means among the entries of a library.

    name                             the highest version of the name
    name:version                     that version
    name[:version]@sha256:<hex>      the bundle whose manifest digest begins so (at least 7 digits)
    sha256:<hex>   @<hex>            the same, whatever its name

Names may hold anything. A text with a digest at its end is a digest reference and nothing else, and a name with a
colon or an at sign in it does not stand for its highest version: so no bundle can be found under a name that was
chosen to look like the version, or the digest, of another.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.digests import HEX_LENGTH, PREFIX
from mlbundle.errors import ReferenceNotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlbundle.store.entries import LibraryEntry

LEAST_DIGITS = 7
_BY_DIGEST = re.compile(r"(?:(?P<label>.+)@)?sha256:(?P<hex>[0-9A-Fa-f]+)", re.ASCII | re.DOTALL)
_BY_DIGITS = re.compile(r"@(?:sha256:)?(?P<hex>[0-9A-Fa-f]+)", re.ASCII)
_NOT_IN_NAMES = frozenset(":@")
_SHOWN = 10


def find_entry(entries: Sequence[LibraryEntry], text: str) -> LibraryEntry:
    """Return the one entry that `text` refers to.

    Raises ReferenceNotFound with what was probably meant, UsageError with all that match when there are several.
    """
    match = _BY_DIGITS.fullmatch(text) or _BY_DIGEST.fullmatch(text)
    if match is not None:
        found = _by_digest(entries, match.groupdict().get("label"), match["hex"])
    else:
        found = _by_name(entries, text)
    if not found:
        raise _not_found(entries, text)
    if len(found) > 1:
        listed = [entry.reference for entry in sorted(found, key=sort_key)]
        raise UsageError(
            f"{text!r} can mean {len(found)} bundles",
            context=listed[:_SHOWN]
            + ([f"… and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []),
            hint="name one of them as it stands here, with more digits of its digest if need be",
        )
    return found[0]


def named_entries(entries: Sequence[LibraryEntry], text: str) -> list[LibraryEntry]:
    """Return, in order, all entries that a name may be about: those of that label, else of that name."""
    wanted = _plain(text)
    found = [entry for entry in entries if _plain(entry.label) == wanted]
    return sorted(found or [entry for entry in entries if _plain(entry.name) == wanted], key=sort_key)


def taken_over(before: Sequence[LibraryEntry], new: LibraryEntry) -> LibraryEntry | None:
    """Return what the bare name of a new entry meant before, if it means the new one now.

    Of several entries that it meant, one is returned; None when it meant none, or still means what it meant.
    """
    if any(entry.manifest_digest == new.manifest_digest for entry in before):
        return None
    meant = _by_name(before, new.name)
    now = _by_name([*before, new], new.name)
    return meant[0] if meant and new in now else None


def sort_key(entry: LibraryEntry) -> tuple[Any, ...]:
    """Order entries by name, then version (those that can't be compared first), then digest."""
    return entry.name, _version_key(entry.version), entry.version, entry.manifest_digest


def _by_digest(entries: Sequence[LibraryEntry], label: str | None, digits: str) -> list[LibraryEntry]:
    if not LEAST_DIGITS <= len(digits) <= HEX_LENGTH:
        raise UsageError(
            f"a digest is given by {LEAST_DIGITS} to {HEX_LENGTH} digits, not {len(digits)}",
            hint="`mlbundle list` shows the digests",
        )
    prefix = PREFIX + digits.lower()
    found = [entry for entry in entries if entry.manifest_digest.startswith(prefix)]
    if label is not None:
        wanted = _plain(label)
        found = [entry for entry in found if wanted in {_plain(entry.name), _plain(entry.label)}]
    return found


def _by_name(entries: Sequence[LibraryEntry], text: str) -> list[LibraryEntry]:
    wanted = _plain(text)
    versioned = [entry for entry in entries if _plain(entry.label) == wanted]
    if versioned or not _NOT_IN_NAMES.isdisjoint(wanted):
        return versioned
    named = [entry for entry in entries if _plain(entry.name) == wanted]
    if named:
        highest = max(_version_key(entry.version) for entry in named)
        named = [entry for entry in named if _version_key(entry.version) == highest]
    return named


def _not_found(entries: Sequence[LibraryEntry], text: str) -> ReferenceNotFound:
    names = {_plain(name).casefold(): name for entry in entries for name in (entry.label, entry.name)}
    close = difflib.get_close_matches(_plain(text).casefold(), names, n=3)
    meant = " or ".join(repr(names[name]) for name in close)
    return ReferenceNotFound(
        f"the library has no bundle {text!r}",
        hint=(f"did you mean {meant}? " if meant else "") + "`mlbundle list` shows what is there",
    )


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _version_key(version: str) -> tuple[Any, ...]:
    from packaging.version import InvalidVersion, Version

    try:
        return 1, Version(version)
    except InvalidVersion:
        return 0, version
