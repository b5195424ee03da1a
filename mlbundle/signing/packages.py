"""What is installed, read from the files that say so: pip's hash locks, dpkg's status file, METADATA of wheels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from mlbundle.errors import BundleCorrupt, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_TEXT = 64 << 20
"""Characters of a status file or a lock that are read at most."""

_PINNED = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:\[[A-Za-z0-9._, -]*\])?\s*==\s*"
    r"(?P<version>[A-Za-z0-9.!+_-]+)\s*(?P<marker>;[^\n]*)?",
    re.ASCII,
)
_PYTHON_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_PYTHON_VERSION = re.compile(r"[A-Za-z0-9.!+_-]+", re.ASCII)
_HASH = re.compile(r"--hash=(?P<algorithm>[a-z0-9]+):(?P<hex>[A-Fa-f0-9]+)", re.ASCII)
_COMMENT = re.compile(r"(^|\s)#.*")
_DEBIAN_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+", re.ASCII)
_DEBIAN_VERSION = re.compile(r"[A-Za-z0-9.+:~-]+", re.ASCII)
_LONGEST_LICENCE = 200


@dataclass(frozen=True, slots=True)
class Package:
    """One package; `purl` is its package URL, `sha256` the digests in hex that its archive may have.

    `conditional` is true when only some machines install it (an environment marker).
    """

    name: str
    version: str
    purl: str
    sha256: tuple[str, ...] = ()
    licence: str | None = None
    conditional: bool = False


def parse_lock(text: str, *, where: str) -> list[Package]:
    """Return the packages of a pip requirements file with hashes, in order.

    Raises UsageError, with file and line, for a requirement without an exact version or a sha256.
    """
    _check_size(text, where)
    return [_locked(line, f"{where}:{number}") for number, line in _logical_lines(text)]


def parse_dpkg_status(text: str, *, distribution: str = "debian", where: str) -> list[Package]:
    """Return the installed packages of `/var/lib/dpkg/status`, in order (deb-control(5)).

    Raises BundleCorrupt for an installed package without a name and a version.
    """
    _check_size(text, where)
    found = []
    for stanza in re.split(r"\n[ \t]*\n", text):
        fields = _fields(stanza)
        if fields.get("status", "").split()[-1:] == ["installed"]:
            found.append(_debian(fields, distribution, where))
    return found


def parse_metadata(texts: Iterable[str], *, where: str) -> list[Package]:
    """Return the Python distributions of `*.dist-info/METADATA` files, in order (core metadata 2.4).

    Raises BundleCorrupt for one without a name and a version.
    """
    found = []
    for text in texts:
        _check_size(text, where)
        head = text.replace("\r\n", "\n").split("\n\n", 1)[0]
        found.append(_distribution(_fields(head), where))
    return found


def _check_size(text: str, where: str) -> None:
    if len(text) > MAX_TEXT:
        raise BundleCorrupt(f"a list of packages of {len(text)} characters", where=where)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, line) with continued lines joined; no comments, options and empty lines."""
    joined: list[str] = []
    first = 1
    for number, raw in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", raw).strip()
        if not joined:
            first = number
        joined.append(line.removesuffix("\\").strip())
        if line.endswith("\\"):
            continue
        whole = " ".join(part for part in joined if part)
        joined = []
        if whole and not whole.startswith("-"):
            yield first, whole
    if joined and (whole := " ".join(part for part in joined if part)):
        yield first, whole


def _locked(line: str, where: str) -> Package:
    requirement = line.split(" --", 1)[0].strip()
    pinned = _PINNED.fullmatch(requirement)
    if pinned is None:
        raise UsageError(
            f"{ascii(requirement)[:60]} names no exact version", where=where, hint="write name==version"
        )
    hashes = {m["hex"].lower() for m in _HASH.finditer(line) if m["algorithm"] == "sha256"}
    digests = tuple(sorted(digest for digest in hashes if len(digest) == 64))
    if not digests:
        raise UsageError(
            f"{pinned['name']} has no sha256", where=where, hint="lock with hashes: --hash=sha256:…"
        )
    purl = _pypi_purl(pinned["name"], pinned["version"])
    return Package(pinned["name"], pinned["version"], purl, digests, conditional=pinned["marker"] is not None)


def _fields(stanza: str) -> dict[str, str]:
    """Return the first line of each field, by its name in lower case; the first of two counts."""
    found: dict[str, str] = {}
    for line in stanza.splitlines():
        name, colon, value = line.partition(":")
        if colon and name and not name[0].isspace():
            found.setdefault(name.lower(), value.strip())
    return found


def _debian(fields: dict[str, str], distribution: str, where: str) -> Package:
    name, version = fields.get("package", ""), fields.get("version", "")
    if not _DEBIAN_NAME.fullmatch(name) or not _DEBIAN_VERSION.fullmatch(version):
        raise BundleCorrupt(
            f"an installed package {ascii(name)[:60]} with no proper name and version", where=where
        )
    purl = f"pkg:deb/{quote(distribution, safe='')}/{quote(name, safe='.-')}@{_quoted(version)}"
    architecture = fields.get("architecture", "")
    if architecture:
        purl += f"?arch={quote(architecture, safe='.-')}"
    return Package(name, version, purl)


def _distribution(fields: dict[str, str], where: str) -> Package:
    name, version = fields.get("name", ""), fields.get("version", "")
    if not _PYTHON_NAME.fullmatch(name) or not _PYTHON_VERSION.fullmatch(version):
        raise BundleCorrupt(f"a distribution {ascii(name)[:60]} with no proper name and version", where=where)
    licence = fields.get("license-expression") or fields.get("license") or ""
    usable = 0 < len(licence) <= _LONGEST_LICENCE and licence.isprintable() and licence != "UNKNOWN"
    return Package(name, version, _pypi_purl(name, version), licence=licence if usable else None)


def _pypi_purl(name: str, version: str) -> str:
    return f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{_quoted(version)}"


def _quoted(version: str) -> str:
    return quote(version, safe=".-_~:")
