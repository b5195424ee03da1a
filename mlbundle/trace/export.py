"""A run's trace for other tools: a copy, Chrome's JSON, or its columns as CSV.

A single file can go to an open stream as well; what goes there is not compressed.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.output import already_there, publish, temporary_beside
from mlbundle.errors import UsageError
from mlbundle.files import replacing, storage_failed
from mlbundle.trace.chrome import chrome_events
from mlbundle.trace.samples import load_samples
from mlbundle.trace.spans import LEVELS, load_spans
from mlbundle.trace.stored import check_trace, unpacked
from mlbundle.trace.tables import KERNELS, LAYERS, load_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import BinaryIO

    from mlbundle.trace.samples import SampleColumns
    from mlbundle.trace.spans import SpanColumns
    from mlbundle.trace.tables import Table

_GZIP_LEVEL = 6
# The tables that a run can have, each a file of an export as CSV.
TABLES = ("spans", "layers", "kernels", "counters")


@dataclass(frozen=True)
class RunColumns:
    """The columns of a run; None for a table that the run does not have. `passes`: number of a pass -> its name."""

    spans: SpanColumns | None
    layers: Table | None
    kernels: Table | None
    samples: SampleColumns | None
    passes: Mapping[int, str] = field(default_factory=dict)

    def pass_name(self, number: int) -> str:
        """Return what a pass is called; its number where nobody knows."""
        return self.passes.get(number, f"pass {number}")


@dataclass(frozen=True)
class Exported:
    """A file that was written; `rows` of a table, or events."""

    path: Path
    size_bytes: int
    rows: int | None


def load_columns(folder: Path, passes: Mapping[int, str] | None = None) -> RunColumns:
    """Read the tables that a run's folder has. Raises ProtocolBroken for one that is damaged."""

    def present(name: str, load: Any, *arguments: Any) -> Any:
        path = folder / f"{name}.npz"
        return load(path, *arguments) if path.is_file() else None

    return RunColumns(
        spans=present("spans", load_spans),
        layers=present("layers", load_table, LAYERS),
        kernels=present("kernels", load_table, KERNELS),
        samples=present("samples", load_samples),
        passes=passes or {},
    )


def export_perfetto(trace: Path, destination: Path | BinaryIO, *, force: bool) -> Exported:
    """Copy a trace; as it is for a name that ends in `.gz`, else without its compression.

    Raises IntegrityError, UsageError when the file is there and `force` is not set, StorageFailed.
    """
    with _new_file(destination, force=force) as stream:
        if _is_packed(destination):
            check_trace(trace)
            with trace.open("rb") as source:
                shutil.copyfileobj(source, stream)
        else:
            for piece in unpacked(trace):
                stream.write(piece)
    return _exported(destination, None)


def export_chrome(columns: RunColumns, destination: Path | BinaryIO, *, title: str, force: bool) -> Exported:
    """Write the columns as Chrome's trace events; compressed for a name that ends in `.gz`. Raises as above."""
    count = 0
    with _new_file(destination, force=force) as stream:
        packed = _is_packed(destination)
        target: Any = gzip.GzipFile("", "wb", _GZIP_LEVEL, stream, mtime=0) if packed else stream
        for number, line in enumerate(chrome_events(columns, title)):
            target.write(line)
            count = number
        if packed:
            target.close()
    return _exported(destination, max(0, count - 1))


def _is_packed(destination: Path | BinaryIO) -> bool:
    return isinstance(destination, Path) and destination.suffix == ".gz"


def _exported(destination: Path | BinaryIO, rows: int | None) -> Exported:
    if isinstance(destination, Path):
        return Exported(destination, destination.stat().st_size, rows)
    return Exported(Path("-"), 0, rows)


def export_csv(columns: RunColumns, folder: Path, *, force: bool) -> list[Exported]:
    """Write a CSV file for each table into a folder, names in place of numbers; each file whole or not at all.

    A table that the run does not have leaves no file. Raises UsageError when a file of a table is there and `force` is
    not set, StorageFailed.
    """
    tables = _tables(columns)
    targets = {name: folder / f"{name}.csv" for name in TABLES}
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            f"{folder} is no folder", hint="CSV makes a file for each table: name a folder with -o"
        )
    for target in targets.values():
        _refuse_existing(target, force=force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_failed(error, folder) from error
    for name in set(TABLES) - set(tables):  # of another run: they would be taken for this one's
        targets[name].unlink(missing_ok=True)
    written = []
    for name, (header, rows, count) in tables.items():
        with replacing(targets[name]) as stream:
            text = io.TextIOWrapper(stream, "utf-8", newline="", write_through=True)
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(rows)
            text.detach()
        written.append(Exported(targets[name], targets[name].stat().st_size, count))
    return written


_Rows = tuple["Sequence[str]", "Iterable[Sequence[Any]]", int]


def _tables(columns: RunColumns) -> dict[str, _Rows]:
    """Return header, rows and count of each table that is there."""
    found: dict[str, _Rows] = {}
    if columns.spans is not None:
        found["spans"] = _span_rows(columns, columns.spans)
    for table in (columns.layers, columns.kernels):
        if table is not None:
            found[table.kind.name] = _table_rows(columns, table)
    if columns.samples is not None:
        samples = columns.samples
        names = [samples.strings[index] for index in samples.counter.tolist()]
        rows = zip(names, samples.t_ns.tolist(), samples.value.tolist(), strict=True)
        found["counters"] = (("counter", "t_ns", "value"), rows, len(samples))
    return found


# Columns that are called otherwise in a trace -> their names there.
_CALLED = {"run": "query", "layer_index": "layer"}


def _span_rows(columns: RunColumns, spans: SpanColumns) -> _Rows:
    header = ("pass", "level", "track", "name", "start_ns", "duration_ns", "parent", "query")
    texts = spans.strings
    values = (
        [columns.pass_name(number) for number in spans.pass_number.tolist()],
        [LEVELS[level] for level in spans.level.tolist()],
        [texts[index] for index in spans.track.tolist()],
        [texts[index] for index in spans.name.tolist()],
        *(column.tolist() for column in (spans.start_ns, spans.duration_ns, spans.parent, spans.query)),
    )
    return header, zip(*values, strict=True), len(spans)


def _table_rows(columns: RunColumns, table: Table) -> _Rows:
    names = table.kind.columns
    values = [
        [columns.pass_name(number) for number in table["pass"].tolist()],
        *(table.texts(name) if name in table.kind.texts else table[name].tolist() for name in names),
    ]
    return ("pass", *(_CALLED.get(name, name) for name in names)), zip(*values, strict=True), len(table)


@contextmanager
def _new_file(destination: Path | BinaryIO, *, force: bool) -> Iterator[BinaryIO]:
    """Write a file that appears whole or not at all, or to a stream that is open."""
    if not isinstance(destination, Path):
        yield destination
        destination.flush()
        return
    check_destination(destination, force=force)
    with temporary_beside(destination) as (temporary, descriptor):
        try:
            with os.fdopen(os.dup(descriptor), "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(descriptor)
        except OSError as error:
            raise storage_failed(error, destination) from error
        publish(temporary, destination, overwrite=force)


def check_destination(destination: Path, *, force: bool) -> None:
    """Raise UsageError where no file can be put: one is there and `force` is not set, or there is no such folder."""
    _refuse_existing(destination, force=force)
    if not destination.absolute().parent.is_dir():
        raise UsageError(f"the folder {destination.parent} does not exist", where=str(destination))


def _refuse_existing(destination: Path, *, force: bool) -> None:
    if destination.exists() and not force:
        raise already_there(destination)
    if destination.is_dir():
        raise UsageError(f"{destination} is a folder", hint="name a file with -o")
