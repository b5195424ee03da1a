"""Spans as columns: what a run did when, for the trace and the analyses (`spans.npz`).

One `.npz` with int64 columns of equal length and a table of strings. Columns: `level` (1 model, 2 framework,
3 system), `track` and `name` (rows of the table), `start_ns` and `duration_ns` (CLOCK_MONOTONIC), `parent` (an
earlier row, or -1), `query` (number of the query or sample, or -1) and `pass` (which pass of the run; a worker
leaves it out). A file may come from a worker, so nothing in it is believed before it was looked at.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlbundle.errors import ProtocolBroken
from mlbundle.files import replacing
from mlbundle.trace.arrays import MAX_STRING_CHARACTERS, STRINGS, UNREADABLE, read_arrays

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Int64Array = NDArray[np.int64]

LEVELS = {1: "model", 2: "framework", 3: "system"}
MAX_ROWS = 2_000_000
_REQUIRED = ("level", "track", "name", "start_ns", "duration_ns", "parent", "query")
_OPTIONAL = "pass"


@dataclass(frozen=True)
class SpanColumns:
    """Spans, one row each; see the module for the columns. `strings` is the table of names."""

    strings: tuple[str, ...]
    level: Int64Array
    track: Int64Array
    name: Int64Array
    start_ns: Int64Array
    duration_ns: Int64Array
    parent: Int64Array
    query: Int64Array
    pass_number: Int64Array

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Int64Array:
        """When each span ended, ns on CLOCK_MONOTONIC."""
        return self.start_ns + self.duration_ns

    def columns(self) -> dict[str, Int64Array]:
        """Return the columns under the names that they have in a file."""
        return {name: getattr(self, name) for name in _REQUIRED} | {_OPTIONAL: self.pass_number}


def check_spans(spans: SpanColumns, *, where: str | None = None) -> None:
    """Raise ProtocolBroken unless every row makes sense: indices, levels, times, parents."""
    problem = _problem(spans)
    if problem is not None:
        raise ProtocolBroken(f"the spans are not what they should be: {problem}", where=where)


def load_spans(path: Path) -> SpanColumns:
    """Read a file of spans, a worker's or our own. Raises ProtocolBroken when it is none or breaks a rule."""
    where = str(path)
    try:
        arrays = read_arrays(path, (STRINGS, *_REQUIRED), (_OPTIONAL,), MAX_ROWS)
        strings = tuple(arrays.pop(STRINGS).tolist())
    except UNREADABLE as error:
        raise ProtocolBroken(f"the spans can't be read: {error}", where=where) from error
    rows = len(arrays["start_ns"])
    spans = SpanColumns(
        strings=strings,
        **{name: arrays[name] for name in _REQUIRED},
        pass_number=arrays.get(_OPTIONAL, np.zeros(rows, np.int64)),
    )
    check_spans(spans, where=where)
    return spans


def save_spans(path: Path, spans: SpanColumns) -> None:
    """Write spans, compressed; the file appears whole or not at all. Raises StorageFailed."""
    buffer = io.BytesIO()
    strings = np.array(spans.strings or ("",), np.str_)
    columns: dict[str, Any] = dict(spans.columns())
    np.savez_compressed(buffer, strings=strings, **columns)
    with replacing(path) as stream:
        stream.write(buffer.getbuffer())


def merge_spans(parts: Sequence[SpanColumns], numbers: Sequence[int] | None = None) -> SpanColumns:
    """Return the spans of several passes as one table; `pass` is the number of each, by default in the order given.

    Raises ProtocolBroken when a part breaks a rule.
    """
    table: dict[str, int] = {}
    columns: dict[str, list[Int64Array]] = {name: [] for name in (*_REQUIRED, _OPTIONAL)}
    offset = passes = 0
    for place, part in enumerate(parts):
        check_spans(part)
        number = np.array([table.setdefault(text, len(table)) for text in part.strings] or [0], np.int64)
        changed = {
            "track": number[part.track],
            "name": number[part.name],
            "parent": np.where(part.parent < 0, part.parent, part.parent + offset),
            _OPTIONAL: part.pass_number + passes
            if numbers is None
            else np.full(len(part), numbers[place], np.int64),
        }
        for name, column in (part.columns() | changed).items():
            columns[name].append(column)
        offset += len(part)
        passes = max(passes + 1, int(changed[_OPTIONAL].max(initial=-1)) + 1)
    joined = {name: np.concatenate([np.empty(0, np.int64), *parts]) for name, parts in columns.items()}
    return SpanColumns(strings=tuple(table), pass_number=joined.pop(_OPTIONAL), **joined)


def select_spans(spans: SpanColumns, chosen: NDArray[np.bool_]) -> SpanColumns:
    """Return some rows, by a mask; a row whose parent is not chosen has none."""
    place = np.where(chosen, np.cumsum(chosen) - 1, -1)
    columns = {name: column[chosen] for name, column in spans.columns().items()}
    parent = columns["parent"]
    columns["parent"] = np.where(parent >= 0, place[parent], -1)
    return SpanColumns(strings=spans.strings, pass_number=columns.pop(_OPTIONAL), **columns)


def _problem(spans: SpanColumns) -> str | None:
    """Return the first rule that the rows break, None when they keep all."""
    columns = spans.columns()
    if any(c.dtype != np.int64 or c.ndim != 1 or len(c) != len(spans) for c in columns.values()):
        return "columns are int64 and of one length"
    for text in spans.strings:
        if len(text) > MAX_STRING_CHARACTERS or not text.isprintable():
            return f"names are printable and at most {MAX_STRING_CHARACTERS} characters long"
    strings, rows = len(spans.strings), np.arange(len(spans), dtype=np.int64)
    highest = np.int64(np.iinfo(np.int64).max)
    broken = {
        "levels are 1, 2 or 3": (spans.level < 1) | (spans.level > 3),
        "tracks are in the table of strings": (spans.track < 0) | (spans.track >= strings),
        "names are in the table of strings": (spans.name < 0) | (spans.name >= strings),
        "times are not negative": (spans.start_ns < 0) | (spans.duration_ns < 0),
        "times fit 63 bits": spans.start_ns > highest - np.maximum(spans.duration_ns, 0),
        "parents are earlier rows": (spans.parent < -1) | (spans.parent >= rows),
        "queries are -1 or more": spans.query < -1,
        "passes are 0 or more": spans.pass_number < 0,
    }
    return next((rule for rule, rows_of in broken.items() if rows_of.any()), None)
