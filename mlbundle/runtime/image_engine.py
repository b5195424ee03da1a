"""What export and load of images ask of the engine alike: calls with patience, failures in words."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mlbundle.errors import EngineUnavailable, StorageFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlbundle.errors import MlbundleError

_PATIENCE_S = 3600.0
"""An engine may write a whole image to its disk before it says a word."""

_DISK_FULL = "no space left on device"


@contextmanager
def engine_calls(client: Any, doing: str) -> Iterator[None]:
    """Let calls in the block take an hour without a word; their failures become EngineUnavailable or StorageFailed."""
    import docker.errors
    import requests.exceptions
    import urllib3.exceptions

    usual_s = client.api.timeout
    client.api.timeout = _PATIENCE_S
    try:
        yield
    except (docker.errors.DockerException, docker.errors.StreamParseError) as error:
        raise engine_failed(doing, str(getattr(error, "explanation", None) or error)) from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        raise engine_failed(doing, str(error)) from error
    finally:
        client.api.timeout = usual_s


def engine_failed(doing: str, words: str) -> MlbundleError:
    """Return the error of an engine that could not do something, with its own words."""
    text = f"the container engine could not {doing}: {' '.join(words.split())[:500]}"
    if _DISK_FULL in words:
        return StorageFailed(
            text, hint="free space where the engine keeps its images; `docker system df` shows it"
        )
    return EngineUnavailable(text, hint="see `mlbundle doctor` and the log of the engine")


def find_image(client: Any, name: str) -> dict[str, Any] | None:
    """Return what the engine knows about an image, None when it has none of that name; call it in `engine_calls`."""
    import docker.errors

    try:
        facts: dict[str, Any] = client.api.inspect_image(name)
    except docker.errors.NotFound:
        return None
    return facts


def has_containerd_store(client: Any) -> bool:
    """Whether the engine keeps images in containerd, where an id is the digest of a manifest or an index."""
    status = client.api.info().get("DriverStatus") or ()
    return any("io.containerd.snapshotter" in str(value) for _, value in status)
