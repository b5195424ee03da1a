"""Finds predictors, operators, metrics and scenarios by name: entry points, ours and anybody else's alike."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any, Callable

from mlbundle.worker.errors import WorkerError, bundle_error

GROUPS = (
    "mlbundle.predictors",
    "mlbundle.operators",
    "mlbundle.metrics",
    "mlbundle.scenarios",
    "mlbundle.profilers",
)


def entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    """Return the entry points of a group by name; on a clash the first on the path wins."""
    found: Any = metadata.entry_points()
    # Python 3.9 returns a mapping of groups, 3.10 and later a selectable collection.
    points = found.select(group=group) if hasattr(found, "select") else found.get(group, ())
    by_name: dict[str, metadata.EntryPoint] = {}
    for point in points:
        by_name.setdefault(point.name, point)
    return by_name


def load(group: str, name: str) -> Callable[..., Any]:
    """Return the class or function registered as `name`; raises WorkerError with the known names otherwise."""
    points = entry_points(group)
    kind = group.rpartition(".")[2]
    if name not in points and group == "mlbundle.scenarios":
        raise WorkerError(
            "unknown-scenario",
            "no scenario is called {!r} in this environment".format(name),
            fault="environment",
            hint="install the package that has it there (entry point group mlbundle.scenarios), and name that "
            "environment with --python",
        )
    if name not in points:
        raise bundle_error(
            "unknown-{}".format(kind.rstrip("s")),
            "no {} is called {!r} in this environment".format(kind.rstrip("s"), name),
            "known {}: {}".format(kind, ", ".join(sorted(points))),
        )
    try:
        module_name, _, attribute = points[name].value.partition(":")
        loaded: Callable[..., Any] = getattr(importlib.import_module(module_name), attribute)
    except ImportError as error:
        raise WorkerError(
            "import-failed",
            "{} {!r} needs a module that is not here: {}".format(kind.rstrip("s"), name, error),
            fault="environment",
            hint="use an image or an environment made for this framework",
        ) from error
    return loaded
