"""The way to the container engine, Docker's or Podman's, and its failures in words."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.errors import EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALTERNATIVE = "; `--runtime process` needs no engine"
_SYSTEM_SOCKETS = (Path("/var/run/docker.sock"), Path("/run/podman/podman.sock"))
_USER_SOCKETS = ("docker.sock", "podman/podman.sock")


def engine_client(timeout_s: float = 60.0) -> Any:
    """Return a client of the container engine that answers now.

    That of `DOCKER_HOST`, else the first that answers on a socket of this machine: Docker's, Docker's of this user,
    Podman's of this user, Podman's (which speaks Docker's protocol). `timeout_s` holds for every later call that has
    none of its own. Raises EngineUnavailable, which tells an engine that is not installed from one that does not run
    and one that this user may not use.
    """
    try:
        import docker  # noqa: F401 - only to see whether it is there
    except ImportError as error:
        raise EngineUnavailable(
            f"the Docker client library can't be imported: {error}",
            hint="reinstall mlbundle with its dependencies" + _ALTERNATIVE,
        ) from error
    failures = []
    for address in _addresses():
        try:
            return _client(address, timeout_s)
        except EngineUnavailable as error:
            failures.append(error)
    # The first one is the engine that most have; the others were only a try.
    raise failures[0]


def engine_name(client: Any) -> str:
    """Return which engine answers and in what version: `Docker 20.10.24`, `Podman 4.3.1`. Raises EngineUnavailable."""
    import docker.errors
    import requests.exceptions

    try:
        version = client.version()
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise EngineUnavailable(
            f"the container engine does not answer: {error}", hint="restart it" + _ALTERNATIVE
        ) from error
    parts = [str(part.get("Name", "")) for part in version.get("Components") or ()]
    name = "Podman" if any(part.startswith("Podman") for part in parts) else "Docker"
    return f"{name} {version.get('Version', '')}".strip()


def _addresses() -> list[str | None]:
    """Return where an engine may be, the likeliest first; None is what the environment says, or Docker's own place."""
    if os.environ.get("DOCKER_HOST"):
        return [None]
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR")
    own = [Path(runtime_dir) / name for name in _USER_SOCKETS] if runtime_dir else []
    docker, podman = _SYSTEM_SOCKETS
    return [None, *(f"unix://{path}" for path in (*own, podman) if _is_there(path) and path != docker)]


def _is_there(path: Path) -> bool:
    try:
        return path.is_socket()
    except OSError:
        return False


def _client(address: str | None, timeout_s: float) -> Any:
    import docker
    import docker.errors
    import requests.exceptions

    try:
        if address is None:
            client = docker.from_env(timeout=timeout_s)  # type: ignore[arg-type]
        else:
            client = docker.DockerClient(base_url=address, timeout=timeout_s)  # type: ignore[arg-type]
        client.ping()
    except (
        docker.errors.DockerException,
        requests.exceptions.RequestException,
        OSError,
        ValueError,
    ) as error:
        raise _unavailable(error) from error
    return client


def _unavailable(error: BaseException) -> EngineUnavailable:
    causes = list(_causes(error))
    if any(isinstance(cause, PermissionError) for cause in causes):
        return EngineUnavailable(
            "this user may not talk to the container engine",
            hint="join the group of the engine's socket (usually `docker`) and log in again" + _ALTERNATIVE,
        )
    host = os.environ.get("DOCKER_HOST")
    if host:
        return EngineUnavailable(
            f"no container engine answers at DOCKER_HOST={host}: {error}",
            hint="start it, or correct or unset DOCKER_HOST" + _ALTERNATIVE,
        )
    if any(isinstance(cause, (FileNotFoundError, ConnectionRefusedError)) for cause in causes):
        return _not_running()
    return EngineUnavailable(
        f"the container engine does not answer: {error}", hint="restart it" + _ALTERNATIVE
    )


def _not_running() -> EngineUnavailable:
    if shutil.which("dockerd") or shutil.which("docker"):
        return EngineUnavailable(
            "the container engine is installed and does not run",
            hint="start it (`systemctl start docker`), or set DOCKER_HOST if it listens elsewhere"
            + _ALTERNATIVE,
        )
    if shutil.which("podman"):
        return EngineUnavailable(
            "Podman is installed and does not listen",
            hint="`systemctl --user start podman.socket` makes it listen" + _ALTERNATIVE,
        )
    return EngineUnavailable(
        "no container engine is installed",
        hint="install Docker or Podman, or set DOCKER_HOST" + _ALTERNATIVE,
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what caused it and what it carries: the HTTP client hides the socket's error in arguments."""
    waiting, seen = [error], set()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        inner = (current.__cause__, current.__context__, *current.args)
        waiting += [item for item in inner if isinstance(item, BaseException)]
