"""The small languages of a manifest: checksums, paths, URLs, versions, names."""

from __future__ import annotations

import re
from typing import Literal

from mlbundle.manifest.model import Checksum

_BARE_DIGEST = {32: "md5", 40: "sha1", 64: "sha256"}
_HEX = re.compile(r"[0-9a-fA-F]+\Z")
_ELIDED = re.compile(r"([0-9A-Za-z_+-]+:)?[0-9a-fA-F]*(\.{2,}|…)[0-9a-fA-F]*\Z")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_DRIVE = re.compile(r"[A-Za-z]:")
SCHEMES = ("https", "http", "file", "oci")

# https://semver.org, the suggested expression, without its groups.
_SEMANTIC = re.compile(
    r"(0|[1-9][0-9]{0,17})(\.(0|[1-9][0-9]{0,17})){2}"
    r"(-(0|[1-9][0-9]{0,17}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9][0-9]{0,17}|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?\Z"
)
_SHORT = re.compile(r"(0|[1-9][0-9]{0,17})(\.(0|[1-9][0-9]{0,17}))?\Z")
_MOST_VERSION_CHARACTERS = 128


def parse_checksum(text: str) -> Checksum | None:
    """Return the checksum a text states; None when it is none.

    `sha256:<hex>` (or `md5:`, `sha1:`), or bare hexadecimal digits whose number tells the algorithm.
    """
    algorithm, colon, digits = text.rpartition(":")
    by_length = _BARE_DIGEST.get(len(digits))
    if by_length is None or not _HEX.match(digits) or (colon and algorithm.lower() != by_length):
        return None
    return Checksum(by_length, digits.lower())


def is_elided(text: str) -> bool:
    """Return whether a checksum is shortened by dots, as papers print them."""
    return _ELIDED.match(text) is not None


def url_scheme(text: str) -> str | None:
    """Return the scheme of a URL in lower case; None for a path."""
    match = _SCHEME.match(text)
    # One letter is a drive of Windows, not a scheme.
    return None if match is None or len(match.group(1)) == 1 else match.group(1).lower()


def path_fault(text: str) -> str | None:
    """Return why a text is no path inside its folder; None when it is one."""
    if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or c in "\u2028\u2029" for c in text):
        return "it holds a control character"
    if "\\" in text:
        return "it holds a backslash"
    if text.startswith("/") or _DRIVE.match(text):
        return "it is absolute"
    if ":" in text:
        return "it holds a colon"
    parts = text.split("/")
    if ".." in parts:
        return "it leaves its folder with '..'"
    if "" in parts or "." in parts:
        return "it has an empty part or a '.'"
    return None


def version_form(text: str) -> Literal["semantic", "short", "none"]:
    """Return whether a text is a semantic version, one with fewer parts, or no version."""
    if len(text) > _MOST_VERSION_CHARACTERS:
        return "none"
    if _SEMANTIC.match(text):
        return "semantic"
    return "short" if _SHORT.match(text) else "none"


def name_fault(text: str) -> str | None:
    """Return why a text is no name; None when it is one. Its length is the schema's business."""
    if text != text.strip():
        return "it begins or ends with a space"
    if text and not text.isprintable():
        return "it holds a character that is not printable"
    return None
