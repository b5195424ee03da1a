"""The layers and kernels of a run, over all of its profiled queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle.errors import ReferenceNotFound
from mlbundle.wire.passes import KERNELS, LAYERS

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.analysis.layers import KernelRow, LayerRow


def layers_of_run(folder: Path) -> list[LayerRow]:
    """Return the layers of a run in their order. Raises ReferenceNotFound where nobody looked, ProtocolBroken."""
    from mlbundle.analysis.layers import layer_rows
    from mlbundle.trace import tables

    return layer_rows(tables.load_table(_file(folder, LAYERS, "framework"), tables.LAYERS))


def kernels_of_run(folder: Path) -> list[KernelRow]:
    """Return the kernels of a run by name, the slowest first. Raises as `layers_of_run`."""
    from mlbundle.analysis.layers import kernel_rows
    from mlbundle.trace import tables

    return kernel_rows(tables.load_table(_file(folder, KERNELS, "system"), tables.KERNELS))


def _file(folder: Path, name: str, level: str) -> Path:
    path = folder / name
    if not path.is_file():
        what = name.partition(".")[0]
        raise ReferenceNotFound(
            f"run {folder.name} did not look at {what}",
            where=str(path),
            hint=f"run with --trace {level}, or full, to see {what}",
        )
    return path
