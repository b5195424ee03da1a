"""Spans for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mlbundle.trace.spans import SpanColumns, load_spans
from mlbundle.worker.spans import SpanRecorder


def spans_of(*rows: tuple[str, str, int, int, int, int], pass_number: int = 0) -> SpanColumns:
    """Spans from (track, name, start, duration, parent, query)."""
    table: dict[str, int] = {}
    numbers = [
        (table.setdefault(track, len(table)), table.setdefault(name, len(table)), *others)
        for track, name, *others in rows
    ]
    columns = np.array(numbers, np.int64).reshape(-1, 6).T
    return SpanColumns(
        strings=tuple(table),
        level=np.ones(len(rows), np.int64),
        track=columns[0],
        name=columns[1],
        start_ns=columns[2],
        duration_ns=columns[3],
        parent=columns[4],
        query=columns[5],
        pass_number=np.full(len(rows), pass_number, np.int64),
    )


def recorded(recorder: SpanRecorder, path: Path) -> SpanColumns:
    """Spans as they arrive from a worker."""
    path.write_bytes(recorder.to_bytes())
    return load_spans(path)
