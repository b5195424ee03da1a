"""The way to the container engine, and its failures in words."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from mlbundle.errors import EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALTERNATIVE = "; `--runtime process` needs no engine"


def engine_client(timeout_s: float = 60.0) -> Any:
    """Return a client of the Docker engine that answers now (`DOCKER_HOST`, else the local socket).

    `timeout_s` holds for every later call that has none of its own. Raises EngineUnavailable, which tells an
    engine that is not installed from one that does not run and one that this user may not use.
    """
    try:
        import docker
        import docker.errors
        import requests.exceptions
    except ImportError as error:
        raise EngineUnavailable(
            f"the Docker client library can't be imported: {error}",
            hint="reinstall mlbundle with its dependencies" + _ALTERNATIVE,
        ) from error
    try:
        client = docker.from_env(timeout=timeout_s)  # type: ignore[arg-type]
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
        if shutil.which("dockerd") or shutil.which("docker"):
            return EngineUnavailable(
                "the container engine is installed and does not run",
                hint="start it (`systemctl start docker`), or set DOCKER_HOST if it listens elsewhere"
                + _ALTERNATIVE,
            )
        return EngineUnavailable(
            "no container engine is installed",
            hint="install Docker, or set DOCKER_HOST" + _ALTERNATIVE,
        )
    return EngineUnavailable(
        f"the container engine does not answer: {error}", hint="restart it" + _ALTERNATIVE
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
