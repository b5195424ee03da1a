"""What the passes that profile found, checked: `result.profiles` of a record, and the tables of layers and kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import ProtocolBroken
from mlbundle.runs.measured import count, load_times, not_said
from mlbundle.runtime.facts import capped
from mlbundle.wire.events import Warned
from mlbundle.wire.passes import (
    KERNELS,
    LATENCIES,
    LAYERS,
    MOST_FOLDERS,
    UNPROFILED,
    folder_number,
    is_profile,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from mlbundle.trace.profiled import ProfiledPass
    from mlbundle.trace.spans import SpanColumns
    from mlbundle.trace.tables import Table, TableKind
    from mlbundle.wire.events import Event, Result

_MOST_NOTES, _MOST_TEXT = 32, 1000
_LEVELS = ("framework", "system", "serial")
# What the worker's warning about a profile that failed is called.
_FAILED = "profile-failed"


@dataclass(frozen=True)
class ProfileFindings:
    """One pass that profiled: where its files are, how deep it looked, and what a record says of it."""

    folder: str
    number: int
    level: str
    document: Mapping[str, Any]


def read_profiles(folder: Path, results: Mapping[str, Result]) -> list[ProfileFindings]:
    """Return what the passes that profile said, in the order in which they ran. Raises ProtocolBroken."""
    found = [_read(folder, name, result.values) for name, result in results.items() if is_profile(name)]
    # Rows are told apart by the number of their pass: no two have the same, whatever their kind.
    if any(len(list(folder.glob(f"passes/{one.number:02d}-*"))) != 1 for one in found):
        raise not_said("folder")
    if len({one.number for one in found}) != len(found):
        raise not_said("folder")
    return sorted(found, key=lambda one: one.number)


def load_profiled(
    folder: Path, profiles: Sequence[ProfileFindings], kind: TableKind, clock_offset_ns: int = 0
) -> Table:
    """Return the rows of a kind from all passes that profiled, on the host's clock.

    Rows whose times can't be on it are left out. Raises ProtocolBroken.
    """
    from mlbundle.trace.tables import empty_table, load_table, merge_tables

    parts = []
    for profile in profiles:
        path = folder / profile.folder / {"layers": LAYERS, "kernels": KERNELS}[kind.name]
        table = load_table(path, kind) if path.is_file() else empty_table(kind)
        if len(table) != profile.document[kind.name]:
            raise ProtocolBroken(f"the {kind.name} are not as many as the worker said", where=str(path))
        _check_runs(table, profile, str(path))
        parts.append((profile.number, table.shifted(clock_offset_ns) if clock_offset_ns else table))
    return merge_tables(kind, parts)


def _check_runs(table: Table, profile: ProfileFindings, where: str) -> None:
    """Raise ProtocolBroken unless all rows are of queries that there were, and no two layers of a query are one."""
    import numpy as np

    if (table["run"] >= profile.document["queries"]).any():
        raise ProtocolBroken(f"the {table.kind.name} are of queries that there were not", where=where)
    if table.kind.name != "layers":
        return
    order = np.lexsort((table["index"], table["run"]))
    run, index = table["run"][order], table["index"][order]
    if ((run[1:] == run[:-1]) & (index[1:] == index[:-1])).any():
        raise ProtocolBroken("two layers of a query have the same number", where=where)


def profiled_passes(
    folder: Path,
    profiles: Sequence[ProfileFindings],
    spans: SpanColumns,
    tables: tuple[Table, Table],
) -> tuple[list[ProfiledPass], SpanColumns]:
    """Return each pass that profiled with its own rows of layers and kernels, and the spans of what was measured.

    What a profile that failed had sent before is in neither.
    """
    import numpy as np

    from mlbundle.trace.profiled import ProfiledPass
    from mlbundle.trace.spans import select_spans
    from mlbundle.wire.columns import PASS

    layers, kernels = tables
    passes = [
        ProfiledPass(
            level=profile.level,
            spans=select_spans(spans, spans.pass_number == profile.number),
            layers=layers.rows(layers[PASS] == profile.number),
            kernels=kernels.rows(kernels[PASS] == profile.number),
        )
        for profile in profiles
    ]
    numbers = [folder_number(f"passes/{path.name}") for path in folder.glob("passes/*-profile")]
    profiled = np.isin(spans.pass_number, [number for number in numbers if number is not None])
    return passes, select_spans(spans, ~profiled)


def profile_notes(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a reader of the trace has to know of its profiles."""
    found = []
    for document in documents:
        level = document["level"]
        if document.get("missing"):
            found.append(f"profile: {level}: it failed{_because(document)}")
            continue
        if "ratio" in document:
            found.append(
                f"profile: {level}: queries take x{document['ratio']:.2f} of what they take without it"
            )
        found += [f"profile: {level}: {note}" for note in document["notes"]]
    return found


def _because(document: Mapping[str, Any]) -> str:
    return f": {document['error']}" if document.get("error") else ""


def profiles_document(
    wanted: Sequence[str], profiles: Sequence[ProfileFindings], events: Iterable[Event]
) -> list[dict[str, Any]]:
    """Return what a record says of the passes that profile: those that came, and why those failed that did not."""
    came = {profile.level: dict(profile.document) for profile in profiles}
    levels = [name.partition(":")[2] for name in wanted if is_profile(name)]
    errors = _errors(events) if len(came) < len(levels) else {}
    return [
        came.get(level)
        or {"level": level, "missing": True} | ({"error": errors[level]} if level in errors else {})
        for level in levels
    ]


def _errors(events: Iterable[Event]) -> dict[str, str]:
    """Return the level of each profile that failed -> why; it is said as `profile:LEVEL: why`."""
    found: dict[str, str] = {}
    for event in events:
        if isinstance(event, Warned) and event.reference == _FAILED and is_profile(event.message):
            level, _, why = event.message.partition(":")[2].partition(": ")
            found.setdefault(level, "".join(c if c.isprintable() else " " for c in why[:_MOST_TEXT]))
    return found


def _read(folder: Path, name: str, values: Mapping[str, Any]) -> ProfileFindings:
    place, level = values.get("folder"), values.get("level")
    if not isinstance(place, str) or not place.endswith("-profile") or place.count("/") != 1:
        raise not_said("folder")
    number = folder_number(place)
    if number is None or number >= MOST_FOLDERS:
        raise not_said("folder")
    if level not in _LEVELS or name != f"profile:{level}":
        raise not_said("level")
    queries, plain_queries = count(values, "queries"), count(values, "unprofiled_queries", least=1)
    unprofiled = load_times(folder, f"{place}/{UNPROFILED}", plain_queries)
    compared = _compared(queries or plain_queries, plain_queries, count(values, "batches", least=1))
    document: dict[str, Any] = {
        "level": level,
        "queries": queries,
        "unprofiled_queries": plain_queries,
        "batch_size": count(values, "batch_size", least=1),
        "unprofiled_p50_ns": _median(unprofiled, compared),
        "layers": count(values, "layers"),
        "kernels": count(values, "kernels"),
        "notes": _notes(values.get("notes")),
        "facts": _facts(values.get("facts")),
    }
    if queries:
        document["profiled_p50_ns"] = _median(load_times(folder, f"{place}/{LATENCIES}", queries), compared)
        document["compared_queries"] = compared
        document["ratio"] = document["profiled_p50_ns"] / max(1, document["unprofiled_p50_ns"])
    return ProfileFindings(place, number, level, document)


def _compared(queries: int, plain_queries: int, batches: int) -> int:
    """Return how many queries of both loops, from the first on, are compared: the same ones, in whole rounds."""
    both = min(queries, plain_queries)
    return both - both % batches if both >= batches else both


def _median(times: Any, first: int) -> int:
    from mlbundle.analysis.statistics import percentile, sorted_array

    if int(times.min()) < 0:
        raise not_said("latencies")
    return int(percentile(sorted_array(times[:first]), 0.5))


def _notes(value: Any) -> list[str]:
    if not isinstance(value, list) or len(value) > _MOST_NOTES:
        raise not_said("notes")
    if not all(isinstance(note, str) and len(note) <= _MOST_TEXT and note.isprintable() for note in value):
        raise not_said("notes")
    return value


def _facts(value: Any) -> Any:
    if not isinstance(value, dict):
        raise not_said("facts")
    return capped(value)
