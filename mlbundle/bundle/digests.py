"""Digests: the one form that is accepted, and the digest of a set of files."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from mlbundle.errors import BundleCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = "sha256:"
HEX_LENGTH = 64
UNKNOWN_HEX = "0" * HEX_LENGTH
"""Stands where a digest will be written once the bytes are known: same length, so nothing moves."""

_HEX = re.compile(r"[a-f0-9]{64}", re.ASCII)


def is_hex(text: object) -> bool:
    """Return whether `text` is the lower-case hex form of a sha256."""
    return isinstance(text, str) and _HEX.fullmatch(text) is not None


def is_digest(text: object) -> bool:
    """Return whether `text` is a digest: `sha256:` and 64 lower-case hex digits."""
    return isinstance(text, str) and text.startswith(PREFIX) and is_hex(text[len(PREFIX) :])


def sha256_hex(data: bytes) -> str:
    """Return the sha256 of `data` in hex."""
    return hashlib.sha256(data).hexdigest()


def digest_of(data: bytes) -> str:
    """Return the digest of `data`: `sha256:` and 64 hex digits."""
    return PREFIX + sha256_hex(data)


def parse_digest(text: object, *, where: str) -> str:
    """Return the hex part of a digest; raises BundleCorrupt unless it is `sha256:` and 64 lower-case hex digits."""
    if is_digest(text):
        return str(text)[len(PREFIX) :]
    raise BundleCorrupt(
        f"{ascii(text)[:100]} is no digest", where=where, hint="only sha256: and 64 lower-case hex digits"
    )


def set_digest(files: Iterable[tuple[str, str]]) -> str:
    """Return the digest of a set of files, given as pairs (hex, path).

    It is the sha256 of the lines `<hex>  <path>` in byte order, each ended by a newline: what
    `sha256sum <files> | LC_ALL=C sort | sha256sum` prints for plain names.
    """
    lines = sorted(f"{hexadecimal}  {path}\n".encode() for hexadecimal, path in files)
    whole = hashlib.sha256()
    for line in lines:
        whole.update(line)
    return PREFIX + whole.hexdigest()
