"""Samples of counters as columns (`samples.npz`), read without believing what the file says of itself.

`counter` (a row of `strings`), `t_ns` (CLOCK_MONOTONIC) and `value`; the last part of a counter's name is its unit.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlbundle.errors import ProtocolBroken
from mlbundle.trace.arrays import UNREADABLE

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_KINDS = {"strings": "U", "counter": "i", "t_ns": "i", "value": "f"}
_MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class SampleColumns:
    """Values of counters, one row each; `counter` is a row of `strings`, times in ns on CLOCK_MONOTONIC."""

    strings: tuple[str, ...]
    counter: NDArray[np.int64]
    t_ns: NDArray[np.int64]
    value: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.t_ns)


def load_samples(path: Path) -> SampleColumns:
    """Read `samples.npz`. Raises ProtocolBroken when it is none or breaks a rule."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(info.file_size for info in archive.infolist()) > _MAX_BYTES:
                raise ValueError(f"more than {_MAX_BYTES} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            if set(arrays) != set(_KINDS):
                raise ValueError(f"the members are {sorted(arrays)[:20]}")
            columns = {name: arrays[name] for name in _KINDS}
        for name, kind in _KINDS.items():
            if columns[name].dtype.kind != kind or columns[name].ndim != 1:
                raise ValueError(f"{name} is {columns[name].dtype} of shape {columns[name].shape}")
    except UNREADABLE as error:
        raise ProtocolBroken(f"the samples can't be read: {error}", where=str(path)) from error
    strings = tuple(columns.pop("strings").tolist())
    lengths = {len(column) for column in columns.values()}
    counter = columns["counter"]
    if len(lengths) > 1 or (len(counter) and not 0 <= counter.min() <= counter.max() < len(strings)):
        raise ProtocolBroken("the samples are not what they should be", where=str(path))
    return SampleColumns(strings, counter, columns["t_ns"], columns["value"])
