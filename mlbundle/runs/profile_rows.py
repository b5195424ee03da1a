"""Rows of layers and kernels held against what the host knows of their pass: none is believed to be of another time.

A worker looks at its rows itself, but a worker's word is no proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mlbundle.runs.profiles import load_profiled
from mlbundle.trace.tables import KERNELS, LAYERS
from mlbundle.wire.columns import DEVICE_CLOCK_NS, DEVICE_MARGIN_NS, PASS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mlbundle.runs.profiles import ProfileFindings
    from mlbundle.trace.spans import SpanColumns
    from mlbundle.trace.tables import Table

    Mask = NDArray[np.bool_]
    Between = tuple[int, int]

_PROFILE = "profile"
_ROUNDING_NS = 10_000


def load_rows(
    folder: Path,
    profiles: Sequence[ProfileFindings],
    spans: SpanColumns,
    during_ns: Between,
    clock_offset_ns: int,
) -> tuple[Table, Table]:
    """Return layers and kernels of all passes that profiled, without those that can't have been.

    Those are layers outside of their query, and anything outside of the time in which was profiled (`during_ns`); a
    device may go on for a while after it. All times are the host's. Raises ProtocolBroken.
    """
    layers, kernels = (load_profiled(folder, profiles, kind, clock_offset_ns) for kind in (LAYERS, KERNELS))
    begun, ended = during_ns
    in_time = (layers["start_ns"] >= begun) & (layers.end_ns <= ended)
    inside = in_time & _in_their_query(layers, spans)
    run = (kernels["start_ns"] >= begun - DEVICE_CLOCK_NS) & (kernels.end_ns <= ended + DEVICE_MARGIN_NS)
    return layers.rows(inside), kernels.rows(run)


def profiled_during(phases: Sequence[tuple[str, int, int | None]], run_ns: Between) -> Between:
    """Return when was profiled: from the first phase of that name to the last one's end, all the run without any.

    Phases are the worker's words, so what they say is cut to the time of the run, which is ours.
    """
    said = [
        (begun, run_ns[1] if ended is None else ended) for name, begun, ended in phases if name == _PROFILE
    ]
    begun = max([run_ns[0], min(start for start, _ in said)]) if said else run_ns[0]
    ended = min([run_ns[1], max(end for _, end in said)]) if said else run_ns[1]
    return begun, ended


def kept_documents(
    documents: Sequence[Mapping[str, Any]],
    profiles: Sequence[ProfileFindings],
    tables: Sequence[Table],
) -> list[dict[str, Any]]:
    """Return what a record says of the passes that profile, with the rows that were kept of each."""
    number_of = {profile.level: profile.number for profile in profiles}
    return [
        dict(one) if one["level"] not in number_of else _kept(one, number_of[one["level"]], tables)
        for one in documents
    ]


def _kept(document: Mapping[str, Any], number: int, tables: Sequence[Table]) -> dict[str, Any]:
    kept = {**document, "notes": list(document["notes"])}
    for table in tables:
        name, count = table.kind.name, int((table[PASS] == number).sum())
        if count < kept[name]:
            kept["notes"].append(f"{kept[name] - count} {name} are left out: their times can't be")
            kept[name] = count
    return kept


def _in_their_query(layers: Table, spans: SpanColumns) -> Mask:
    """Return which layers lie within the query that they are of; those of a pass without queries can't be told."""
    inside = np.ones(len(layers), np.bool_)
    for number in np.unique(layers[PASS]).tolist():
        here = np.flatnonzero(layers[PASS] == number)
        queries = np.flatnonzero((spans.pass_number == number) & (spans.parent < 0) & (spans.query >= 0))
        if not len(queries):
            continue
        queries = queries[np.argsort(spans.query[queries], kind="stable")]
        known = spans.query[queries]
        place = np.minimum(np.searchsorted(known, layers["run"][here]), len(known) - 1)
        query = queries[place]
        inside[here] = (
            (known[place] == layers["run"][here])
            & (layers["start_ns"][here] >= spans.start_ns[query] - _ROUNDING_NS)
            & (layers.end_ns[here] <= spans.end_ns[query] + _ROUNDING_NS)
        )
    return inside
