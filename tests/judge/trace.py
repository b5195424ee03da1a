"""A trace as Perfetto understood it: slices, parents, arguments, flows, counters, and whether anything was lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from judge.process import TraceProcessor, require_processor

if TYPE_CHECKING:
    from pathlib import Path

# Rows of `stats` that are not zero for a trace without a fault: how long parts of the import took, and how often a
# conversion between clocks was not in a cache.
HARMLESS_STATS = frozenset(
    {"guess_trace_type_duration_ns", "parse_trace_duration_ns", "clock_sync_cache_miss"}
)


@dataclass(frozen=True)
class Slice:
    """A slice in Perfetto's tables; `dur` -1 is one that never ended, `lane` tells siblings of one name apart."""

    id: int
    ts: int
    dur: int
    name: str
    category: str | None
    depth: int
    track: str
    lane: int
    process: str | None
    parent: int | None
    args: dict[str, Any]


class TraceJudge:
    """Answers questions about one trace. Without a processor of its own to share it starts one."""

    def __init__(self, path: Path, processor: TraceProcessor | None = None) -> None:
        self._own = processor is None
        self._processor = processor or require_processor()
        self._processor.load(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processor if this judge started it."""
        if self._own:
            self._processor.close()

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        return self._processor.query(sql)

    def stats(self) -> dict[str, int]:
        """Return all statistics that are not zero, of every severity."""
        rows = self.query("select name, idx, value from stats where value != 0")
        return {row["name"]: row["value"] for row in rows}

    def losses(self) -> dict[str, int]:
        """Return the statistics that say that something was lost or misread; empty for a sound trace."""
        return {name: value for name, value in self.stats().items() if name not in HARMLESS_STATS}

    def slices(self) -> list[Slice]:
        """Return every slice in order of time, the outer before the inner."""
        rows = self.query("""
            select s.id, s.ts, s.dur, s.name, s.category, s.depth, t.name as track, t.id as lane, p.name as process,
                   s.parent_id as parent, s.arg_set_id
            from slice s join track t on s.track_id = t.id
            left join process_track pt on pt.id = t.id left join process p using (upid)
            order by s.ts, s.depth, s.id""")
        args = self._args()
        return [Slice(args=args.get(row.pop("arg_set_id"), {}), **row) for row in rows]

    def _args(self) -> dict[int, dict[str, Any]]:
        """Return the debug annotations of each set of arguments."""
        found: dict[int, dict[str, Any]] = {}
        rows = self.query("""
            select arg_set_id, substr(key, 7) as name, value_type, int_value, string_value, real_value
            from args where key glob 'debug.*'""")
        for row in rows:
            found.setdefault(row["arg_set_id"], {})[row["name"]] = _value(row)
        return found

    def flows(self) -> list[tuple[int, int]]:
        """Return each link of a flow as (slice that it leaves, slice that it reaches)."""
        return [
            (row["slice_out"], row["slice_in"]) for row in self.query("select slice_out, slice_in from flow")
        ]

    def counters(self) -> dict[str, list[tuple[int, float]]]:
        """Return name -> [(ts, value)] of every counter track."""
        found: dict[str, list[tuple[int, float]]] = {}
        rows = self.query(
            "select t.name, c.ts, c.value from counter c join counter_track t on c.track_id = t.id"
        )
        for row in rows:
            found.setdefault(row["name"], []).append((row["ts"], row["value"]))
        return found


def _value(row: dict[str, Any]) -> Any:
    kind = row["value_type"]
    if kind == "bool":
        return bool(row["int_value"])
    return (
        row["real_value"]
        if kind == "real"
        else row["int_value"]
        if kind in {"int", "uint"}
        else row["string_value"]
    )
