"""Frames on the worker's standard streams: 4-byte big-endian length, 1-byte type, payload.

The length counts the payload only. Types: job (host to worker), event, file begin, file data, file end
(worker to host). The reader caps every size before it allocates.
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO, Iterator, NamedTuple

PROTOCOL = 1

JOB = 1
EVENT = 2
FILE_BEGIN = 3
FILE_DATA = 4
FILE_END = 5
KINDS = (JOB, EVENT, FILE_BEGIN, FILE_DATA, FILE_END)

MAX_PAYLOAD_BYTES = 4 << 20
FILE_CHUNK_BYTES = 1 << 20
_HEADER = struct.Struct(">IB")
HEADER_BYTES = _HEADER.size


class FrameError(Exception):
    """The other side sent bytes that are no frame of this protocol."""


class Frame(NamedTuple):
    """One frame: its type and its payload."""

    kind: int
    payload: bytes

    def document(self) -> dict[str, Any]:
        """Return the payload as a JSON object; raises FrameError otherwise."""
        try:
            value = json.loads(self.payload.decode("utf-8"), parse_constant=_refuse_constant)
            if (
                b"\\u" in self.payload
            ):  # escapes can hold lone surrogates, which no file and no terminal takes
                json.dumps(value, ensure_ascii=False).encode("utf-8")
        except (ValueError, RecursionError) as error:
            raise FrameError("a frame of type {} holds no JSON: {}".format(self.kind, error)) from None
        if not isinstance(value, dict):
            raise FrameError("a frame of type {} holds no JSON object".format(self.kind))
        return value


def _refuse_constant(name: str) -> None:
    raise ValueError("{} is no JSON".format(name))


def encode(kind: int, payload: bytes) -> bytes:
    """Return one frame as bytes; raises FrameError when the payload is over the cap."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError("a frame of {} bytes is over the cap of {}".format(len(payload), MAX_PAYLOAD_BYTES))
    return _HEADER.pack(len(payload), kind) + payload


def encode_document(kind: int, document: dict[str, Any]) -> bytes:
    """Return a JSON object as one frame."""
    return encode(kind, json.dumps(document, separators=(",", ":")).encode("utf-8"))


class FrameDecoder:
    """Turns chunks of bytes into frames; for streams that hand over what they have."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that has begun and not ended."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete after `data`; raises FrameError on the first wrong header."""
        self._buffer += data
        while len(self._buffer) >= HEADER_BYTES:
            length, kind = _HEADER.unpack_from(self._buffer)
            if kind not in KINDS or length > MAX_PAYLOAD_BYTES:
                raise FrameError("no frame of this protocol: type {}, length {}".format(kind, length))
            end = HEADER_BYTES + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER_BYTES:end])
            del self._buffer[:end]
            yield Frame(kind, payload)


def read_frame(stream: BinaryIO) -> Frame | None:
    """Read one frame from a blocking stream; None at its end. Raises FrameError when it is cut or wrong."""
    header = _read_exactly(stream, HEADER_BYTES)
    if not header:
        return None
    if len(header) < HEADER_BYTES:
        raise FrameError("the stream ended inside a frame header")
    length, kind = _HEADER.unpack(header)
    if kind not in KINDS or length > MAX_PAYLOAD_BYTES:
        raise FrameError("no frame of this protocol: type {}, length {}".format(kind, length))
    payload = _read_exactly(stream, length)
    if len(payload) < length:
        raise FrameError("the stream ended inside a frame")
    return Frame(kind, payload)


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    parts = []
    while size:
        part = stream.read(size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
