"""Collects spans as rows and sends them as columns; nothing is formatted while something is measured."""

from __future__ import annotations

import io
import threading
from typing import Any, Sequence

import numpy as np

LEVEL_MODEL = 1
NO_PARENT = -1
NO_QUERY = -1
# Of a pass; what comes later is left out of the trace.
MAX_ROWS = 1_000_000


class SpanRecorder:
    """Rows of (track, name, start, end, parent, query); times in ns on CLOCK_MONOTONIC."""

    def __init__(self, enabled: bool, most_rows: int = MAX_ROWS) -> None:
        self.enabled = enabled
        self._most_rows = most_rows
        self._rows: list[tuple[str, str, int, int, int, int]] = []
        self._columns: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def add(self, track: str, name: str, start_ns: int, end_ns: int, query: int = NO_QUERY) -> None:
        """Add one span without a parent."""
        if self.enabled and len(self._rows) < self._most_rows:
            with self._lock:
                self._rows.append((track, name, start_ns, end_ns, NO_PARENT, query))

    def add_queries(self, starts_ns: Sequence[int], ends_ns: Sequence[int], first_query: int) -> None:
        """Add queries of a closed loop: a slice `query` on the track of that name, `predict` inside it."""
        if not self.enabled:
            return
        starts = np.asarray(starts_ns, np.int64)
        ends = np.asarray(ends_ns, np.int64)
        self._columns.append({"starts": starts, "durations": ends - starts, "first": first_query})

    def to_bytes(self) -> bytes:
        """Return all spans as the bytes of an `.npz` with the columns of the run folder's `spans.npz`."""
        strings: dict[str, int] = {}

        def intern(text: str) -> int:
            return strings.setdefault(text, len(strings))

        rows = [(intern(t), intern(n), s, e - s, p, q) for t, n, s, e, p, q in self._rows]
        parts = [np.array(rows, np.int64).reshape(len(rows), 6)]
        offset = len(rows)
        for block in self._columns:
            parts.append(self._query_rows(block, offset, intern))
            offset += len(parts[-1])
        table = np.concatenate(parts)
        buffer = io.BytesIO()
        np.savez(
            buffer,
            strings=np.array(list(strings) or [""], dtype=np.str_),
            level=np.full(len(table), LEVEL_MODEL, np.int64),
            track=table[:, 0],
            name=table[:, 1],
            start_ns=table[:, 2],
            duration_ns=table[:, 3],
            parent=table[:, 4],
            query=table[:, 5],
        )
        return buffer.getvalue()

    @staticmethod
    def _query_rows(block: dict[str, Any], offset: int, intern: Any) -> Any:
        count = len(block["starts"])
        track, query_name, predict_name = intern("query"), intern("query"), intern("predict")
        queries = np.arange(block["first"], block["first"] + count, dtype=np.int64)
        outer = np.arange(offset, offset + count, dtype=np.int64)
        table = np.empty((2 * count, 6), np.int64)
        table[:, 0] = track
        table[:count, 1], table[count:, 1] = query_name, predict_name
        table[:count, 2] = table[count:, 2] = block["starts"]
        table[:count, 3] = table[count:, 3] = block["durations"]
        table[:count, 4], table[count:, 4] = NO_PARENT, outer
        table[:count, 5] = table[count:, 5] = queries
        return table
