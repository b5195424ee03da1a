"""Slices given as columns, turned into packets with NumPy: millions a second instead of hundreds of thousands.

Every number that varies takes a fixed count of bytes, as a varint padded with continuation bits (longer than needed
is valid: https://protobuf.dev/programming-guides/encoding/#varints), so packets of one shape are rows of one array.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation, Trace, TracePacket, TrackEvent

from mlbundle.trace.nesting import event_order
from mlbundle.trace.packets import LATER_FLAGS, SEQUENCE_ID, varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mlbundle.trace.packets import PacketStream

    Int64Array = NDArray[np.int64]

_CHUNK_EVENTS = 1 << 15
# 63 bits of time or value, 28 bits of an interned name.
_LONG_BYTES = 9
_IID_BYTES = 4
_VARINT, _FIXED64, _BYTES = 0, 1, 2


@dataclass(frozen=True)
class SliceColumns:
    """Slices of one track, one row each.

    Times in ns on CLOCK_MONOTONIC; `name` indexes `names`. `parent`: the row that holds the row, smaller than the
    row's own, or -1; without it any slice may hold another. `flow`: the chain that the slice belongs to, in time
    order, 0 for none. `numbers`: debug annotations; a negative value means that the row has none.
    """

    start_ns: Int64Array
    duration_ns: Int64Array
    name: Int64Array
    names: Sequence[str]
    category: str = ""
    parent: Int64Array | None = None
    flow: Int64Array | None = None
    numbers: Mapping[str, Int64Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)

    def check(self) -> None:
        """Raise ValueError for columns of unequal length, negative times or times beyond 63 bits."""
        columns = [self.duration_ns, self.name, *self.numbers.values()]
        columns += [column for column in (self.parent, self.flow) if column is not None]
        if any(len(column) != len(self) for column in columns):
            raise ValueError("columns of one table have different lengths")
        if len(self) == 0:
            return
        if min(self.start_ns.min(), self.duration_ns.min(), (self.start_ns + self.duration_ns).min()) < 0:
            raise ValueError("a slice begins before zero, lasts less than nothing or ends beyond 63 bits")


@dataclass(frozen=True)
class _Slot:
    """A place in a packet that varies from row to row: a varint of `width` bytes, or 8 fixed bytes."""

    column: str
    width: int
    fixed: bool = False


_Part = bytes | _Slot


class LaneEncoder:
    """Turns rows of a lane into framed packets."""

    def __init__(self, columns: SliceColumns, packets: PacketStream) -> None:
        self._columns = columns
        self._end_ns = columns.start_ns + columns.duration_ns
        self._category = packets.category(columns.category) if columns.category else 0
        self._keys = {key: packets.key(key) for key in columns.numbers}
        iids = np.zeros(len(columns.names), np.int64)
        for index in np.unique(columns.name).tolist():
            iids[index] = packets.name(columns.names[index])
        self._name_iid = iids[columns.name]

    def encode(self, rows: Int64Array, track_uuid: int) -> Iterator[bytes]:
        """Yield the packets of these rows, in chunks. The rows must nest."""
        columns = self._columns
        order = event_order(columns.start_ns[rows], self._end_ns[rows])
        shape = self._shapes(rows)
        templates: dict[int, _Template] = {}
        for first in range(0, len(order.row), _CHUNK_EVENTS):
            local = order.row[first : first + _CHUNK_EVENTS]
            begins = order.begins[first : first + _CHUNK_EVENTS]
            kinds = np.where(begins, shape[local], -1)
            pieces = []
            for kind in np.unique(kinds).tolist():
                if kind not in templates:
                    templates[kind] = _Template(self._parts(kind, track_uuid))
                where = np.flatnonzero(kinds == kind)
                pieces.append((where, templates[kind].render(self._values(kind, rows[local[where]]))))
            yield _interleave(pieces, len(local))

    def _shapes(self, rows: Int64Array) -> Int64Array:
        """Return, for each row, which of its optional fields are there, as bits: the flow, then each number."""
        shape = np.zeros(len(rows), np.int64)
        if self._columns.flow is not None:
            shape |= (self._columns.flow[rows] != 0).astype(np.int64)
        for bit, values in enumerate(self._columns.numbers.values(), start=1):
            shape |= (values[rows] >= 0).astype(np.int64) << bit
        return shape

    def _parts(self, kind: int, track_uuid: int) -> list[_Part]:
        """Return the parts of a packet; kind -1 is an end, others are begins with the fields that the bits name."""
        event: list[_Part] = [
            _number(
                TrackEvent, "type", TrackEvent.TYPE_SLICE_END if kind < 0 else TrackEvent.TYPE_SLICE_BEGIN
            ),
            _number(TrackEvent, "track_uuid", track_uuid),
            *_slot(TrackEvent, "name_iid", _Slot("name_iid", _IID_BYTES)),
        ]
        if self._category:
            event.append(_number(TrackEvent, "category_iids", self._category))
        if kind > 0 and kind & 1:
            event += _slot(TrackEvent, "flow_ids", _Slot("flow", 8, fixed=True))
        for bit, (key, iid) in enumerate(self._keys.items(), start=1):
            if kind > 0 and kind >> bit & 1:
                value = _slot(DebugAnnotation, "int_value", _Slot(key, _LONG_BYTES))
                parts: list[_Part] = [_number(DebugAnnotation, "name_iid", iid), *value]
                event += _message(TrackEvent, "debug_annotations", parts)
        packet: list[_Part] = [
            *_slot(TracePacket, "timestamp", _Slot("time", _LONG_BYTES)),
            _number(TracePacket, "trusted_packet_sequence_id", SEQUENCE_ID),
            _number(TracePacket, "sequence_flags", LATER_FLAGS),
            *_message(TracePacket, "track_event", event),
        ]
        return _message(Trace, "packet", packet)

    def _values(self, kind: int, rows: Int64Array) -> dict[str, Int64Array]:
        columns = self._columns
        values = {"name_iid": self._name_iid[rows]}
        values["time"] = self._end_ns[rows] if kind < 0 else columns.start_ns[rows]
        if columns.flow is not None:
            values["flow"] = columns.flow[rows]
        return values | {key: column[rows] for key, column in columns.numbers.items()}


class _Template:
    """The bytes of a packet with holes in known places."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._slots: list[tuple[int, _Slot]] = []
        fixed = bytearray()
        for part in parts:
            if isinstance(part, _Slot):
                self._slots.append((len(fixed), part))
                fixed += bytes(part.width)
            else:
                fixed += part
        self._bytes = np.frombuffer(bytes(fixed), np.uint8)

    def render(self, values: Mapping[str, Int64Array]) -> NDArray[np.uint8]:
        """Return one row of bytes for each row of values."""
        count = len(next(iter(values.values())))
        rows = np.tile(self._bytes, (count, 1))
        for offset, slot in self._slots:
            column = values[slot.column]
            filled = (
                column.astype("<u8").view(np.uint8).reshape(count, 8)
                if slot.fixed
                else _padded(column, slot.width)
            )
            rows[:, offset : offset + slot.width] = filled
        return rows


def _padded(values: Int64Array, width: int) -> NDArray[np.uint8]:
    """Return varints of exactly `width` bytes; `values` must fit 7 x `width` bits."""
    out = np.empty((len(values), width), np.uint8)
    for byte in range(width):
        out[:, byte] = (values >> (7 * byte)) & 0x7F
    out[:, :-1] |= 0x80
    return out


def _interleave(pieces: Sequence[tuple[Any, NDArray[np.uint8]]], count: int) -> bytes:
    """Return the rows of all pieces one after another, each piece's rows at the places that it names."""
    widest = max(rows.shape[1] for _, rows in pieces)
    grid = np.empty((count, widest), np.uint8)
    length = np.empty(count, np.int64)
    for where, rows in pieces:
        grid[where, : rows.shape[1]] = rows
        length[where] = rows.shape[1]
    return grid[np.arange(widest) < length[:, None]].tobytes()


def _tag(message: Any, name: str, wire_type: int) -> bytes:
    return varint(message.DESCRIPTOR.fields_by_name[name].number << 3 | wire_type)


def _number(message: Any, name: str, value: int) -> bytes:
    return _tag(message, name, _VARINT) + varint(value)


def _slot(message: Any, name: str, slot: _Slot) -> list[_Part]:
    return [_tag(message, name, _FIXED64 if slot.fixed else _VARINT), slot]


def _message(message: Any, name: str, parts: Sequence[_Part]) -> list[_Part]:
    size = sum(part.width if isinstance(part, _Slot) else len(part) for part in parts)
    return [_tag(message, name, _BYTES) + varint(size), *parts]
