"""Names that framework images get in the engine; an image that has one keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.registry.reference import repository_name
from mlbundle.runtime.image_engine import engine_calls
from mlbundle.runtime.image_facts import inspect_image, names_of

if TYPE_CHECKING:
    from mlbundle.runtime.lock import ImageKey

_SHORT_HEX = 12


def usual_name(key: ImageKey) -> str:
    """Return the name of the image for a key: `mlbundle/onnxruntime:1.31.1-cpu-amd64`, as the recipes have it."""
    tag = f"{key.version}-{key.accelerator}-{key.architecture}".replace("+", "_")
    return f"mlbundle/{repository_name(key.framework)}:{tag}"


def free_name(client: Any, key: ImageKey, digest: str) -> str:
    """Return the usual name of an image, with the begin of its digest when another image has that name."""
    name = usual_name(key)
    facts = inspect_image(client, name)
    if facts is None or facts["Id"] == digest:
        return name
    return f"{name}-{digest.removeprefix('sha256:')[:_SHORT_HEX]}"


def keep_name(client: Any, facts: dict[str, Any], name: str) -> str | None:
    """Name an image that has lost `name` to another one, and with it its only one, so that no clean-up takes it.

    `facts` are what the engine knew of it before. Returns the new name, None where it needs none.
    """
    digest = str(facts["Id"])
    now = inspect_image(client, digest)
    if now is None or names_of(now):
        return None
    head, colon, tag = name.rpartition(":")
    repository, tag = (head, tag) if colon and "/" not in tag else (name, "latest")
    kept = f"{tag}-{digest.removeprefix('sha256:')[:_SHORT_HEX]}"
    with engine_calls(client, f"name the image {repository}:{kept}"):
        client.api.tag(digest, repository, kept, force=True)
    return f"{repository}:{kept}"


def give_name(client: Any, key: ImageKey, facts: dict[str, Any]) -> str:
    """Name an image that the engine has, so that no clean-up takes it for a leftover; returns the name."""
    name = free_name(client, key, str(facts["Id"]))
    if name not in (facts.get("RepoTags") or ()):
        repository, _, tag = name.rpartition(":")
        with engine_calls(client, f"name the image {name}"):
            client.api.tag(facts["Id"], repository, tag, force=True)
    return name
