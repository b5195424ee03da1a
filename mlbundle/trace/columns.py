"""Slices and counters given as columns, turned into packets with NumPy: millions a second.

Every number that varies takes a fixed count of bytes, as a varint padded with continuation bits (longer than needed
is valid: https://protobuf.dev/programming-guides/encoding/#varints), so packets of one shape are rows of one array.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation, Trace, TracePacket, TrackEvent

from mlbundle.trace.nesting import MAX_LANES, NO_LANE, NO_PARENT, assign_lanes, event_order, parts
from mlbundle.trace.packets import LATER_FLAGS, SEQUENCE_ID, varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mlbundle.trace.packets import PacketStream

    Int64Array = NDArray[np.int64]
    Column = NDArray[Any]
    Packets = NDArray[np.object_]

# Few enough that what is made of them stays in the caches of a processor, many enough that calls of NumPy cost little.
_CHUNK_EVENTS = 1 << 14
_PART_SLICES = 1 << 15
_VARINT, _FIXED64, _BYTES = 0, 1, 2
_END = -1


@dataclass(frozen=True)
class SliceColumns:
    """Slices of one track, one row each.

    Times in ns on CLOCK_MONOTONIC; `name` indexes `names`. `parent`: the row that holds the row, smaller than the
    row's own, or -1; without it any slice may hold another. `flow`: the chain that goes through the slice, in order of
    time, 0 for none; with `flow_count` so many chains, numbered from `flow` on. `joins_flow`: one chain more, 0 for
    none. (No chain is ended: an end that comes before the begin would be lost.) Debug annotations are `numbers`, a
    negative value means that the row has none, and `texts`, which index `names`; an empty one is none.
    """

    start_ns: Int64Array
    duration_ns: Int64Array
    name: Int64Array
    names: Sequence[str]
    category: str = ""
    parent: Int64Array | None = None
    flow: Int64Array | None = None
    flow_count: Int64Array | None = None
    joins_flow: Int64Array | None = None
    numbers: Mapping[str, Int64Array] = field(default_factory=dict)
    texts: Mapping[str, Int64Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)

    def check(self) -> None:
        """Raise ValueError for columns of unequal length, negative times or counts, or times beyond 63 bits."""
        optional = (self.parent, self.flow, self.flow_count, self.joins_flow)
        columns = [self.duration_ns, self.name, *self.numbers.values(), *self.texts.values()]
        columns += [column for column in optional if column is not None]
        if any(len(column) != len(self) for column in columns):
            raise ValueError("columns of one table have different lengths")
        if len(self) == 0:
            return
        if min(self.start_ns.min(), self.duration_ns.min(), (self.start_ns + self.duration_ns).min()) < 0:
            raise ValueError("a slice begins before zero, lasts less than nothing or ends beyond 63 bits")
        if self.flow_count is not None and (self.flow is None or self.flow_count.min() < 0):
            raise ValueError("flows are counted, but there are none or less than none")


@dataclass(frozen=True)
class _Slot:
    """A place in a packet that varies from row to row: a varint of `width` bytes, or 8 bytes as they are."""

    read: Callable[[Int64Array], Column]
    width: int
    is_fixed: bool = False

    def fill(self, rows: Int64Array) -> NDArray[np.uint8]:
        """Return the bytes of each row."""
        values = self.read(rows)
        return _fixed(values) if self.is_fixed else _padded(values, self.width)


@dataclass(frozen=True)
class _FlowSlot:
    """A place for the numbers of `count` flows that follow one another, each behind the tag of its field."""

    first: Int64Array
    count: int

    @property
    def width(self) -> int:
        """How many bytes they take."""
        return self.count * (len(_FLOW_TAG) + 8)

    def fill(self, rows: Int64Array) -> NDArray[np.uint8]:
        """Return the bytes of each row."""
        numbers = self.first[rows, None] + np.arange(self.count)
        out = np.empty((len(rows), self.count, len(_FLOW_TAG) + 8), np.uint8)
        out[:, :, : len(_FLOW_TAG)] = np.frombuffer(_FLOW_TAG, np.uint8)
        out[:, :, len(_FLOW_TAG) :] = _fixed(numbers.reshape(-1)).reshape(len(rows), self.count, 8)
        return out.reshape(len(rows), self.width)


_Part = bytes | _Slot | _FlowSlot


class TrackEncoder:
    """Turns the slices of a track, of one table or of several, into framed packets.

    Rows are numbered through all tables; of slices with the same times an earlier row holds a later one.
    """

    def __init__(self, tables: Sequence[SliceColumns], packets: PacketStream) -> None:
        self._start_ns = np.concatenate([table.start_ns for table in tables])
        self._end_ns = self._start_ns + np.concatenate([table.duration_ns for table in tables])
        self._bounds = np.cumsum([0, *map(len, tables)])
        self._tables = [_TableEncoder(table, packets) for table in tables]
        self._parent = self._parents(tables)
        # Where a row stands in the part that is being looked at.
        self._place = np.full(0 if self._parent is None else len(self._start_ns), NO_PARENT, np.int64)
        self.left_out = 0

    def _parents(self, tables: Sequence[SliceColumns]) -> Int64Array | None:
        found = []
        for table, first in zip(tables, self._bounds.tolist(), strict=False):
            if table.parent is None:
                return None
            found.append(np.where(table.parent != NO_PARENT, table.parent + first, NO_PARENT))
        return np.concatenate(found)

    def lanes(self) -> Iterator[tuple[int, Int64Array]]:
        """Yield lanes and rows that nest there; a lane comes again with rows that begin when its others have ended.

        What so many lanes as a track may have do not hold is counted in `left_out`.
        """
        for rows in parts(self._start_ns, self._end_ns, _PART_SLICES):
            lane = assign_lanes(
                self._start_ns[rows], self._end_ns[rows], self._parents_within(rows), most=MAX_LANES
            )
            for number in np.unique(lane).tolist():
                if number == NO_LANE:
                    self.left_out += int((lane == NO_LANE).sum())
                else:
                    yield number, rows[lane == number]

    def _parents_within(self, rows: Int64Array) -> Int64Array | None:
        """Return where each row's parent stands among these rows, -1 where it is none of them."""
        if self._parent is None:
            return None
        self._place[rows] = np.arange(len(rows))
        above = self._parent[rows]
        found = np.where(above != NO_PARENT, self._place[above], NO_PARENT)
        self._place[rows] = NO_PARENT
        return found

    def encode(self, rows: Int64Array, track_uuid: int) -> Iterator[bytes]:
        """Yield the packets of these rows, in chunks. The rows must nest."""
        order = event_order(self._start_ns[rows], self._end_ns[rows])
        for first in range(0, len(order.row), _CHUNK_EVENTS):
            chosen = rows[order.row[first : first + _CHUNK_EVENTS]]
            begins = order.begins[first : first + _CHUNK_EVENTS]
            pieces: Packets = np.empty(len(chosen), np.object_)
            table_of = np.searchsorted(self._bounds, chosen, side="right") - 1
            for number in np.unique(table_of).tolist():
                here = np.flatnonzero(table_of == number)
                local = chosen[here] - self._bounds[number]
                pieces[here] = self._tables[number].packets(local, begins[here], track_uuid)
            yield b"".join(pieces.tolist())


class _TableEncoder:
    """Turns begins and ends of a table's rows into framed packets."""

    def __init__(self, columns: SliceColumns, packets: PacketStream) -> None:
        self._columns = columns
        self._category = packets.category(columns.category) if columns.category else 0
        iids = _interned(columns.names, (columns.name,), packets.name)
        self._name = _varying(partial(_looked_up, iids, columns.name), int(iids.max(initial=0)))
        last_ns = int((columns.start_ns + columns.duration_ns).max(initial=0))
        self._begin = _varying(partial(_taken, columns.start_ns), last_ns)
        self._end = _varying(lambda rows: columns.start_ns[rows] + columns.duration_ns[rows], last_ns)
        self._notes = [*_number_notes(columns, packets), *_text_notes(columns, packets)]
        self._templates: dict[tuple[int, int], _Template] = {}

    def packets(self, rows: Int64Array, begins: NDArray[np.bool_], track_uuid: int) -> Packets:
        """Return a packet for each row, that begins or ends it."""
        found: Packets = np.empty(len(rows), np.object_)
        kinds = np.full(len(rows), _END, np.int64)
        kinds[begins] = self._kinds(rows[begins])
        for kind in np.unique(kinds).tolist():
            template = self._templates.get((kind, track_uuid))
            if template is None:
                template = self._templates[kind, track_uuid] = _Template(self._parts(kind, track_uuid))
            where = np.flatnonzero(kinds == kind)
            found[where] = template.packets(rows[where])
        return found

    def _kinds(self, rows: Int64Array) -> Int64Array:
        """Return what begins hold: the count of flows, a bit for each note, and one for a flow that is joined."""
        columns = self._columns
        kinds = np.zeros(len(rows), np.int64)
        if columns.flow is not None:
            kinds += columns.flow[rows] != 0
            if columns.flow_count is not None:
                kinds *= columns.flow_count[rows]
        for note in self._notes:
            kinds = kinds << 1 | (note.read(rows) >= note.least)
        kinds <<= 1
        if columns.joins_flow is not None:
            kinds |= columns.joins_flow[rows] != 0
        return kinds

    def _parts(self, kind: int, track_uuid: int) -> list[_Part]:
        """Return the parts of a packet of this kind."""
        is_end = kind == _END
        event: list[_Part] = [
            _number(TrackEvent, "type", TrackEvent.TYPE_SLICE_END if is_end else TrackEvent.TYPE_SLICE_BEGIN),
            _number(TrackEvent, "track_uuid", track_uuid),
            *_slot(TrackEvent, "name_iid", self._name),
        ]
        if not is_end:
            event += self._details(kind)
        return _packet(self._end if is_end else self._begin, event)

    def _details(self, kind: int) -> list[_Part]:
        """Return what a begin of this kind has beside its name."""
        columns, details = self._columns, list[_Part]()
        if self._category:
            details.append(_number(TrackEvent, "category_iids", self._category))
        if kind & 1 and columns.joins_flow is not None:
            slot = _Slot(partial(_taken, columns.joins_flow), 8, is_fixed=True)
            details += _slot(TrackEvent, "flow_ids", slot)
        for note in reversed(self._notes):
            kind >>= 1
            if kind & 1:
                details += note.parts
        if kind >> 1 and columns.flow is not None:
            details.append(_FlowSlot(columns.flow, kind >> 1))
        return details


@dataclass(frozen=True)
class _Note:
    """A debug annotation: what is read for it, from which value on a row has one, and what it is in a packet."""

    read: Callable[[Int64Array], Int64Array]
    least: int
    parts: list[_Part]


def _number_notes(columns: SliceColumns, packets: PacketStream) -> Iterator[_Note]:
    for key, values in columns.numbers.items():
        read = partial(_taken, values)
        slot = _varying(read, int(values.max(initial=0)))
        yield _Note(read, 0, _annotation(packets.key(key), "int_value", slot))


def _text_notes(columns: SliceColumns, packets: PacketStream) -> Iterator[_Note]:
    iids = _interned(columns.names, columns.texts.values(), lambda text: packets.value(text) if text else 0)
    for key, texts in columns.texts.items():
        read = partial(_looked_up, iids, texts)
        slot = _varying(read, int(iids.max(initial=0)))
        yield _Note(read, 1, _annotation(packets.key(key), "string_value_iid", slot))


def counter_packets(track_uuid: int, t_ns: Int64Array, values: NDArray[np.float64]) -> Iterator[bytes]:
    """Yield framed packets with the values of a counter, in chunks."""
    event = [
        _number(TrackEvent, "type", TrackEvent.TYPE_COUNTER),
        _number(TrackEvent, "track_uuid", track_uuid),
        *_slot(TrackEvent, "double_counter_value", _Slot(partial(_taken, values), 8, is_fixed=True)),
    ]
    template = _Template(_packet(_varying(partial(_taken, t_ns), int(t_ns.max(initial=0))), event))
    for first in range(0, len(t_ns), _CHUNK_EVENTS):
        rows = np.arange(first, min(first + _CHUNK_EVENTS, len(t_ns)))
        yield template.render(rows).tobytes()


class _Template:
    """The bytes of a packet with holes in known places."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._slots: list[tuple[int, _Slot | _FlowSlot]] = []
        fixed = bytearray()
        for part in parts:
            if isinstance(part, bytes):
                fixed += part
            else:
                self._slots.append((len(fixed), part))
                fixed += bytes(part.width)
        self._bytes = np.frombuffer(bytes(fixed), np.uint8)

    def render(self, rows: Int64Array) -> NDArray[np.uint8]:
        """Return the bytes of the packet for each of these rows of a table."""
        filled = np.tile(self._bytes, (len(rows), 1))
        for offset, slot in self._slots:
            filled[:, offset : offset + slot.width] = slot.fill(rows)
        return filled

    def packets(self, rows: Int64Array) -> Packets:
        """Return the packet of each of these rows."""
        return self.render(rows).view(f"V{len(self._bytes)}").reshape(-1).astype(np.object_)


def _interned(
    names: Sequence[str], columns: Iterable[Int64Array], intern: Callable[[str], int]
) -> Int64Array:
    """Return for each name its number in the trace, 0 for those that no column has."""
    is_used = np.zeros(len(names), np.bool_)
    for column in columns:
        is_used[column] = True
    numbers = np.zeros(len(names), np.int64)
    for index in np.flatnonzero(is_used).tolist():
        numbers[index] = intern(names[index])
    return numbers


def _taken(column: Column, rows: Int64Array) -> Column:
    return column[rows]


def _looked_up(numbers: Int64Array, index: Int64Array, rows: Int64Array) -> Int64Array:
    return numbers[index[rows]]


def _padded(values: Column, width: int) -> NDArray[np.uint8]:
    """Return varints of exactly `width` bytes; `values` must fit 7 x `width` bits."""
    out = np.empty((len(values), width), np.uint8)
    for byte in range(width):
        out[:, byte] = (values >> (7 * byte)) & 0x7F
    out[:, :-1] |= 0x80
    return out


def _fixed(values: Column) -> NDArray[np.uint8]:
    """Return the 8 bytes of each value, the lowest first."""
    return values.astype(values.dtype.newbyteorder("<")).view(np.uint8).reshape(len(values), 8)


def _varying(read: Callable[[Int64Array], Column], largest: int) -> _Slot:
    """Return a place for numbers up to this one."""
    return _Slot(read, len(varint(largest)))


def _packet(time: _Slot, event: Sequence[_Part]) -> list[_Part]:
    packet: list[_Part] = [
        *_slot(TracePacket, "timestamp", time),
        _number(TracePacket, "trusted_packet_sequence_id", SEQUENCE_ID),
        _number(TracePacket, "sequence_flags", LATER_FLAGS),
        *_message(TracePacket, "track_event", event),
    ]
    return _message(Trace, "packet", packet)


def _annotation(key_iid: int, kind: str, slot: _Slot) -> list[_Part]:
    parts = [_number(DebugAnnotation, "name_iid", key_iid), *_slot(DebugAnnotation, kind, slot)]
    return _message(TrackEvent, "debug_annotations", parts)


def _tag(message: Any, name: str, wire_type: int) -> bytes:
    return varint(message.DESCRIPTOR.fields_by_name[name].number << 3 | wire_type)


def _number(message: Any, name: str, value: int) -> bytes:
    return _tag(message, name, _VARINT) + varint(value)


def _slot(message: Any, name: str, slot: _Slot) -> list[_Part]:
    return [_tag(message, name, _FIXED64 if slot.is_fixed else _VARINT), slot]


def _message(message: Any, name: str, parts: Sequence[_Part]) -> list[_Part]:
    size = sum(len(part) if isinstance(part, bytes) else part.width for part in parts)
    return [_tag(message, name, _BYTES) + varint(size), *parts]


_FLOW_TAG = _tag(TrackEvent, "flow_ids", _FIXED64)
