"""Writes a Perfetto trace, event by event or column by column, to a file that appears whole or not at all.

Format: https://perfetto.dev/docs/reference/synthetic-track-event and the TracePacket reference. All times are ns on
CLOCK_MONOTONIC, as they were taken; Perfetto relates them to other clocks by the snapshots.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    CounterDescriptor,
    DebugAnnotation,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

from mlbundle.files import replacing
from mlbundle.trace.columns import TrackEncoder, counter_packets
from mlbundle.trace.nesting import MAX_DEPTH
from mlbundle.trace.packets import (
    CLOCK_BOOTTIME,
    CLOCK_MONOTONIC,
    CLOCK_REALTIME,
    PacketStream,
    Stamped,
    clean,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from mlbundle.trace.columns import SliceColumns

Value = str | int | float | bool

_CLOCK_IDS = {"monotonic": CLOCK_MONOTONIC, "realtime": CLOCK_REALTIME, "boottime": CLOCK_BOOTTIME}
_NEVER = 1 << 63
_INT64_MIN, _INT64_MAX, _UINT64_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the timeline; events go on the tracks below it."""

    uuid: int
    name: str


@dataclass(frozen=True, slots=True)
class Track:
    """A track that holds slices, other tracks, or both."""

    uuid: int
    name: str
    parent: Process | Track
    rank: int


@dataclass(frozen=True, slots=True)
class CounterTrack:
    """A track of numbers over time."""

    uuid: int
    name: str
    parent: Process | Track
    rank: int


class _Lane:
    """One Perfetto track: its open slices, innermost last, and the packets that were written on it before."""

    __slots__ = ("closing", "ends_ns", "known", "uuid")

    def __init__(self, uuid: int) -> None:
        self.uuid = uuid
        self.ends_ns: list[int] = []
        self.closing: list[Stamped] = []
        self.known: dict[tuple[str, str], tuple[Stamped, Stamped]] = {}


class _Lanes:
    """The lanes of a track: the first is the track itself, others are its siblings of the same name."""

    __slots__ = ("lanes", "last_ns", "track")

    def __init__(self, track: Track) -> None:
        self.track = track
        self.lanes = [_Lane(track.uuid)]
        self.last_ns = 0


class TraceWriter:
    """Declares tracks and writes events on them. Made by `trace_writer`.

    Rows (`slice`, `instant`) come in order of time on each track, a slice before those that it holds. Slices that
    overlap without one holding the other go on a sibling track of the same name. `first_uuid` is where tracks are
    numbered from.
    """

    def __init__(self, packets: PacketStream, first_uuid: int = 0) -> None:
        self._packets = packets
        self._write_at = packets.write_at
        self._uuid = first_uuid
        self._lanes: dict[int, _Lanes] = {}
        self.slices_written = 0
        # Track -> how many slices there was no room for beside each other.
        self.left_out: dict[str, int] = {}
        self._count = packets.packet()
        self._count_event = self._count.track_event
        self._count_event.type = TrackEvent.TYPE_COUNTER

    def process(self, name: str, *, pid: int, rank: int = 0) -> Process:
        """Declare a process. `pid` only has to be unique in the trace; lower ranks are shown first."""
        process = Process(self._next_uuid(), name)
        descriptor = TrackDescriptor(uuid=process.uuid, child_ordering=TrackDescriptor.EXPLICIT)
        descriptor.process.pid = pid
        descriptor.process.process_name = clean(name)
        descriptor.sibling_order_rank = rank
        self._declare(descriptor)
        return process

    def track(self, name: str, parent: Process | Track, *, rank: int = 0) -> Track:
        """Declare a track below a process or another track; lower ranks are shown first."""
        track = Track(self._next_uuid(), name, parent, rank)
        self._declare(_descriptor(track.uuid, track))
        self._lanes[track.uuid] = _Lanes(track)
        return track

    def counter_track(
        self, name: str, parent: Process | Track, *, unit: str = "", rank: int = 0
    ) -> CounterTrack:
        """Declare a counter; the units `ns`, `bytes` and none are Perfetto's own, others are shown as given."""
        counter = CounterTrack(self._next_uuid(), name, parent, rank)
        descriptor = _descriptor(counter.uuid, counter)
        known = {
            "": CounterDescriptor.UNIT_UNSPECIFIED,
            "ns": CounterDescriptor.UNIT_TIME_NS,
            "bytes": CounterDescriptor.UNIT_SIZE_BYTES,
        }
        if unit in known:
            descriptor.counter.unit = known[unit]
        else:
            descriptor.counter.unit_name = clean(unit)
        self._declare(descriptor)
        return counter

    def slice(
        self,
        track: Track,
        name: str,
        start_ns: int,
        end_ns: int | None,
        *,
        category: str = "",
        args: Mapping[str, Value] | None = None,
        flows: Iterable[int] = (),
        ends_flows: Iterable[int] = (),
    ) -> None:
        """Write a slice; `end_ns` None leaves it open to the end of the trace.

        `flows` are chains that go through this slice, `ends_flows` chains that end in it; ids from 1 to 2**64 - 1.
        Raises ValueError when it ends before it starts, or starts before the slice written last on this track.
        """
        lanes = self._lanes[track.uuid]
        end = _NEVER if end_ns is None else end_ns
        if not lanes.last_ns <= start_ns <= end:
            raise ValueError(f"slice {name!r} on {track.name!r} is out of order: {start_ns} to {end_ns} ns")
        lanes.last_ns = start_ns
        lane = lanes.lanes[0]
        ends = lane.ends_ns
        while ends and ends[-1] <= start_ns:
            self._write_at(ends.pop(), lane.closing.pop())
        if ends and (end > ends[-1] or len(ends) >= MAX_DEPTH):
            lane = self._spill(lanes, start_ns, end)
            ends = lane.ends_ns
        begin, closing = lane.known.get((category, name)) or self._learn(lane, category, name)
        if args or flows or ends_flows:
            packet = self._event(TrackEvent.TYPE_SLICE_BEGIN, lane.uuid, name, category)
            self._annotate(packet.track_event, args or {})
            packet.track_event.flow_ids.extend(flows)
            packet.track_event.terminating_flow_ids.extend(ends_flows)
            begin = self._packets.stamped(packet)
        self._write_at(start_ns, begin)
        ends.append(end)
        lane.closing.append(closing)
        self.slices_written += 1

    def slices(self, track: Track, *tables: SliceColumns) -> None:
        """Write all slices of a track at once, in any order; nothing else may be written on that track.

        Those that overlap more often than a track has lanes are left out, and counted in `left_out`.
        Of several tables, what has the same times lies in a slice of an earlier table; parents are known only if each
        table has them. Raises ValueError when the columns do not fit together or the track has events already.
        """
        lanes = self._lanes[track.uuid]
        if lanes.last_ns or lanes.lanes[0].known:
            raise ValueError(f"track {track.name!r} has events already")
        for columns in tables:
            columns.check()
        lanes.last_ns = _NEVER
        encoder = TrackEncoder(tables, self._packets)
        uuids = {0: track.uuid}
        for lane, rows in encoder.lanes():
            if lane not in uuids:
                uuids[lane] = self._sibling(track)
            for packets in encoder.encode(rows, uuids[lane]):
                self._packets.write_framed(packets)
            self.slices_written += len(rows)
        if encoder.left_out:
            self.left_out[track.name] = self.left_out.get(track.name, 0) + encoder.left_out

    def instant(
        self,
        track: Track,
        name: str,
        t_ns: int,
        *,
        category: str = "",
        args: Mapping[str, Value] | None = None,
    ) -> None:
        """Mark a moment on a track. Raises ValueError when it lies before the slice written last there."""
        lanes = self._lanes[track.uuid]
        if t_ns < lanes.last_ns:
            raise ValueError(f"instant {name!r} on {track.name!r} is out of order: {t_ns} ns")
        lanes.last_ns = t_ns
        self._close_until(lanes.lanes[0], t_ns)
        packet = self._event(TrackEvent.TYPE_INSTANT, track.uuid, name, category)
        self._annotate(packet.track_event, args or {})
        self._write_at(t_ns, self._packets.stamped(packet))

    def count(self, counter: CounterTrack, t_ns: int, value: float) -> None:
        """Write one value of a counter; a value that is not finite is a gap and is left out."""
        if not math.isfinite(value):
            return
        event = self._count_event
        if isinstance(value, int) and _INT64_MIN <= value <= _INT64_MAX:
            event.counter_value = value
        else:
            event.double_counter_value = float(value)
        event.track_uuid = counter.uuid
        self._write_at(t_ns, self._packets.stamped(self._count))

    def counts(self, counter: CounterTrack, t_ns: NDArray[np.int64], values: NDArray[np.float64]) -> int:
        """Write values of a counter, in any order; return how many, as those that are not finite are left out.

        Raises ValueError for a time before zero.
        """
        kept = np.isfinite(values)
        if (t_ns < 0).any():
            raise ValueError(f"a value of {counter.name!r} is from before zero")
        for packets in counter_packets(counter.uuid, t_ns[kept], values[kept]):
            self._packets.write_framed(packets)
        return int(kept.sum())

    def snapshot(self, clocks: Mapping[str, int]) -> None:
        """Write what the clocks showed at one moment: `monotonic`, `realtime` and, where there is one, `boottime`."""
        packet = self._packets.packet()
        packet.timestamp = clocks["monotonic"]
        packet.clock_snapshot.primary_trace_clock = CLOCK_MONOTONIC
        for name, clock_id in _CLOCK_IDS.items():
            if name in clocks:
                packet.clock_snapshot.clocks.add(clock_id=clock_id, timestamp=clocks[name])
        self._packets.write(packet)

    def attributes(self, values: Mapping[str, str | int]) -> None:
        """Write facts about the trace as a whole."""
        packet = self._packets.packet()
        for key, value in values.items():
            attribute = packet.trace_attributes.attribute.add(key=clean(key))
            if isinstance(value, int):
                attribute.long_value = value
            else:
                attribute.string_value = clean(value)
        self._packets.write(packet)

    def finish(self) -> None:
        """End all slices whose end is known."""
        for lanes in self._lanes.values():
            for lane in lanes.lanes:
                self._close_until(lane, _NEVER - 1)
        self._packets.close()

    def _spill(self, lanes: _Lanes, start_ns: int, end_ns: int) -> _Lane:
        """Return the first lane but one where the slice nests, having ended there what ends before it."""
        for lane in lanes.lanes[1:]:
            self._close_until(lane, start_ns)
            if not lane.ends_ns or (end_ns <= lane.ends_ns[-1] and len(lane.ends_ns) < MAX_DEPTH):
                return lane
        lane = _Lane(self._sibling(lanes.track))
        lanes.lanes.append(lane)
        return lane

    def _close_until(self, lane: _Lane, t_ns: int) -> None:
        ends = lane.ends_ns
        while ends and ends[-1] <= t_ns:
            self._write_at(ends.pop(), lane.closing.pop())

    def _learn(self, lane: _Lane, category: str, name: str) -> tuple[Stamped, Stamped]:
        """Return the packets that begin and end a plain slice, and keep them for the next of its kind."""
        begin = self._event(TrackEvent.TYPE_SLICE_BEGIN, lane.uuid, name, category)
        end = self._event(TrackEvent.TYPE_SLICE_END, lane.uuid, name)
        pair = lane.known[category, name] = (self._packets.stamped(begin), self._packets.stamped(end))
        return pair

    def _event(self, kind: TrackEvent.Type, track_uuid: int, name: str, category: str = "") -> TracePacket:
        packet = self._packets.packet()
        event = packet.track_event
        event.type = kind
        event.track_uuid = track_uuid
        event.name_iid = self._packets.name(name)
        if category:
            event.category_iids.append(self._packets.category(category))
        return packet

    def _annotate(self, event: TrackEvent, args: Mapping[str, Value]) -> None:
        for key, value in args.items():
            iid = self._packets.key(key)
            _set_value(event.debug_annotations.add(name_iid=iid), value)

    def _sibling(self, track: Track) -> int:
        uuid = self._next_uuid()
        self._declare(_descriptor(uuid, track))
        return uuid

    def _declare(self, descriptor: TrackDescriptor) -> None:
        packet = self._packets.packet()
        packet.track_descriptor.CopyFrom(descriptor)
        self._packets.write(packet)

    def _next_uuid(self) -> int:
        self._uuid += 1
        return self._uuid


@contextmanager
def trace_writer(path: Path, clocks: Mapping[str, int]) -> Iterator[TraceWriter]:
    """Write a gzip-compressed trace to `path`, which appears when the block ends without an exception.

    `clocks` is the first snapshot: Perfetto drops events of a clock that it has seen in none. The same calls make
    the same bytes. Raises StorageFailed when the disk refuses.
    """
    with replacing(path) as stream:
        writer = TraceWriter(PacketStream(stream))
        writer.snapshot(clocks)
        yield writer
        writer.finish()


def _descriptor(uuid: int, track: Track | CounterTrack) -> TrackDescriptor:
    return TrackDescriptor(
        uuid=uuid,
        name=clean(track.name),
        parent_uuid=track.parent.uuid,
        child_ordering=TrackDescriptor.EXPLICIT,
        sibling_order_rank=track.rank,
    )


def _set_value(annotation: DebugAnnotation, value: Value) -> None:
    if isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int) and _INT64_MIN <= value <= _INT64_MAX:
        annotation.int_value = value
    elif isinstance(value, int) and 0 <= value <= _UINT64_MAX:
        annotation.uint_value = value
    elif isinstance(value, float) and math.isfinite(value):
        annotation.double_value = value
    else:
        annotation.string_value = clean(str(value))
