"""Layers and kernels as columns: `layers.npz` and `kernels.npz` of a run, and of the passes that profiled it.

The columns are those of `mlbundle.wire.columns`, and `pass`: the number of the pass that a row is from (which a worker
leaves out). A file may come from a worker, so nothing in it is believed before it was looked at.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mlbundle.errors import ProtocolBroken
from mlbundle.files import replacing
from mlbundle.trace.arrays import (
    MAX_STRING_CHARACTERS,
    MAX_STRINGS,
    MAX_TABLE_BYTES,
    STRINGS,
    UNREADABLE,
    read_arrays,
)
from mlbundle.wire.columns import (
    FLOPS_SOURCES,
    KERNEL_KINDS,
    KERNEL_NUMBERS,
    KERNEL_TEXTS,
    LAYER_NUMBERS,
    LAYER_TEXTS,
    MAX_ROWS,
    PASS,
    UNKNOWN,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Int64Array = NDArray[np.int64]

# What a layer or a kernel must have; other numbers may be unknown.
_KNOWN = ("run", "index", "start_ns", "duration_ns")


@dataclass(frozen=True)
class TableKind:
    """Which columns a table has, and which texts some of them are limited to."""

    name: str
    numbers: tuple[str, ...]
    texts: tuple[str, ...]
    choices: Mapping[str, tuple[str, ...]]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns that a worker sends."""
        return (*self.numbers, *self.texts)


LAYERS = TableKind("layers", LAYER_NUMBERS, LAYER_TEXTS, {"flops_source": FLOPS_SOURCES})
KERNELS = TableKind("kernels", KERNEL_NUMBERS, KERNEL_TEXTS, {"kind": KERNEL_KINDS})


@dataclass(frozen=True)
class Table:
    """Rows of a kind, int64 columns of one length by name; text columns are rows of `strings`."""

    kind: TableKind
    strings: tuple[str, ...]
    columns: Mapping[str, Int64Array]

    def __len__(self) -> int:
        return len(self.columns["run"])

    def __getitem__(self, name: str) -> Int64Array:
        return self.columns[name]

    @property
    def end_ns(self) -> Int64Array:
        """When each row ended, ns on CLOCK_MONOTONIC."""
        return self.columns["start_ns"] + self.columns["duration_ns"]

    def texts(self, name: str) -> list[str]:
        """Return a text column as texts."""
        return [self.strings[index] for index in self.columns[name].tolist()]

    def rows(self, chosen: Any) -> Table:
        """Return some rows: by their numbers or by a mask."""
        return Table(self.kind, self.strings, {name: column[chosen] for name, column in self.columns.items()})

    def shifted(self, offset_ns: int) -> Table:
        """Return the rows, their times earlier by an offset; without those that would be before zero or too late."""
        latest = int(np.iinfo(np.int64).max)
        # A row that begins before the offset would begin before zero; a negative offset moves rows to later times.
        possible = self["start_ns"] >= max(0, offset_ns)
        possible &= self.end_ns <= min(latest, latest + offset_ns)
        kept = self.rows(possible)
        return replace(kept, columns={**kept.columns, "start_ns": kept["start_ns"] - offset_ns})


def empty_table(kind: TableKind) -> Table:
    """Return a table without rows."""
    return Table(kind, ("",), {name: np.empty(0, np.int64) for name in (*kind.columns, PASS)})


def load_table(path: Path, kind: TableKind) -> Table:
    """Read a table, a worker's or our own. Raises ProtocolBroken when it is none or breaks a rule."""
    where = str(path)
    try:
        arrays = read_arrays(path, (STRINGS, *kind.columns), (PASS,), MAX_ROWS)
    except UNREADABLE as error:
        raise ProtocolBroken(f"the {kind.name} can't be read: {error}", where=where) from error
    strings = tuple(arrays.pop(STRINGS).tolist())
    arrays.setdefault(PASS, np.zeros(len(arrays["run"]), np.int64))
    table = Table(kind, strings, arrays)
    check_table(table, where=where)
    return table


def save_table(path: Path, table: Table) -> None:
    """Write a table, compressed; the file appears whole or not at all. Raises StorageFailed."""
    buffer = io.BytesIO()
    strings = table.strings or ("",)
    # Every text has the room of the longest: those of several passes are cut to what is read again.
    most = MAX_TABLE_BYTES // np.dtype("<U1").itemsize // len(strings)
    arrays: dict[str, Any] = {STRINGS: np.array([text[:most] for text in strings], np.str_), **table.columns}
    np.savez_compressed(buffer, **arrays)
    with replacing(path) as stream:
        stream.write(buffer.getbuffer())


def merge_tables(kind: TableKind, parts: Sequence[tuple[int, Table]]) -> Table:
    """Return the rows of several passes as one table; each part comes with the number of its pass.

    Raises ProtocolBroken for more texts than a table may have.
    """
    table: dict[str, int] = {"": 0}
    columns: dict[str, list[Int64Array]] = {name: [] for name in (*kind.columns, PASS)}
    for number, part in parts:
        place = np.array([table.setdefault(text, len(table)) for text in part.strings] or [0], np.int64)
        for name in kind.numbers:
            columns[name].append(part[name])
        for name in kind.texts:
            columns[name].append(place[part[name]])
        columns[PASS].append(np.full(len(part), number, np.int64))
    if len(table) > MAX_STRINGS:
        raise ProtocolBroken(f"the {kind.name} have more than {MAX_STRINGS} texts")
    joined = {name: np.concatenate([np.empty(0, np.int64), *each]) for name, each in columns.items()}
    return Table(kind, tuple(table), joined)


def check_table(table: Table, *, where: str | None = None) -> None:
    """Raise ProtocolBroken unless every row makes sense: lengths, indices, times, choices."""
    problem = _problem(table)
    if problem is not None:
        raise ProtocolBroken(f"the {table.kind.name} are not what they should be: {problem}", where=where)


def _problem(table: Table) -> str | None:
    kind, columns = table.kind, table.columns
    if any(c.dtype != np.int64 or c.ndim != 1 or len(c) != len(table) for c in columns.values()):
        return "columns are int64 and of one length"
    for text in table.strings:
        if len(text) > MAX_STRING_CHARACTERS or not text.isprintable():
            return f"texts are printable and at most {MAX_STRING_CHARACTERS} characters long"
    for name in kind.numbers:
        if (columns[name] < (0 if name in _KNOWN else UNKNOWN)).any():
            return f"{name} is {'not negative' if name in _KNOWN else 'not negative, or -1 where it is not known'}"
    for name in kind.texts:
        if ((columns[name] < 0) | (columns[name] >= len(table.strings))).any():
            return f"{name} is a row of the table of strings"
        allowed = kind.choices.get(name)
        used = {table.strings[index] for index in np.unique(columns[name]).tolist()}
        if allowed is not None and not used <= set(allowed):
            return f"{name} is one of {', '.join(repr(choice) for choice in allowed)}"
    highest = np.int64(np.iinfo(np.int64).max)
    if (columns["start_ns"] > highest - columns["duration_ns"]).any():
        return "times fit 63 bits"
    if (columns[PASS] < 0).any():
        return "passes are not negative"
    return None
