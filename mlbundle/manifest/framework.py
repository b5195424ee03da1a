"""The framework manifest as values (Listing 2 of the MLModelScope paper and our additions)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class ImageChoice:
    """One container image; without a digest it is unpinned.

    `build` is a folder under `containers/`, `driver` the range of versions of the GPU's driver that the image works
    with (see `versions.py`).
    """

    image: str
    digest: str | None = None
    build: str | None = None
    driver: str | None = None


@dataclass(frozen=True)
class FrameworkManifest:
    """A framework manifest that has passed validation.

    `containers[architecture][accelerator]` chooses an image; `python[architecture][accelerator]` names the
    hash-locked requirements of the embedded runtime, a path inside the installed data.
    """

    name: str
    version: str
    description: str | None = None
    containers: Mapping[str, Mapping[str, ImageChoice]] = field(default_factory=dict)
    python: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


_DISTRIBUTIONS = {
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
}


def distribution_names(framework: str) -> tuple[str, ...]:
    """Return under which names a framework is found among installed Python distributions."""
    name = framework.lower()
    return _DISTRIBUTIONS.get(name, (name,))
