"""Chrome's trace events (JSON), for tools that know nothing newer.

Format: "Trace Event Format", complete events (`X`), counters (`C`), metadata (`M`). Times are microseconds, written
with all three decimals and counted from the first event: as doubles they would lose nanoseconds otherwise. Slices of a
thread must nest, so those that overlap go to another thread of the same name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mlbundle.trace.nesting import assign_lanes
from mlbundle.trace.profiled import CATEGORY_OF_KERNELS, CATEGORY_OF_LAYERS, labels
from mlbundle.trace.spans import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from mlbundle.trace.export import RunColumns
    from mlbundle.trace.samples import SampleColumns
    from mlbundle.trace.spans import SpanColumns
    from mlbundle.trace.tables import Table

    Int64Array = NDArray[np.int64]

_WORKER, _LAYERS, _KERNELS, _COUNTERS = 1, 2, 3, 4
# Perfetto takes the same thread number in two processes for one thread, and number 0 for that of an idle CPU.
_FIRST_THREAD = {_WORKER: 1_000, _LAYERS: 1_000_000, _KERNELS: 2_000_000}
_PROCESSES = {_WORKER: "worker", _LAYERS: "layers", _KERNELS: "kernels", _COUNTERS: "counters"}
_LAYER_FACTS = ("name", "original_name", "type", "provider", "shape_in", "shape_out", "flops_source")
# What a number is called -> its column, as in the trace.
_LAYER_NUMBERS = {
    "query": "run",
    "index": "index",
    "alloc_bytes": "alloc_bytes",
    "param_bytes": "param_bytes",
    "flops": "flops",
}
_KERNEL_FACTS = ("kind", "device", "grid", "block")
_KERNEL_NUMBERS = {"query": "run", "layer": "layer_index", "correlation": "correlation", "bytes": "bytes"}


def chrome_events(columns: RunColumns, title: str) -> Iterator[bytes]:
    """Yield a JSON document in pieces: its head, one event a line, its end."""
    origin = _origin(columns)
    head = {"title": title, "clock": "CLOCK_MONOTONIC", "first_event_ns": str(origin)}
    yield f'{{"displayTimeUnit":"ns","otherData":{_json(head)},"traceEvents":[\n'.encode("utf-8", "replace")
    comma = ""
    for event in _events(columns, origin):
        yield f"{comma}{event}\n".encode("utf-8", "replace")
        comma = ","
    yield b"]}\n"


def _origin(columns: RunColumns) -> int:
    """Return when the first event of all tables began, in ns."""
    starts = [table["start_ns"] for table in (columns.layers, columns.kernels) if table is not None]
    if columns.spans is not None:
        starts.append(columns.spans.start_ns)
    if columns.samples is not None:
        starts.append(columns.samples.t_ns)
    return min((int(start.min()) for start in starts if len(start)), default=0)


def _events(columns: RunColumns, origin: int) -> Iterator[str]:
    for pid, name in _PROCESSES.items():
        yield _metadata("process_name", pid, 0, name=name)
        yield _metadata("process_sort_index", pid, 0, sort_index=pid)
    if columns.spans is not None:
        yield from _span_events(columns.spans, origin)
    if columns.layers is not None:
        yield from _layer_events(columns, columns.layers, origin)
    if columns.kernels is not None:
        yield from _kernel_events(columns, columns.kernels, origin)
    if columns.samples is not None:
        yield from _counter_events(columns.samples, origin)


def _span_events(spans: SpanColumns, origin: int) -> Iterator[str]:
    names = [_json(text) for text in spans.strings]
    name, query = spans.name.tolist(), spans.query.tolist()
    tid = _FIRST_THREAD[_WORKER]
    for track in np.unique(spans.track).tolist():
        rows = np.flatnonzero(spans.track == track)

        def shown(row: int) -> tuple[str, str]:
            return names[name[row]], "{}" if query[row] < 0 else f'{{"query":{query[row]}}}'

        category = LEVELS[int(spans.level[rows[0]])]
        where = _Where(_WORKER, tid, spans.strings[track], category, origin)
        tid += yield from _slices(where, rows, spans.start_ns, spans.duration_ns, shown)


def _layer_events(columns: RunColumns, layers: Table, origin: int) -> Iterator[str]:
    label, texts = labels(layers)
    shown = _shown(layers, label, texts, _LAYER_FACTS, _LAYER_NUMBERS)
    tid = _FIRST_THREAD[_LAYERS]
    for number in np.unique(layers["pass"]).tolist():
        rows = np.flatnonzero(layers["pass"] == number)
        where = _Where(_LAYERS, tid, columns.pass_name(number), CATEGORY_OF_LAYERS, origin)
        tid += yield from _slices(where, rows, layers["start_ns"], layers["duration_ns"], shown)


def _kernel_events(columns: RunColumns, kernels: Table, origin: int) -> Iterator[str]:
    shown = _shown(kernels, kernels["name"], kernels.strings, _KERNEL_FACTS, _KERNEL_NUMBERS)
    places = np.stack([kernels["pass"], kernels["device"], kernels["stream"]], axis=1)
    tid = _FIRST_THREAD[_KERNELS]
    for number, device, stream in np.unique(places, axis=0).tolist():
        rows = np.flatnonzero((places == (number, device, stream)).all(axis=1))
        label = f"{columns.pass_name(number)} {kernels.strings[device]} stream {stream}"
        where = _Where(_KERNELS, tid, " ".join(label.split()), CATEGORY_OF_KERNELS, origin)
        tid += yield from _slices(where, rows, kernels["start_ns"], kernels["duration_ns"], shown)


def _counter_events(samples: SampleColumns, origin: int) -> Iterator[str]:
    names = [_json(text) for text in samples.strings]
    values = zip(samples.counter.tolist(), samples.t_ns.tolist(), samples.value.tolist(), strict=True)
    for counter, t_ns, value in values:
        if value == value and abs(value) != float("inf"):  # noqa: PLR0124 - JSON has no such numbers
            yield (
                f'{{"ph":"C","pid":{_COUNTERS},"tid":0,"name":{names[counter]},"ts":{_us(t_ns - origin)},'
                f'"args":{{"value":{value!r}}}}}'
            )


class _Where(NamedTuple):
    """The process and first thread of a track, its name, the category of its slices, what its times count from."""

    pid: int
    tid: int
    name: str
    category: str
    origin: int


def _slices(
    where: _Where,
    rows: Int64Array,
    start_ns: Int64Array,
    duration_ns: Int64Array,
    shown: Callable[[int], tuple[str, str]],
) -> Any:
    """Yield the slices of a track, lane by lane; returns how many lanes there were."""
    starts, durations = start_ns[rows], duration_ns[rows]
    lanes = assign_lanes(starts, starts + durations)
    count = int(lanes.max(initial=-1)) + 1
    for lane in range(count):
        tid = where.tid + lane
        yield _metadata("thread_name", where.pid, tid, name=where.name)
        yield _metadata("thread_sort_index", where.pid, tid, sort_index=tid)
    for place in np.lexsort((-durations, starts, lanes)).tolist():
        row = int(rows[place])
        name, facts = shown(row)
        yield (
            f'{{"ph":"X","pid":{where.pid},"tid":{where.tid + int(lanes[place])},"name":{name},'
            f'"cat":"{where.category}","ts":{_us(int(starts[place]) - where.origin)},'
            f'"dur":{_us(int(durations[place]))},"args":{facts}}}'
        )
    return count


def _shown(
    table: Table,
    name_of: Int64Array,
    strings: tuple[str, ...],
    texts: tuple[str, ...],
    numbers: Mapping[str, str],
) -> Callable[[int], tuple[str, str]]:
    """Return a function of a row: its name as JSON, and what is known of it as a JSON object."""
    names = name_of.tolist()
    words = {name: table[name].tolist() for name in texts}
    values = {name: table[column].tolist() for name, column in numbers.items()}

    def shown(row: int) -> tuple[str, str]:
        facts: dict[str, Any] = {name: strings[column[row]] for name, column in words.items()}
        facts = {name: text for name, text in facts.items() if text}
        facts |= {name: column[row] for name, column in values.items() if column[row] >= 0}
        return _json(strings[names[row]]), _json(facts)

    return shown


def _metadata(kind: str, pid: int, tid: int, **arguments: Any) -> str:
    return _json({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": arguments})


def _json(value: Any) -> str:
    """Return JSON with every character as itself: Perfetto shows escapes of other scripts as they are."""
    return json.dumps(value, ensure_ascii=False)


def _us(nanoseconds: int) -> str:
    """Return microseconds with three decimals, exactly."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
