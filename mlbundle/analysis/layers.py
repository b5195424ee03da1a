"""Layers and kernels over the profiled queries of a run: XSP's analyses A2 to A7 and A10.

A profile sees the same query several times. A layer is known by its name, its type and which time of that name it is
within the query, so one that runs several times is as many rows, and layers that begin in another order are not mixed.
Times are of the pass that looked least deep: a deeper look costs time itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.analysis.statistics import trimmed_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from mlbundle.trace.tables import Table

    Int64Array = NDArray[np.int64]

SORTS = ("order", "latency", "memory", "flops", "name")
"""By what layers can be sorted; numbers the largest first, `latency` by the median."""

_TEXTS = ("name", "original_name", "type", "provider", "shape_in", "shape_out", "flops_source")


@dataclass(frozen=True)
class LayerRow:
    """A layer over all profiled queries (A2, A3, A4).

    `order`: its place in the query. `latency_ns` is the trimmed mean over the queries, `p50_ns` the median, `share` its
    part of the sum over all layers. Bytes and operations are None where they are not known; `alloc_bytes` is the median
    of what the layer allocated, `flops` the operations of one query.
    """

    order: int
    name: str
    original_name: str
    type: str
    provider: str
    shape_in: str
    shape_out: str
    latency_ns: float
    p50_ns: int
    share: float
    queries: int
    alloc_bytes: int | None
    param_bytes: int | None
    flops: int | None
    flops_source: str

    @property
    def flops_per_s(self) -> float | None:
        """Operations a second while the layer runs."""
        return None if self.flops is None or not self.latency_ns else self.flops * 1e9 / self.latency_ns


@dataclass(frozen=True)
class TypeRow:
    """All layers of a type (A5, A6, A7): how many, the sums of their latencies and of what they allocated."""

    type: str
    layers: int
    p50_ns: int
    latency_ns: float
    share: float
    alloc_bytes: int | None
    flops: int | None


@dataclass(frozen=True)
class KernelRow:
    """All kernels of a name (A10): how many in a query, and their time in a query (trimmed mean over the queries)."""

    name: str
    kind: str
    per_query: float
    latency_ns: float
    each_ns: float
    share: float
    bytes: int | None


def layer_rows(table: Table) -> list[LayerRow]:
    """Return a row for each layer, in the order in which they run in a query."""
    import numpy as np

    table = _shallowest(table)
    if len(table) == 0:
        return []
    groups = _groups(table)
    found = []
    for rows in groups:
        times = table["duration_ns"][rows]
        first = int(rows[0])
        texts = {name: table.strings[table[name][first]] for name in _TEXTS}
        found.append((
            float(np.median(table["index"][rows])),
            {
                **texts,
                "latency_ns": trimmed_mean(times),
                "p50_ns": int(np.sort(times)[(len(times) - 1) // 2]),
                "queries": len(rows),
                "alloc_bytes": _known_median(table["alloc_bytes"][rows]),
                "param_bytes": _known_median(table["param_bytes"][rows]),
                "flops": _known_median(table["flops"][rows]),
            },
        ))  # fmt: skip
    found.sort(key=lambda entry: entry[0])
    total = sum(values["latency_ns"] for _, values in found) or 1.0
    return [
        LayerRow(order=order, share=values["latency_ns"] / total, **values)
        for order, (_, values) in enumerate(found)
    ]


def sort_layers(rows: Sequence[LayerRow], sort: str) -> list[LayerRow]:
    """Return layers by one of SORTS; layers that are alike stay in their order. Raises KeyError."""
    return sorted(rows, key=_KEYS[sort])


_KEYS: dict[str, Callable[[LayerRow], Any]] = {
    "order": lambda row: row.order,
    "latency": lambda row: -row.p50_ns,
    "memory": lambda row: -_or_least(row.alloc_bytes),
    "flops": lambda row: -_or_least(row.flops),
    "name": lambda row: row.original_name or row.name,
}


def sort_kernels(rows: Sequence[KernelRow], sort: str) -> list[KernelRow]:
    """Return kernels by latency, each, count, bytes or name; equal ones stay in their order. Raises KeyError."""
    return sorted(rows, key=_KERNEL_KEYS[sort])


_KERNEL_KEYS: dict[str, Callable[[KernelRow], Any]] = {
    "latency": lambda row: -row.latency_ns,
    "each": lambda row: -row.each_ns,
    "count": lambda row: -row.per_query,
    "bytes": lambda row: -_or_least(row.bytes),
    "name": lambda row: row.name,
}


def by_type(rows: Sequence[LayerRow]) -> list[TypeRow]:
    """Return a row for each type of layers, the one that takes longest first."""
    types: dict[str, list[LayerRow]] = {}
    for row in rows:
        types.setdefault(row.type, []).append(row)
    found = [
        TypeRow(
            type=name,
            layers=len(members),
            p50_ns=sum(row.p50_ns for row in members),
            latency_ns=sum(row.latency_ns for row in members),
            share=sum(row.share for row in members),
            alloc_bytes=_known_sum([row.alloc_bytes for row in members]),
            flops=_known_sum([row.flops for row in members]),
        )
        for name, members in types.items()
    ]
    return sorted(found, key=lambda row: (-row.p50_ns, row.type))


def kernel_rows(table: Table) -> list[KernelRow]:
    """Return a row for each name of kernels, the one that takes longest first.

    Queries in which a kernel did not run count as 0.
    """
    import numpy as np

    table = _shallowest(table)
    if len(table) == 0:
        return []
    runs, run = np.unique(table["run"], return_inverse=True)
    order = np.lexsort((table["kind"], table["name"]))
    keys = np.stack([table["name"], table["kind"]])[:, order]
    bounds = np.flatnonzero(np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)])
    found = []
    for rows in np.split(order, bounds[1:]):
        times, moved = table["duration_ns"][rows], table["bytes"][rows]
        per_query = np.bincount(run[rows], weights=times, minlength=len(runs))
        found.append((
            trimmed_mean(per_query),
            {
                "name": table.strings[table["name"][rows[0]]],
                "kind": table.strings[table["kind"][rows[0]]],
                "per_query": len(rows) / len(runs),
                "each_ns": float(times.mean()),
                "bytes": None if (moved < 0).any() else int(moved.sum()) // len(runs),
            },
        ))  # fmt: skip
    total = sum(latency_ns for latency_ns, _ in found) or 1.0
    made = [
        KernelRow(latency_ns=latency_ns, share=latency_ns / total, **values) for latency_ns, values in found
    ]
    return sorted(made, key=lambda row: (-row.latency_ns, row.name))


def _shallowest(table: Table) -> Table:
    """Return the rows of the first pass that has any: passes go deeper one after another."""
    return table.rows(table["pass"] == table["pass"].min()) if len(table) else table


def _groups(table: Table) -> list[Int64Array]:
    """Return the rows of each layer: those of one name and type that are the same time of that name in their query."""
    import numpy as np

    columns = table["run"], table["type"], table["name"]
    order = np.lexsort((table["index"], *columns))
    run, kind, name = (column[order] for column in columns)
    begins = np.r_[True, (run[1:] != run[:-1]) | (kind[1:] != kind[:-1]) | (name[1:] != name[:-1])]
    starts = np.flatnonzero(begins)
    which = np.arange(len(order)) - starts[np.cumsum(begins) - 1]
    by_layer = np.lexsort((run, which, kind, name))
    keys = np.stack([name, kind, which])[:, by_layer]
    bounds = np.flatnonzero(np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)])
    return np.split(order[by_layer], bounds[1:])


def _known_median(values: Int64Array) -> int | None:
    import numpy as np

    known = np.sort(values[values >= 0])
    return int(known[(len(known) - 1) // 2]) if len(known) else None


def _known_sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _or_least(value: int | None) -> int:
    return -1 if value is None else value
