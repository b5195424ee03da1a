"""Names of architectures and accelerators."""

from __future__ import annotations

import platform

from mlbundle.errors import UsageError

ARCHITECTURES = ("amd64", "arm64", "ppc64le")
ACCELERATORS = ("cpu", "gpu")
_ALIASES = {
    "x86_64": "amd64",
    "x64": "amd64",
    "aarch64": "arm64",
    "arm64/v8": "arm64",
    "powerpc64le": "ppc64le",
}


def normalise_architecture(name: str) -> str:
    """Return our name of an architecture (`x86_64` -> `amd64`); unknown names come back in lower case."""
    lowered = name.strip().lower()
    return _ALIASES.get(lowered, lowered)


def check_accelerator(name: str) -> str:
    """Return `name` if it is an accelerator we know; raises UsageError otherwise."""
    if name not in ACCELERATORS:
        raise UsageError(f"unknown accelerator {name!r}", hint=f"one of: {', '.join(ACCELERATORS)}")
    return name


def this_architecture() -> str:
    """Return the architecture of this machine by our name."""
    return normalise_architecture(platform.machine())
