"""What profiled passes saw, as slices: queries with their layers inside, and the kernels below them.

worker    profile: framework    query (predict, the layers, operators of the CPU inside it), then a track for each
                                stream of a device and each thread that did something beside the query
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlbundle.trace.columns import SliceColumns
from mlbundle.trace.flows import QUERY_TRACK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlbundle.trace.perfetto import Process, TraceWriter, Track
    from mlbundle.trace.spans import SpanColumns
    from mlbundle.trace.tables import Table

    Int64Array = NDArray[np.int64]
    Mask = NDArray[np.bool_]

# Names that say nothing without the type of the layer: a place in a list, a letter.
_SAYS_NOTHING = re.compile(r"[0-9]+|[A-Za-z]")
CATEGORY_OF_LAYERS, CATEGORY_OF_KERNELS = "framework", "system"
OPERATOR = "operator"
_NONE = -1
# Debug annotation -> column.
_LAYER_NUMBERS = {
    "query": "run",
    "index": "index",
    "param_bytes": "param_bytes",
    "alloc_bytes": "alloc_bytes",
    "flops": "flops",
}
_LAYER_TEXTS = ("name", "original_name", "type", "provider", "shape_in", "shape_out", "flops_source")
_KERNEL_NUMBERS = {
    "query": "run",
    "layer": "layer_index",
    "stream": "stream",
    "correlation": "correlation",
    "bytes": "bytes",
}
_KERNEL_TEXTS = ("kind", "device", "grid", "block")


@dataclass(frozen=True)
class ProfiledPass:
    """One pass that profiled: its level, its queries as spans, its layers and kernels; all of that pass alone."""

    level: str
    spans: SpanColumns
    layers: Table
    kernels: Table


@dataclass(frozen=True)
class _Links:
    """A flow for each pair of an owner and something that it owns; those of one owner follow one another.

    `into`: the flow that leads to each thing that may be owned, 0 for none. `first`, `count`: those of each owner.
    """

    into: Int64Array
    first: Int64Array
    count: Int64Array


def write_profiles(
    writer: TraceWriter, worker: Process, passes: list[ProfiledPass], first_rank: int, first_flow: int
) -> int:
    """Write a group of tracks for each pass; return how many links of flows there are.

    Flows are numbered from `first_flow` on, one for each pair of a query and a layer, or a layer and a kernel.
    """
    links = 0
    for rank, profiled in enumerate(passes, start=first_rank):
        group = writer.track(f"profile: {profiled.level}", worker, rank=rank)
        links += _write_pass(writer, group, profiled, first_flow + links)
    return links


def _write_pass(writer: TraceWriter, group: Track, profiled: ProfiledPass, first_flow: int) -> int:
    """Write the tracks of a pass; return how many links of flows."""
    layers, kernels = profiled.layers, profiled.kernels
    layer_of = _layer_of(layers, kernels)
    to_kernels = _linked(layer_of, len(layers), first_flow)
    call_of = _call_of(profiled.spans, layers)
    links = int(to_kernels.count.sum())
    to_layers = _linked(call_of, len(profiled.spans), first_flow + links)
    links += int(to_layers.count.sum())

    is_operator = _is_text(kernels, "kind", OPERATOR)
    is_inside = is_operator & _lies_in(kernels, layers, layer_of)
    writer.slices(
        writer.track(QUERY_TRACK, group, rank=0),
        _query_slices(profiled.spans, to_layers, profiled.level),
        _layer_slices(layers, to_layers, to_kernels, profiled.level),
        _kernel_slices(kernels, to_kernels, np.flatnonzero(is_inside), profiled.level),
    )
    beside = _places(kernels, is_operator, np.flatnonzero(~is_inside))
    for rank, place in enumerate(sorted(beside), start=1):
        slices = _kernel_slices(kernels, to_kernels, beside[place], profiled.level)
        writer.slices(writer.track(place[1], group, rank=rank), slices)
    return links


def _layer_of(layers: Table, kernels: Table) -> Int64Array:
    """Return the row of the layer that each kernel belongs to, -1 for none."""
    runs, indices = np.unique(layers["run"]), np.unique(layers["index"])
    run, index = _rank(runs, kernels["run"]), _rank(indices, kernels["layer_index"])
    wanted = np.where((run != _NONE) & (index != _NONE), run * len(indices) + index, _NONE)
    return _first_row(_rank(runs, layers["run"]) * len(indices) + _rank(indices, layers["index"]), wanted)


def _call_of(spans: SpanColumns, layers: Table) -> Int64Array:
    """Return the row of the call of the framework that each layer belongs to, -1 for none."""
    calls = np.flatnonzero(spans.parent != _NONE)
    found = _first_row(spans.query[calls], layers["run"])
    return np.where(found != _NONE, calls[found], _NONE) if len(calls) else found


def _rank(values: Int64Array, wanted: Int64Array) -> Int64Array:
    """Return the place of each wanted number among values in ascending order, -1 for what is not there."""
    if not len(values):
        return np.full(len(wanted), _NONE, np.int64)
    place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return np.where(values[place] == wanted, place, _NONE)


def _first_row(keys: Int64Array, wanted: Int64Array) -> Int64Array:
    """Return the first row with each wanted key, -1 where there is none."""
    known, first = np.unique(keys, return_index=True)
    place = _rank(known, wanted)
    return np.where(place != _NONE, first[place], _NONE) if len(known) else place


def _linked(owner: Int64Array, owners: int, first_flow: int) -> _Links:
    """Number the flows from owners to what they own; `owner` is the owner of each thing, -1 for none."""
    owned = np.flatnonzero(owner != _NONE)
    count = np.bincount(owner[owned], minlength=owners)
    into = np.zeros(len(owner), np.int64)
    into[owned[np.argsort(owner[owned], kind="stable")]] = np.arange(first_flow, first_flow + len(owned))
    return _Links(into, first_flow + np.cumsum(count) - count, count)


def _lies_in(kernels: Table, layers: Table, layer_of: Int64Array) -> Mask:
    """Return which kernels lie within the time of their layer."""
    inside = np.zeros(len(kernels), np.bool_)
    owned = np.flatnonzero(layer_of != _NONE)
    layer = layer_of[owned]
    begins_inside = kernels["start_ns"][owned] >= layers["start_ns"][layer]
    inside[owned] = begins_inside & (kernels.end_ns[owned] <= layers.end_ns[layer])
    return inside


def _places(kernels: Table, is_operator: Mask, rows: Int64Array) -> dict[tuple[int, str], Int64Array]:
    """Return which of these kernels go on which track, by its rank and name: threads before streams."""
    device = np.where(is_operator[rows], _NONE, kernels["device"][rows])
    stream = np.maximum(kernels["stream"][rows], _NONE)
    order = np.lexsort((stream, device))
    device, stream = device[order], stream[order]
    cuts = np.flatnonzero((np.diff(device) != 0) | (np.diff(stream) != 0)) + 1
    found: dict[tuple[int, str], Int64Array] = {}
    for first, group in zip([0, *cuts.tolist()], np.split(rows[order], cuts), strict=True):
        if len(group):
            name = None if device[first] == _NONE else kernels.strings[device[first]]
            place = _place(name, int(stream[first]))
            found[place] = np.sort(np.concatenate([found[place], group])) if place in found else group
    return found


def _place(device: str | None, stream: int) -> tuple[int, str]:
    if device is None:
        return 0, "other threads" if stream == _NONE else f"thread {stream}"
    return 1, f"{device or 'device'} {'stream' if stream == _NONE else f'stream {stream}'}"


def labels(layers: Table) -> tuple[Int64Array, tuple[str, ...]]:
    """Return what layers are called for people, as rows of a table of texts that begins with the layers' own.

    Names are those of the model's author, where they are known; one that says nothing comes with the type.
    """
    texts = list(layers.strings)
    says = np.array([bool(text) for text in texts])
    name = np.where(says[layers["original_name"]], layers["original_name"], layers["name"])
    # Numbers are found many times faster than pairs of them.
    pairs, of_row = np.unique(name * len(texts) + layers["type"], return_inverse=True)
    shown = pairs // len(layers.strings)
    for place, pair in enumerate(pairs.tolist()):
        text, kind = divmod(pair, len(layers.strings))
        if texts[kind] and _SAYS_NOTHING.fullmatch(texts[text]):
            shown[place] = len(texts)
            texts.append(f"{texts[text]} ({texts[kind]})")
    return shown[of_row], tuple(texts)


def _with_level(
    names: tuple[str, ...], rows: int, level: str
) -> tuple[tuple[str, ...], dict[str, Int64Array]]:
    """Return the names with the level behind them, and the annotation of all rows that says it."""
    return (*names, level), {"level": np.full(rows, len(names), np.int64)}


def _query_slices(spans: SpanColumns, to_layers: _Links, level: str) -> SliceColumns:
    """Return the queries and their predicts; from each predict a flow leads to each of its layers."""
    names, said = _with_level(spans.strings, len(spans), level)
    return SliceColumns(
        spans.start_ns,
        spans.duration_ns,
        spans.name,
        names,
        category="model",
        flow=to_layers.first,
        flow_count=to_layers.count,
        numbers={"query": spans.query},
        texts=said,
    )


def _layer_slices(layers: Table, to_layers: _Links, to_kernels: _Links, level: str) -> SliceColumns:
    label, texts = labels(layers)
    names, said = _with_level(texts, len(layers), level)
    return SliceColumns(
        layers["start_ns"],
        layers["duration_ns"],
        label,
        names,
        category=CATEGORY_OF_LAYERS,
        flow=to_kernels.first,
        flow_count=to_kernels.count,
        joins_flow=to_layers.into,
        numbers={note: layers[column] for note, column in _LAYER_NUMBERS.items()},
        texts=said | {column: layers[column] for column in _LAYER_TEXTS},
    )


def _kernel_slices(kernels: Table, to_kernels: _Links, rows: Int64Array, level: str) -> SliceColumns:
    is_all = len(rows) == len(kernels)
    table = kernels if is_all else kernels.rows(rows)
    names, said = _with_level(table.strings, len(table), level)
    return SliceColumns(
        table["start_ns"],
        table["duration_ns"],
        table["name"],
        names,
        category=CATEGORY_OF_KERNELS,
        joins_flow=to_kernels.into if is_all else to_kernels.into[rows],
        numbers={note: table[column] for note, column in _KERNEL_NUMBERS.items()},
        texts=said | {column: table[column] for column in _KERNEL_TEXTS},
    )


def _is_text(table: Table, column: str, text: str) -> Mask:
    """Return the rows that have this text in this column."""
    return np.array([string == text for string in table.strings], np.bool_)[table[column]]
