"""The bytes of a Perfetto trace: packets with their lengths, interned strings, gzip.

Format: https://perfetto.dev/docs/reference/trace-packet-proto. A trace is a sequence of `TracePacket` messages, each
behind the tag of `Trace.packet` and its length. All packets here share one sequence, so one table of interned
strings serves them all.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

SEQUENCE_ID = 1
CLOCK_REALTIME = 1
CLOCK_MONOTONIC = 3
CLOCK_BOOTTIME = 6
# SEQ_INCREMENTAL_STATE_CLEARED | SEQ_NEEDS_INCREMENTAL_STATE on the first packet, the latter on all others: without
# them Perfetto drops events and counts that only under an informational statistic.
_FIRST_FLAGS = 3
LATER_FLAGS = 2
_PACKET_TAG = b"\x0a"
_BUFFER_PIECES = 1 << 15
# Level 1 costs 0.2 s a million slices and is within 12 % of level 6.
_GZIP_LEVEL = 1


def varint(value: int) -> bytes:
    """Return an unsigned integer in protobuf's variable-length encoding."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Times are varints padded to nine bytes (63 bits; longer than needed is valid:
# https://protobuf.dev/programming-guides/encoding/#varints): twice 14 bits from this table, the rest changes seldom.
_LOW_BITS = 14
_LOW_MASK = (1 << _LOW_BITS) - 1
_LOW = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << _LOW_BITS)]
_HIGH_SHIFT = 2 * _LOW_BITS
_HIGH_BYTES = 5
_TIME_TAG = varint(TracePacket.DESCRIPTOR.fields_by_name["timestamp"].number << 3)


def first_packets(head: bytes, most: int) -> Iterator[TracePacket]:
    """Yield the first packets of a trace's bytes; ends at one that is cut, or that is none."""
    place = 0
    for _ in range(most):
        if head[place : place + 1] != _PACKET_TAG:
            return
        size, shift, place = 0, 0, place + 1
        while place < len(head) and shift < 64:
            byte = head[place]
            size, shift, place = size | (byte & 0x7F) << shift, shift + 7, place + 1
            if byte <= 0x7F:
                break
        try:
            yield TracePacket.FromString(head[place : place + size])
        except DecodeError:
            return
        place += size


class Stamped(NamedTuple):
    """A framed packet cut open where its time goes."""

    head: bytes
    tail: bytes


def clean(text: str) -> str:
    """Return the text as Perfetto can hold it: no lone surrogates, no NUL."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


class PacketStream:
    """Frames packets, compresses them and keeps the table of interned strings.

    Its packets are of one sequence, and carry the time of one clock unless they say otherwise.
    """

    def __init__(self, stream: BinaryIO, sequence: int = SEQUENCE_ID, clock: int = CLOCK_MONOTONIC) -> None:
        self._stream = stream
        self._sequence = sequence
        # wbits 31 is gzip with an empty header: no name, no time.
        self._gzip = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)
        self._buffer: list[bytes] = []
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._values: dict[str, int] = {}
        self._high = -1
        self._high_bytes = b""
        self._begin(clock)

    def _begin(self, clock: int) -> None:
        """Open the sequence."""
        packet = TracePacket(
            trusted_packet_sequence_id=self._sequence,
            sequence_flags=_FIRST_FLAGS,
            first_packet_on_sequence=True,
        )
        packet.trace_packet_defaults.timestamp_clock_id = clock
        self.write(packet)

    def packet(self) -> TracePacket:
        """Return an empty packet of the sequence; it may be written again and again."""
        return TracePacket(trusted_packet_sequence_id=self._sequence, sequence_flags=LATER_FLAGS)

    def write(self, packet: TracePacket) -> None:
        """Append one packet."""
        payload = packet.SerializeToString()
        self._buffer += (_PACKET_TAG, varint(len(payload)), payload)
        if len(self._buffer) >= _BUFFER_PIECES:
            self._flush()

    @staticmethod
    def stamped(packet: TracePacket) -> Stamped:
        """Return a packet without a time as one that `write_at` can write many times."""
        tail = packet.SerializeToString()
        size = len(_TIME_TAG) + 2 * 2 + _HIGH_BYTES + len(tail)
        return Stamped(_PACKET_TAG + varint(size) + _TIME_TAG, tail)

    def write_at(self, t_ns: int, packet: Stamped) -> None:
        """Append a packet with this time, a third of the cost of `write`. Raises ValueError beyond 63 bits."""
        high = t_ns >> _HIGH_SHIFT
        if high != self._high:
            self._set_high(high)
        head, tail = packet
        buffer = self._buffer
        buffer += (head, _LOW[t_ns & _LOW_MASK], _LOW[t_ns >> _LOW_BITS & _LOW_MASK], self._high_bytes, tail)
        if len(buffer) >= _BUFFER_PIECES:
            self._flush()

    def _set_high(self, high: int) -> None:
        if not 0 <= high < 1 << 7 * _HIGH_BYTES:
            raise ValueError("a time is negative or beyond 63 bits")
        groups = [high >> 7 * byte & 0x7F | 0x80 for byte in range(_HIGH_BYTES)]
        groups[-1] &= 0x7F
        self._high, self._high_bytes = high, bytes(groups)

    def write_framed(self, packets: bytes) -> None:
        """Append packets that are framed already."""
        self._flush()
        self._stream.write(self._gzip.compress(packets))

    def name(self, text: str) -> int:
        """Return the number of an event's name."""
        return self._names.get(text) or self._intern(self._names, "event_names", text)

    def category(self, text: str) -> int:
        """Return the number of a category."""
        return self._categories.get(text) or self._intern(self._categories, "event_categories", text)

    def key(self, text: str) -> int:
        """Return the number of a debug annotation's name."""
        return self._keys.get(text) or self._intern(self._keys, "debug_annotation_names", text)

    def value(self, text: str) -> int:
        """Return the number of a debug annotation's text."""
        number = self._values.get(text)
        if number is None:
            number = self._values[text] = len(self._values) + 1
            packet = self.packet()
            packet.interned_data.debug_annotation_string_values.add(iid=number, str=clean(text).encode())
            self.write(packet)
        return number

    def _intern(self, table: dict[str, int], field: str, text: str) -> int:
        number = table[text] = len(table) + 1
        packet = self.packet()
        getattr(packet.interned_data, field).add(iid=number, name=clean(text))
        self.write(packet)
        return number

    def close(self) -> None:
        """Write what is left; the stream itself stays open."""
        self._flush()
        self._stream.write(self._gzip.flush())

    def _flush(self) -> None:
        self._stream.write(self._gzip.compress(b"".join(self._buffer)))
        self._buffer.clear()
