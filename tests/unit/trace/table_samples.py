"""Layers and kernels for tests, as a worker would send them."""

from __future__ import annotations

from pathlib import Path

from mlbundle.trace.tables import KERNELS, LAYERS, Table, load_table
from mlbundle.worker.profilers.base import Profile


def layers_of(path: Path, *rows: dict[str, int | str]) -> Table:
    """Layers by way of the worker's own rows and our reader."""
    profile = Profile()
    for row in rows:
        profile.add_layer(**row)
    path.write_bytes(profile.layers_bytes())
    return load_table(path, LAYERS)


def kernels_of(path: Path, *rows: dict[str, int | str]) -> Table:
    """Kernels likewise."""
    profile = Profile()
    for row in rows:
        profile.add_kernel(**row)
    path.write_bytes(profile.kernels_bytes())
    return load_table(path, KERNELS)
