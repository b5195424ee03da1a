"""What the worker finds around itself, told in its first message."""

from __future__ import annotations

import os
import platform
from typing import Any

from mlbundle.wire.cgroups import cgroup_limits
from mlbundle.wire.variables import telling


def surroundings() -> dict[str, Any]:
    """Return what is installed, on what the worker runs, what it may use, and the variables that matter."""
    return {
        "distributions": _distributions(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "uid": os.getuid(),
        "cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "cgroup": cgroup_limits(),
        "variables": telling(os.environ, _home()),
    }


def _distributions() -> dict[str, str]:
    from importlib import metadata

    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            # The first on the path is the one that is imported.
            found.setdefault(name.lower().replace("_", "-"), distribution.version or "unknown")
    return dict(sorted(found.items()))


def _home() -> str:
    """Return the home folder of this user: HOME is the worker's own scratch folder."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_dir
    except (ImportError, KeyError):
        return ""
