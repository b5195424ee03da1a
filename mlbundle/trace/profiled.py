"""What profiled passes saw, as slices: queries with their layers inside, and the kernels below them.

worker    profile: framework    query (predict, the layers, operators of the CPU inside it), then a track for each
                                stream of a device and each thread that did something beside the query
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.trace.flows import QUERY_TRACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mlbundle.trace.perfetto import Process, TraceWriter, Track, Value
    from mlbundle.trace.spans import SpanColumns
    from mlbundle.trace.tables import Table

CATEGORY_OF_LAYERS, CATEGORY_OF_KERNELS = "framework", "system"
OPERATOR = "operator"
_UNKNOWN = -1
_LAYER_ARGS = ("type", "provider", "shape_in", "shape_out", "original_name", "flops", "flops_source")
_LAYER_NUMBER_ARGS = ("index", "param_bytes", "alloc_bytes")
_KERNEL_ARGS = ("kind", "device", "stream", "correlation", "bytes", "grid", "block")


@dataclass(frozen=True)
class ProfiledPass:
    """One pass that profiled: its level, its queries as spans, its layers and kernels; all of that pass alone."""

    level: str
    spans: SpanColumns
    layers: Table
    kernels: Table


@dataclass(frozen=True)
class _Row:
    """A slice that is to be written: where, when, what, and the flows that begin and end at it."""

    start_ns: int
    end_ns: int
    depth: int
    name: str
    category: str
    args: Mapping[str, Value]
    flows: tuple[int, ...] = ()
    ends_flows: tuple[int, ...] = ()

    def key(self) -> tuple[int, int, int]:
        """Return what slices of a track are ordered by: the outer before the inner."""
        return self.start_ns, -self.end_ns, self.depth


def write_profiles(
    writer: TraceWriter, worker: Process, passes: list[ProfiledPass], first_rank: int, first_flow: int
) -> int:
    """Write a group of tracks for each pass; return how many links of flows there are.

    Flows are numbered from `first_flow` on, one for each pair of a query and a layer, or a layer and a kernel.
    """
    number = first_flow
    for rank, profiled in enumerate(passes, start=first_rank):
        group = writer.track(f"profile: {profiled.level}", worker, rank=rank)
        number = _write_pass(writer, group, profiled, number)
    return number - first_flow


def _write_pass(writer: TraceWriter, group: Track, profiled: ProfiledPass, flow: int) -> int:
    links = _Links(flow)
    layers = _layer_rows(profiled, links)
    beside: dict[tuple[int, str], list[_Row]] = defaultdict(list)
    inside = [*layers.rows]
    for place, row in _kernel_rows(profiled, layers):
        (inside if place is None else beside[place]).append(row)
    inside += _query_rows(profiled, links)
    _write_rows(writer, writer.track(QUERY_TRACK, group, rank=0), inside)
    for rank, place in enumerate(sorted(beside), start=1):
        _write_rows(writer, writer.track(place[1], group, rank=rank), beside[place])
    return links.next


class _Links:
    """Numbers flows, and remembers which begin at a query or a layer."""

    def __init__(self, first: int) -> None:
        self.next = first
        self.of_query: dict[int, list[int]] = defaultdict(list)

    def take(self) -> int:
        """Return a number for a new flow."""
        self.next += 1
        return self.next - 1


class _Layers:
    """The layers of a pass as rows; found again by query and index."""

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.bounds: dict[tuple[int, int], tuple[int, int]] = {}
        self.flows: dict[tuple[int, int], list[int]] = {}


def _layer_rows(profiled: ProfiledPass, links: _Links) -> _Layers:
    found, table = _Layers(), profiled.layers
    places = list(zip(table["run"].tolist(), table["index"].tolist(), strict=True))
    found.flows = {place: [] for place in places}
    kernels = profiled.kernels
    for place in zip(kernels["run"].tolist(), kernels["layer_index"].tolist(), strict=True):
        if place in found.flows:
            found.flows[place].append(links.take())
    ends = table.end_ns.tolist()
    reader = _reader(table, (*_LAYER_NUMBER_ARGS, *_LAYER_ARGS))
    names, starts = table.texts("name"), table["start_ns"].tolist()
    for row, (run, index) in enumerate(places):
        flow = links.take()
        links.of_query[run].append(flow)
        found.bounds[run, index] = (starts[row], ends[row])
        found.rows.append(
            _Row(
                starts[row],
                ends[row],
                2,
                names[row],
                CATEGORY_OF_LAYERS,
                {"query": run, **reader(row)},
                tuple(found.flows[run, index]),
                (flow,),
            )
        )
    return found


def _kernel_rows(profiled: ProfiledPass, layers: _Layers) -> Iterator[tuple[tuple[int, str] | None, _Row]]:
    """Yield where each kernel goes, None for inside its layer, and its row."""
    table = profiled.kernels
    reader = _reader(table, _KERNEL_ARGS)
    kinds, devices, names = table.texts("kind"), table.texts("device"), table.texts("name")
    starts, ends, streams = table["start_ns"].tolist(), table.end_ns.tolist(), table["stream"].tolist()
    waiting = {key: iter(flows) for key, flows in layers.flows.items()}
    for row, key in enumerate(zip(table["run"].tolist(), table["layer_index"].tolist(), strict=True)):
        flow = next(waiting[key]) if key in waiting else None
        bounds = layers.bounds.get(key)
        is_operator = kinds[row] == OPERATOR
        inside = is_operator and bounds is not None and bounds[0] <= starts[row] and ends[row] <= bounds[1]
        if inside:
            place = None
        elif is_operator:
            place = (0, f"thread {streams[row]}" if streams[row] >= 0 else "other threads")
        else:
            stream = f"stream {streams[row]}" if streams[row] >= 0 else "stream"
            place = (1, f"{devices[row] or 'device'} {stream}")
        yield (
            place,
            _Row(
                starts[row],
                ends[row],
                3,
                names[row],
                CATEGORY_OF_KERNELS,
                {"query": key[0], "layer": key[1], **reader(row)},
                ends_flows=() if flow is None else (flow,),
            ),
        )


def _query_rows(profiled: ProfiledPass, links: _Links) -> Iterator[_Row]:
    """Yield the queries and their predicts; from each predict a flow leads to each of its layers."""
    spans = profiled.spans
    starts, ends = spans.start_ns.tolist(), spans.end_ns.tolist()
    for row, (name, parent, query) in enumerate(
        zip(spans.name.tolist(), spans.parent.tolist(), spans.query.tolist(), strict=True)
    ):
        is_inner = parent != _UNKNOWN
        flows = tuple(links.of_query.get(query, ())) if is_inner else ()
        yield _Row(
            starts[row], ends[row], int(is_inner), spans.strings[name], "model", {"query": query}, flows
        )


def _write_rows(writer: TraceWriter, track: Track, rows: list[_Row]) -> None:
    for row in sorted(rows, key=_Row.key):
        writer.slice(
            track,
            row.name,
            row.start_ns,
            row.end_ns,
            category=row.category,
            args=row.args,
            flows=row.flows,
            ends_flows=row.ends_flows,
        )


def _reader(table: Table, names: tuple[str, ...]) -> Callable[[int], dict[str, Any]]:
    """Return what gives the columns of a row that are known, by name."""
    columns: list[tuple[str, list[Any], Any]] = []
    for name in names:
        is_text = name in table.kind.texts
        columns.append(
            (name, table.texts(name) if is_text else table[name].tolist(), "" if is_text else _UNKNOWN)
        )

    def read(row: int) -> dict[str, Any]:
        return {name: values[row] for name, values, unknown in columns if values[row] != unknown}

    return read
