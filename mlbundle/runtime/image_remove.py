"""Takes an image out of the engine, by all its names; the images lock keeps its pin unless told otherwise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import UsageError
from mlbundle.runtime.image_engine import engine_calls
from mlbundle.runtime.image_facts import inspect_image, names_of

if TYPE_CHECKING:
    from mlbundle.runtime.image_target import ImageHere
    from mlbundle.runtime.lock import ImageKey

_SHOWN = 5
_ID_LENGTH = 12


@dataclass(frozen=True)
class Removal:
    """What goes when an image is removed: all its names; `kept` says that its layers stay for images built on it."""

    image_id: str
    names: tuple[str, ...]
    size_bytes: int
    key: ImageKey | None = None
    kept: bool = False

    def to_document(self) -> dict[str, Any]:
        """Return the removal as JSON-ready values."""
        document = asdict(self)
        key = document.pop("key") or dict.fromkeys(("framework", "version", "architecture", "accelerator"))
        return {**key, **document, "names": list(self.names)}


def plan_removal(client: Any, image: ImageHere) -> Removal:
    """Return what would go. Raises UsageError while a container, running or not, uses the image."""
    with engine_calls(client, "list the containers"):
        containers = client.api.containers(all=True, filters={"ancestor": image.id})
    # The engine lists those of images that are built on this one, too.
    using = [container for container in containers if container.get("ImageID") in {image.id, None}]
    if using:
        shown = [
            f"{container['Id'][:_ID_LENGTH]} {', '.join(container.get('Names') or ())} {container.get('Status', '')}"
            for container in using[:_SHOWN]
        ]
        raise UsageError(
            f"{len(using)} containers use the image {image.ref}",
            context=shown,
            hint="wait until the run is over, or remove the container",
        )
    names = (*names_of(image.facts), *_digest_names(image.facts))
    return Removal(image.id, names, int(image.facts.get("Size") or 0), image.key)


def remove_image(client: Any, removal: Removal) -> Removal:
    """Remove an image name by name, never by force: one that a container has begun to use meanwhile stays.

    Raises EngineUnavailable with the engine's words.
    """
    with engine_calls(client, f"remove the image {removal.image_id}"):
        for name in (*removal.names, removal.image_id):
            facts = inspect_image(client, name)
            # The last name of a repository takes its digests along.
            if facts is not None and facts["Id"] == removal.image_id:
                _remove(client, name, last=name == removal.image_id)
    kept = inspect_image(client, removal.image_id) is not None
    return Removal(removal.image_id, removal.names, removal.size_bytes, removal.key, kept)


def _remove(client: Any, name: str, *, last: bool) -> None:
    import docker.errors

    try:
        client.api.remove_image(name)
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        # Without a name and with images built on it, the engine keeps it for them.
        if last and "child" in str(error.explanation or error):
            return
        raise


def _digest_names(facts: dict[str, Any]) -> list[str]:
    return sorted(str(name) for name in facts.get("RepoDigests") or () if not str(name).startswith("<none>"))
