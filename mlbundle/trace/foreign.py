"""Traces made elsewhere, put onto the timeline of a run: another sequence of packets behind the run's own.

Times of foreign slices are CLOCK_REALTIME; Perfetto relates them to the run by the snapshots that its trace has.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mlbundle.errors import IntegrityError, StorageFailed
from mlbundle.files import replacing, storage_failed
from mlbundle.trace.nesting import assign_lanes
from mlbundle.trace.packets import CLOCK_REALTIME, PacketStream
from mlbundle.trace.perfetto import TraceWriter
from mlbundle.trace.stored import unpacked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mlbundle.trace.perfetto import Process, Value

MAX_FILE_BYTES = 1 << 30
MAX_SLICES = 5_000_000
MAX_TEXT = 1000
MAX_ARGS = 64
_LATEST_NS = 1 << 62
_GZIP = b"\x1f\x8b"
_GZIP_LEVEL = 1
# Behind what the run's own trace numbers so.
_FIRST_UUID, _FIRST_PID, _FIRST_SEQUENCE = 1 << 40, 1 << 20, 2
# Those of the run's own trace, whose processes are made up; and how many digits a real one has.
_OWN_PIDS, _PID_DIGITS = range(1, 10), 7
_NO_PARENT = -1


@dataclass(frozen=True, slots=True)
class ForeignSlice:
    """Something that lasted, in ns of CLOCK_REALTIME. `parent` is an earlier slice of the same trace, or -1.

    `flows` go on from it, `ends_flows` end in it; their numbers are the foreign trace's own.
    """

    process: str
    track: str
    name: str
    start_ns: int
    end_ns: int
    category: str = ""
    args: Mapping[str, Value] = field(default_factory=dict)
    parent: int = _NO_PARENT
    flows: tuple[int, ...] = ()
    ends_flows: tuple[int, ...] = ()

    def is_sound(self) -> bool:
        """Return whether its times can be."""
        return 0 <= self.start_ns <= self.end_ns < _LATEST_NS


@dataclass
class ForeignTrace:
    """What was read of a file: what made it, its slices, and how many of its events could not be understood."""

    kind: str
    slices: list[ForeignSlice] = field(default_factory=list)
    skipped: int = 0

    def add(self, found: ForeignSlice | None) -> None:
        """Take a slice, or count that there was none or one that can't be."""
        if found is None or not found.is_sound() or len(self.slices) >= MAX_SLICES:
            self.skipped += 1
        else:
            self.slices.append(found)


def read_text(path: Path) -> str:
    """Return the text of a JSON file, plain or gzip. Raises IntegrityError when it is too large or none."""
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        if content[:2] == _GZIP:
            unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
            content = unpacker.decompress(content, MAX_FILE_BYTES + 1)
            if not unpacker.eof and len(content) <= MAX_FILE_BYTES:
                raise IntegrityError("the file is cut short", where=str(path))
        if len(content) > MAX_FILE_BYTES:
            raise IntegrityError(f"more than {MAX_FILE_BYTES >> 30} GiB are not read", where=str(path))
        return content.decode("utf-8")
    except OSError as error:
        raise storage_failed(error, path) from error
    except (zlib.error, UnicodeDecodeError) as error:
        raise IntegrityError(f"the file can't be read: {error}", where=str(path)) from error


def combine(own: Path, foreign: Sequence[ForeignTrace], path: Path) -> int:
    """Write the trace of a run with others behind it to `path`; returns how many slices were added.

    Raises IntegrityError when the run's own trace is damaged, StorageFailed when the disk refuses.
    """
    added, taken = 0, set(_OWN_PIDS)
    if path.resolve() == own.resolve():
        raise StorageFailed(
            "a run's own trace is not written over", where=str(path), hint="give another -o FILE"
        )
    with replacing(path) as stream:
        packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)
        for piece in unpacked(own):
            stream.write(packer.compress(piece))
        stream.write(packer.flush())
        for number, trace in enumerate(foreign):
            # Members of gzip may follow each other (RFC 1952, 2.2).
            packets = PacketStream(stream, sequence=_FIRST_SEQUENCE + number, clock=CLOCK_REALTIME)
            writer = TraceWriter(packets, first_uuid=_FIRST_UUID + (number << 32))
            _write(writer, trace, number, taken)
            writer.finish()
            added += writer.slices_written
    return added


def _write(writer: TraceWriter, trace: ForeignTrace, number: int, taken: set[int]) -> None:
    by_place: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, one in enumerate(trace.slices):
        by_place[one.process][one.track].append(row)
    flows = _Flows(number)
    for rank, (name, tracks) in enumerate(by_place.items()):
        shown, pid = _named(name, taken, _FIRST_PID + (number << 10) + rank)
        taken.add(pid)
        process = writer.process(f"{trace.kind}: {shown}" if shown else trace.kind, pid=pid, rank=10 + number)
        for track_rank, (track, rows) in enumerate(tracks.items()):
            place = (track, process, track_rank)
            _write_track(writer, place, {row: trace.slices[row] for row in rows}, flows)


def _named(name: str, taken: set[int], otherwise: int) -> tuple[str, int]:
    """Return what a process is called, and its number: the one that its name ends in where that is still free."""
    words, _, last = name.rpartition(" ")
    is_number = last.isascii() and last.isdigit() and len(last) <= _PID_DIGITS
    if not is_number or int(last) == 0 or int(last) in taken:
        return name, otherwise
    return words, int(last)


class _Flows:
    """Numbers that no other trace has."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._known: dict[int, int] = {}

    def of(self, flows: Sequence[int]) -> list[int]:
        """Return the numbers of flows."""
        return [
            (1 << 48) + (self._number << 32) + self._known.setdefault(flow, len(self._known))
            for flow in flows
        ]


def _write_track(
    writer: TraceWriter,
    place: tuple[str, Process, int],
    by_row: Mapping[int, ForeignSlice],
    flows: _Flows,
) -> None:
    name, process, rank = place
    slices = list(by_row.values())
    local = {row: index for index, row in enumerate(by_row)}
    start = np.array([one.start_ns for one in slices], np.int64)
    end = np.array([one.end_ns for one in slices], np.int64)
    # A parent is an earlier row here, or it is none: slices of a track are in the order of the file.
    parents = [local.get(one.parent, _NO_PARENT) for one in slices]
    has_parents = any(one.parent != _NO_PARENT for one in slices)
    lanes = assign_lanes(start, end, np.array(parents, np.int64) if has_parents else None)
    order = np.lexsort((np.arange(len(slices)), -end, start))
    for lane in range(int(lanes.max(initial=-1)) + 1):
        track = writer.track(name, process, rank=rank)
        for index in order[lanes[order] == lane].tolist():
            one = slices[index]
            writer.slice(
                track,
                one.name,
                one.start_ns,
                one.end_ns,
                category=one.category or "foreign",
                args=one.args,
                flows=flows.of(one.flows),
                ends_flows=flows.of(one.ends_flows),
            )


def short(value: object) -> str:
    """Return a text as it is kept: printable and not too long."""
    text = str(value)[:MAX_TEXT]
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)
