"""Names in registries: `oci://host[:port]/repository[:tag][@sha256:…]`.

The grammar of repositories and tags is that of the OCI distribution specification v1.1 ("Pulling manifests").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mlbundle.bundle.digests import is_digest
from mlbundle.errors import UsageError

SCHEME = "oci://"
DOCKER_HUB = "docker.io"
_DOCKER_HUB_API = "registry-1.docker.io"
_DOCKER_HUB_NAMES = frozenset({DOCKER_HUB, "index.docker.io", _DOCKER_HUB_API})

_MAX_NAME = 255
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{{1,5}}))?", re.ASCII)
_SEPARATOR = re.compile(r"\.|_|__|-+")
_HINT = "write oci://HOST[:PORT]/REPOSITORY[:TAG][@sha256:DIGEST], for example oci://ghcr.io/lab/mini:1.0.0"


@dataclass(frozen=True, slots=True)
class RegistryReference:
    """A repository of a registry, with a tag, a digest, both or neither; `host` may hold a port."""

    host: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def api_host(self) -> str:
        """The host that answers the distribution API: another one than the name only for Docker Hub."""
        return _DOCKER_HUB_API if self.host == DOCKER_HUB else self.host

    @property
    def manifest(self) -> str | None:
        """What names the manifest in a request: the digest when there is one, else the tag."""
        return self.digest or self.tag

    def with_(self, *, tag: str | None = None, digest: str | None = None) -> RegistryReference:
        """Return the same repository with exactly this tag and digest; raises UsageError for impossible ones."""
        _check_ends(tag, digest, str(self))
        return replace(self, tag=tag, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{SCHEME}{self.host}/{self.repository}{tag}{digest}"


def parse(text: str) -> RegistryReference:
    """Return the reference that `text` writes, with or without the scheme.

    Raises UsageError for everything that the grammar does not allow.
    """
    rest = text.removeprefix(SCHEME)
    first, slash, path = rest.partition("/")
    if not slash:
        raise UsageError("a registry reference needs a host and a repository", where=text, hint=_HINT)
    host = parse_host(first, where=text)
    path, at, digest = path.partition("@")
    head, colon, tag = path.rpartition(":")
    repository = head if colon else path
    if host == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    if len(repository) > _MAX_NAME or _REPOSITORY.fullmatch(repository) is None:
        raise UsageError(
            f"{ascii(repository)[:100]} is no name of a repository",
            where=text,
            hint="lower-case letters, digits, single . _ - between them, and / between parts",
        )
    _check_ends(tag if colon else None, digest if at else None, text)
    return RegistryReference(host, repository, tag if colon else None, digest if at else None)


def parse_host(text: str, *, where: str | None = None) -> str:
    """Return a host with its port in lower case; all names of Docker Hub become `docker.io`.

    Raises UsageError unless it is a host name or an address with at most a port.
    """
    match = _HOST.fullmatch(text)
    if match is None or (match.group(1) is not None and not 0 < int(match.group(1)) < 1 << 16):
        raise UsageError(f"{ascii(text)[:100]} is no host of a registry", where=where, hint=_HINT)
    host = text.lower()
    return DOCKER_HUB if host in _DOCKER_HUB_NAMES else host


def looks_like_registry(text: str) -> bool:
    """Return whether `text` means a registry: it has the scheme, or a host in front.

    A host has a dot or a colon, or is `localhost`; the rest must be possible as well. A file of the same name is for
    the caller to find first.
    """
    if text.startswith(SCHEME):
        return True
    first = text.partition("/")[0]
    if "." not in first and ":" not in first and first != "localhost":
        return False
    try:
        parse(text)
    except UsageError:
        return False
    return True


def repository_name(model_name: str) -> str:
    """Return a model's name as a repository: lower case, other characters as `-`.

    Raises UsageError when no letter or digit is left.
    """
    name = re.sub(r"[^a-z0-9._-]", "-", model_name.lower())
    # Only one dot, one or two underscores, or dashes may stand between letters and digits.
    name = re.sub(r"[._-]+", lambda run: run[0] if _SEPARATOR.fullmatch(run[0]) else "-", name).strip("._-")
    if not name:
        raise UsageError(
            f"{ascii(model_name)[:100]} gives no name of a repository",
            hint="name the repository: it needs at least one letter or digit of ASCII",
        )
    return name


def _check_ends(tag: str | None, digest: str | None, where: str) -> None:
    if tag is not None and _TAG.fullmatch(tag) is None:
        raise UsageError(
            f"{ascii(tag)[:140]} is no tag",
            where=where,
            hint="at most 128 letters, digits and . _ -, not beginning with . or -",
        )
    if digest is not None and not is_digest(digest):
        raise UsageError(
            f"{ascii(digest)[:100]} is no digest",
            where=where,
            hint="only sha256: and 64 lower-case hex digits",
        )
