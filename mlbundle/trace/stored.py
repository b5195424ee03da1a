"""The bytes of a stored trace, plain or gzip, checked while they are read."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from mlbundle.errors import IntegrityError
from mlbundle.files import storage_failed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_GZIP = b"\x1f\x8b"
# A trace is TracePackets: field 1, length-delimited.
_PLAIN = b"\x0a"
_READ_BYTES = 1 << 20
_UNPACK_BYTES = 4 << 20
_HINT = "the run has to be made again; its columns (`mlbundle trace export --format csv`) may be whole"


def check_trace(path: Path) -> int:
    """Read a trace to its end and return how many bytes it has unpacked.

    Raises IntegrityError when it is none, damaged or cut short, StorageFailed when it can't be read.
    """
    return sum(len(piece) for piece in unpacked(path))


def unpacked(path: Path) -> Iterator[bytes]:
    """Yield a trace without its compression, in pieces of a few MiB. Raises as `check_trace`."""
    try:
        with path.open("rb") as stream:
            head = stream.read(2)
            stream.seek(0)
            if head == _GZIP:
                yield from _gunzip(iter(lambda: stream.read(_READ_BYTES), b""), path)
            elif head[:1] == _PLAIN:
                yield from iter(lambda: stream.read(_READ_BYTES), b"")
            else:
                raise _damaged("the file is no trace", path)
    except OSError as error:
        raise storage_failed(error, path) from error


def _gunzip(pieces: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Unpack gzip members that follow each other (RFC 1952); their checksums are looked at."""
    member: zlib._Decompress | None = None
    try:
        for piece in pieces:
            data = piece
            while data:
                if member is None:
                    member = zlib.decompressobj(zlib.MAX_WBITS | 16)
                if out := member.decompress(data, _UNPACK_BYTES):
                    yield out
                data = member.unconsumed_tail
                if member.eof:
                    data, member = member.unused_data, None
    except zlib.error as error:
        raise _damaged(f"the trace is damaged: {error}", path) from error
    if member is not None:
        raise _damaged("the trace is cut short", path)


def _damaged(what: str, path: Path) -> IntegrityError:
    return IntegrityError(what, where=str(path), hint=_HINT)
