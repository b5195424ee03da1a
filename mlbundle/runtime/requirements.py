"""Hash-locked requirements: where their wheels lie, and what pip says when it can't have them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mlbundle.errors import DigestMismatch
from mlbundle.runtime.recipe import index_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_HASHES_DIFFER = "DO NOT MATCH THE HASHES"
_CULPRIT = re.compile(r"\s*(\S+) from (\S+?)(?:#\S*)?(?: \(from .*)?:?$")
_HASH = re.compile(r"\s*(?:Expected|or|Got)\s.*[0-9a-f]{64}$")
_NOT_FOUND = re.compile(r"No matching distribution found for (\S+)")


def index_hint(lock: Path) -> str | None:
    """Return what helps pip to find the wheels of a recipe's lock that PyPI has not; None where PyPI has them all.

    The index is stated beside the lock and never in it: each user's pip knows its own.
    """
    index = index_of(lock)
    return (
        f"some of these wheels are on an index of their own: PIP_EXTRA_INDEX_URL={index}" if index else None
    )


def hash_mismatch(said: Collection[str], lock: str) -> DigestMismatch | None:
    """Return the error of a wheel with other bytes than the lock states, of the lines that pip wrote; None without.

    `lock` is how the user knows the lock.
    """
    start = next((number for number, line in enumerate(said) if _HASHES_DIFFER in line), None)
    if start is None:
        return None
    tail = list(said)[start + 1 :]
    names = [found[1] for line in tail if (found := _CULPRIT.match(line)) is not None]
    named = ", ".join(names) or "a wheel"
    return DigestMismatch(
        f"{named} is not the file that the lock names: its hash differs",
        where=lock,
        context=[line.strip() for line in tail if _CULPRIT.match(line) or _HASH.match(line)],
        hint="the index or folder of wheels holds other bytes under this name; take them from where the lock was "
        "made (PyPI) and find out who changed them. Nothing of them was used",
    )


def not_found(said: Collection[str]) -> str | None:
    """Return the requirement that pip found nowhere, of the lines that it wrote."""
    return next((found[1] for line in said if (found := _NOT_FOUND.search(line)) is not None), None)
