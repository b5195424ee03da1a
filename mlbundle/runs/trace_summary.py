"""Where the time of a traced run went: its steps pass by pass, its layers, its phases; also of one that broke off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import MlbundleError, ReferenceNotFound
from mlbundle.runs.catalog import show_run
from mlbundle.runs.folder import TRACE
from mlbundle.runs.seen import events_of
from mlbundle.wire.events import Result
from mlbundle.wire.passes import folder_number, is_profile

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.analysis.layers import LayerRow
    from mlbundle.config import Settings
    from mlbundle.trace.spans import SpanColumns

SCHEMA = "mlbundle/trace-summary/v1"
_UNFINISHED = "not whole"


@dataclass(frozen=True)
class LayerTimes:
    """The layers of the pass that looked least deep, the slowest first, and their types.

    `query_ns`: the median of that pass's queries; shares are of it. `ratio`: what the profiler makes of a query, None
    where it is not known.
    """

    pass_name: str
    queries: int
    query_ns: int
    ratio: float | None
    layers: list[dict[str, Any]]
    types: list[dict[str, Any]]


@dataclass(frozen=True)
class TraceSummary:
    """What a run's columns say. `rows`: a row for each step of each pass; `phases_s`: those that were done."""

    run_id: str
    status: str
    phase: str | None
    phases_s: dict[str, float]
    rows: list[dict[str, Any]]
    layers: LayerTimes | None

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON: all layers and all types."""
        found = self.layers
        profile = found and {
            "pass": found.pass_name,
            "queries": found.queries,
            "query_p50_ns": found.query_ns,
            "ratio": found.ratio,
        }
        return {
            "schema": SCHEMA,
            "run_id": self.run_id,
            "status": self.status,
            "phase": self.phase,
            "phases_s": self.phases_s,
            "rows": self.rows,
            "profile": profile,
            "layers": found.layers if found else [],
            "types": found.types if found else [],
        }


def trace_summary(settings: Settings, run: str) -> TraceSummary:
    """Return where the time of a traced run went, times in ns; of one that broke off what there is.

    Raises ReferenceNotFound when there is no such run or it was not traced, ProtocolBroken for damaged columns.
    """
    record = show_run(settings, run)
    folder = settings.runs_dir / record["run_id"]
    spans = _spans(folder)
    if spans is None and not (folder / TRACE).is_file():
        raise ReferenceNotFound(
            f"run {record['run_id']} has no trace", where=str(folder), hint=_why_none(record)
        )
    names = pass_names(folder)
    return TraceSummary(
        run_id=record["run_id"],
        status=record["status"],
        phase=(record.get("seen") or {}).get("phase"),
        phases_s=record.get("phases_s") or {},
        rows=[] if spans is None else _step_rows(spans, names),
        layers=_layer_times(folder, spans, names, record),
    )


def _why_none(record: dict[str, Any]) -> str:
    if record.get("trace_level") == "none":
        return "run again with --trace model (the default), framework, system or full"
    return f"it is {record['status']}: it ended before there was anything to show"


def _spans(folder: Path) -> SpanColumns | None:
    from mlbundle.runs.collect import load_all_spans
    from mlbundle.trace.spans import load_spans

    path = folder / "spans.npz"
    if path.is_file():
        return load_spans(path)
    found = load_all_spans(folder, 0)
    return found if len(found) else None


def pass_names(folder: Path) -> dict[int, str]:
    """Return the number of each pass that came -> its name: its kind, with its level or its number where need be."""
    numbered = {folder_number(f"passes/{path.name}"): path.name for path in folder.glob("passes/*-*")}
    kinds = {number: name.partition("-")[2] for number, name in numbered.items() if number is not None}
    several = {kind for kind in kinds.values() if list(kinds.values()).count(kind) > 1}
    found = {number: numbered[number] if kind in several else kind for number, kind in kinds.items()}
    found |= {number: f"profile: {_UNFINISHED}" for number, kind in kinds.items() if kind == "profile"}
    for event in events_of(folder):
        if isinstance(event, Result) and is_profile(event.pass_kind):
            number = folder_number(str(event.values.get("folder")))
            if number in found:
                found[number] = ": ".join(event.pass_kind.split(":", 1))
    return found


def _step_rows(spans: SpanColumns, names: dict[int, str]) -> list[dict[str, Any]]:
    from mlbundle.trace.summary import summarise

    return [
        {
            "pass": names.get(row.pass_number, str(row.pass_number)),
            "step": row.name,
            "count": row.count,
            "total_ns": row.total_ns,
            "mean_ns": row.mean_ns,
            "p50_ns": row.p50_ns,
        }
        for row in summarise(spans)
    ]


def _layer_times(
    folder: Path, spans: SpanColumns | None, names: dict[int, str], record: dict[str, Any]
) -> LayerTimes | None:
    from mlbundle.analysis.layers import layer_rows
    from mlbundle.trace.tables import LAYERS, load_table

    path = folder / "layers.npz"
    table = load_table(path, LAYERS) if path.is_file() else None
    if table is None or not len(table):
        return None
    number = int(table["pass"].min())
    name = names.get(number, str(number))
    rows = sorted(layer_rows(table), key=lambda row: (-row.p50_ns, row.order))
    queries, query_ns = _query_ns(spans, number)
    whole_ns = query_ns or sum(row.p50_ns for row in rows) or 1
    level = name.partition(": ")[2]
    said: dict[str, Any] = next((one for one in record.get("profiles") or [] if one["level"] == level), {})
    layers = [_layer_document(row, whole_ns) for row in rows]
    return LayerTimes(name, queries, query_ns, said.get("ratio"), layers, _types(layers, whole_ns))


def _query_ns(spans: SpanColumns | None, number: int) -> tuple[int, int]:
    """Return how many queries a pass had, and their median by nearest rank; zeros where nothing is known."""
    from mlbundle.trace.summary import summarise

    rows = [] if spans is None else summarise(spans)
    return next(
        ((row.count, row.p50_ns) for row in rows if row.pass_number == number and row.name == "query"), (0, 0)
    )


def _layer_document(row: LayerRow, whole_ns: int) -> dict[str, Any]:
    return {
        "order": row.order,
        "name": row.name,
        "original_name": row.original_name,
        "type": row.type,
        "p50_ns": row.p50_ns,
        "trimmed_mean_ns": row.latency_ns,
        "share": row.p50_ns / whole_ns,
        "queries": row.queries,
        "shape_in": row.shape_in,
        "shape_out": row.shape_out,
        "alloc_bytes": row.alloc_bytes,
        "param_bytes": row.param_bytes,
        "flops": row.flops,
    }


def _types(layers: list[dict[str, Any]], whole_ns: int) -> list[dict[str, Any]]:
    """Return the layers of each type: how many, the sum of their medians, their share of a query."""
    count: dict[str, int] = {}
    sum_ns: dict[str, int] = {}
    for layer in layers:
        count[layer["type"]] = count.get(layer["type"], 0) + 1
        sum_ns[layer["type"]] = sum_ns.get(layer["type"], 0) + layer["p50_ns"]
    found = [
        {"type": name, "layers": count[name], "p50_ns": total, "share": total / whole_ns}
        for name, total in sum_ns.items()
    ]
    return sorted(found, key=lambda row: (-row["p50_ns"], row["type"]))


def slowest_layer(folder: Path) -> LayerRow | None:
    """Return the layer of a run with the longest median, None where there is none that can be read."""
    from mlbundle.analysis.layers import layer_rows
    from mlbundle.trace.tables import LAYERS, load_table

    path = folder / "layers.npz"
    try:
        rows = layer_rows(load_table(path, LAYERS)) if path.is_file() else []
    except MlbundleError:  # the table of results is shown all the same; `trace summary` says what is wrong
        return None
    return max(rows, key=lambda row: row.p50_ns, default=None)
