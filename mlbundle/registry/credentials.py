"""Credentials as docker keeps them: `config.json` and the `docker-credential-*` helpers that it names.

Other tools for registries read and write the same file, so a login is made once for all of them.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlbundle.config import load_settings
from mlbundle.errors import RegistryDenied, StorageFailed, ToolMissing, UsageError
from mlbundle.files import locked, write_atomically
from mlbundle.registry.reference import DOCKER_HUB, parse_host

_HUB_KEY = "https://index.docker.io/v1/"
_MAX_CONFIG_BYTES = 4 << 20
_HELPER_TIMEOUT_S = 10
_HELPER_NAME = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)
_TOKEN_USER = "<token>"  # noqa: S105 - what a helper says instead of a user


@dataclass(frozen=True, slots=True)
class Credentials:
    """User and password, or an identity token; secrets are kept out of `repr`."""

    user: str
    password: str = field(default="", repr=False)
    identity_token: str | None = field(default=None, repr=False)

    def basic(self) -> str:
        """Return the value of an Authorization header of the Basic scheme (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def config_path() -> Path:
    """Return where docker's `config.json` is: in DOCKER_CONFIG or ~/.docker."""
    folder = os.environ.get("DOCKER_CONFIG")
    return (Path(folder) if folder else Path.home() / ".docker") / "config.json"


def find(host: str) -> Credentials | None:
    """Return the credentials for a host (with its port), or None.

    Raises UsageError when the file can't be understood, ToolMissing and RegistryDenied when its helper fails.
    """
    config = _read(config_path())
    helper = _helper_for(config, host)
    if helper is not None:
        return _from_helper(helper, _key(host))
    for name, entry in _mapping(config, "auths").items():
        if _host_of(name) == host and isinstance(entry, dict):
            found = _from_entry(entry)
            if found is not None:
                return found
    return None


def store(host: str, user: str, password: str) -> str:
    """Keep credentials: in the configured helper, else in `config.json` (mode 0600); returns where they are.

    All other keys of the file stay. Raises UsageError, StorageFailed, ToolMissing, RegistryDenied.
    """
    path = config_path()
    helper = _helper_for(_read(path), host)
    if helper is not None:
        request = {"ServerURL": _key(host), "Username": user, "Secret": password}
        _run_helper(helper, "store", json.dumps(request))
        return f"docker-credential-{helper}"
    entry = {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}
    _change_auths(path, host, entry)
    return str(path)


def erase(host: str) -> bool:
    """Forget the credentials for a host, in the helper and in `config.json`; returns whether there were any."""
    path = config_path()
    config = _read(path)
    helper = _helper_for(config, host)
    known = False
    if helper is not None and _from_helper(helper, _key(host)) is not None:
        _run_helper(helper, "erase", _key(host))
        known = True
    if any(_host_of(name) == host for name in _mapping(config, "auths")):
        _change_auths(path, host, None)
        known = True
    return known


def _change_auths(path: Path, host: str, entry: dict[str, str] | None) -> None:
    # A link to a file elsewhere stays a link.
    path = path.resolve()
    with locked(load_settings().cache_dir / "docker-config.lock"):
        config = _read(path)
        auths = {name: value for name, value in _mapping(config, "auths").items() if _host_of(name) != host}
        if entry is not None:
            auths[_key(host)] = entry
        config["auths"] = auths
        write_atomically(path, (json.dumps(config, indent="\t") + "\n").encode(), mode=0o600)


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_CONFIG_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise StorageFailed(f"can't read {path}: {error.strerror}", where=str(path)) from error
    try:
        config = json.loads(data) if len(data) <= _MAX_CONFIG_BYTES else None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise UsageError(
            "docker's settings are no JSON object", where=str(path), hint="mend or remove the file"
        )
    return config


def _mapping(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def _key(host: str) -> str:
    """Return what docker calls the host in its settings."""
    return _HUB_KEY if host == DOCKER_HUB else host


def _host_of(name: str) -> str | None:
    """Return the host that a key of `auths` means: `https://host/v1/` is one old form."""
    bare = name.partition("://")[2] if "://" in name else name
    try:
        return parse_host(bare.partition("/")[0])
    except UsageError:
        return None


def _from_entry(entry: dict[str, Any]) -> Credentials | None:
    token = entry.get("identitytoken")
    auth = entry.get("auth")
    user, password = "", ""
    if isinstance(auth, str) and auth:
        try:
            user, _, password = base64.b64decode(auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        password = password.rstrip("\0")
    if isinstance(token, str) and token:
        return Credentials(user, password, token)
    return Credentials(user, password) if user else None


def _helper_for(config: dict[str, Any], host: str) -> str | None:
    name = None
    for key, value in _mapping(config, "credHelpers").items():
        if _host_of(key) == host:
            name = value
    if name is None:
        name = config.get("credsStore")
    if not name:
        return None
    if not isinstance(name, str) or _HELPER_NAME.fullmatch(name) is None:
        raise UsageError(
            f"{ascii(name)[:60]} is no name of a credential helper",
            where=str(config_path()),
            hint="mend credHelpers or credsStore",
        )
    return name


def _from_helper(helper: str, key: str) -> Credentials | None:
    answer = _run_helper(helper, "get", key, may_lack=True)
    if answer is None:
        return None
    try:
        document = json.loads(answer)
        user, secret = document["Username"], document["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError):
        user = secret = None
    if not isinstance(user, str) or not isinstance(secret, str):
        raise RegistryDenied(f"docker-credential-{helper} gave no credentials that can be read")
    if user == _TOKEN_USER:
        return Credentials("", "", secret)
    return Credentials(user, secret) if user else None


def _run_helper(helper: str, verb: str, text: str, *, may_lack: bool = False) -> str | None:
    """Run a helper (docker's credential helper protocol: the request on stdin); its output is never shown."""
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, verb], input=text.encode(), capture_output=True, timeout=_HELPER_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise ToolMissing(
            f"{program} is not installed",
            where=str(config_path()),
            hint="docker's settings name it: install it, or remove it from credHelpers and credsStore",
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RegistryDenied(
            f"{program} did not answer: {type(error).__name__}", hint=f"try `{program} list` by hand"
        ) from error
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode == 0:
        return output
    # The helpers of docker say this, on stdout and with status 1, when they know nothing of the host.
    if may_lack and "not found" in output.lower() + done.stderr.decode("utf-8", "replace").lower():
        return None
    raise RegistryDenied(
        f"{program} {verb} failed with status {done.returncode}", hint=f"try `{program} list` by hand"
    )
