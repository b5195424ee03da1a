"""What an engine knows about an image, read: its digests, its names, and what its labels say it is for."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mlbundle.errors import EngineUnavailable, ImageMismatch
from mlbundle.platforms import normalise_architecture
from mlbundle.runtime.lock import KEY_PART, ImageKey

if TYPE_CHECKING:
    from collections.abc import Mapping

LABEL = "io.mlbundle."
"""In front of the labels that say what an image is for; the recipes under containers/ set them."""

_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_KEY_PARTS = ("framework", "version", "architecture", "accelerator")


def inspect_image(client: Any, name: str) -> dict[str, Any] | None:
    """Return what the engine knows about an image, None when it has none of that name. Raises EngineUnavailable."""
    import docker.errors
    import requests.exceptions

    try:
        facts: dict[str, Any] = client.api.inspect_image(name)
    except docker.errors.NotFound:
        return None
    except (docker.errors.APIError, requests.exceptions.RequestException) as error:
        raise EngineUnavailable(
            f"the container engine can't say whether it has {name}: {error}", hint="see `mlbundle doctor`"
        ) from error
    return {**facts, "Id": _identifier(facts)}


def _identifier(facts: Mapping[str, Any]) -> str:
    # Some versions of Podman leave the algorithm out.
    identifier = str(facts["Id"])
    return identifier if ":" in identifier else f"sha256:{identifier}"


def digests_of(facts: Mapping[str, Any]) -> set[str]:
    """Return every digest under which the engine knows an image: config, manifest, index."""
    known = {str(facts["Id"]), str((facts.get("Descriptor") or {}).get("digest", ""))}
    known |= {str(name).rpartition("@")[2] for name in facts.get("RepoDigests") or ()}
    return known - {""}


def names_of(facts: Mapping[str, Any]) -> list[str]:
    """Return the tags that an image has in the engine, sorted."""
    return sorted(name for name in facts.get("RepoTags") or () if not name.startswith("<none>"))


def is_index(media_type: object) -> bool:
    """Return whether a media type is that of an index: one name for the images of several platforms."""
    return media_type in _INDEX_TYPES


def repository_of(ref: str) -> str:
    """Return a reference without its tag or digest; the colon of a port is not that of a tag."""
    name = ref.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def labels_of(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of an image that the engine has."""
    return {
        str(name): str(value) for name, value in ((facts.get("Config") or {}).get("Labels") or {}).items()
    }


def key_of(labels: Mapping[str, str]) -> ImageKey | None:
    """Return what an image is for by its labels, None when it does not say so in full."""
    parts = [labels.get(LABEL + part, "") for part in _KEY_PARTS]
    return ImageKey(*parts) if all(map(KEY_PART.fullmatch, parts)) else None


def parse_key(text: str) -> ImageKey | None:
    """Return the key that a user writes as FRAMEWORK/VERSION/ARCHITECTURE/ACCELERATOR, None for anything else."""
    parts = text.split("/")
    return ImageKey(*parts) if len(parts) == len(_KEY_PARTS) and all(map(KEY_PART.fullmatch, parts)) else None


def check_labels(key: ImageKey, labels: Mapping[str, str], architecture: str, where: str) -> None:
    """Raise ImageMismatch unless an image is what it is wanted for.

    Its labels must say so, and the architecture of its config, which is not a label but what programs it has.
    """
    stated = {part: labels.get(LABEL + part) for part in _KEY_PARTS}
    wrong = [
        f"{part} {stated[part] or 'not stated'}, wanted {wanted}"
        for part, wanted in asdict(key).items()
        if stated[part] != wanted
    ]
    found = normalise_architecture(architecture)
    if found != key.architecture:
        wrong.append(f"made for {found or 'an unknown architecture'}")
    if wrong:
        raise ImageMismatch(
            f"the image is not {key}: {'; '.join(wrong)}"[:500],
            where=where,
            hint="name the image that was built for it; its labels "
            f"{LABEL}framework, version, architecture and accelerator say what one is for",
        )
