"""Traces made elsewhere, put onto the timeline of a run: another sequence of packets behind the run's own.

Times of foreign slices are CLOCK_REALTIME; Perfetto relates them to the run by the snapshots that its trace has.
"""

from __future__ import annotations

import itertools
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mlbundle.errors import IntegrityError, StorageFailed
from mlbundle.files import replacing, storage_failed
from mlbundle.trace.nesting import MAX_LANES, NO_LANE, assign_lanes
from mlbundle.trace.packets import CLOCK_MONOTONIC, CLOCK_REALTIME, PacketStream, first_packets
from mlbundle.trace.perfetto import TraceWriter
from mlbundle.trace.stored import unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
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
_MOST_HEAD_PACKETS = 16


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
    """What was read of a file: what made it, its slices, and how many of its events could not be understood or shown.

    `notes` say what a reader has to know of what is not shown as it was given.
    """

    kind: str
    slices: list[ForeignSlice] = field(default_factory=list)
    skipped: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, found: ForeignSlice | None) -> None:
        """Take a slice, or count that there was none or one that can't be."""
        if found is None or not found.is_sound() or len(self.slices) >= MAX_SLICES:
            self.skipped += 1
        else:
            self.slices.append(found)

    def leave_out(self, count: int, why: str) -> None:
        """Count and tell slices that are not shown."""
        if count:
            self.skipped += count
            self.notes.append(f"{count} spans are left out: {why}")


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


def is_source(path: Path, sources: Iterable[Path]) -> bool:
    """Return whether a file that is to be written is one of those that are read, by whatever name."""
    return path.exists() and any(source.exists() and path.samefile(source) for source in sources)


def combine(own: Path, foreign: Sequence[ForeignTrace], path: Path, inputs: Sequence[Path] = ()) -> int:
    """Write the trace of a run with others behind it to `path`; returns how many slices were added.

    What a trace can't show is counted in its `skipped` and told in its `notes`. `inputs` are the files that the others
    were read from. Raises IntegrityError when the run's own trace is damaged or nothing of another one can be shown,
    StorageFailed when the disk refuses or the file is one that is read.
    """
    if is_source(path, (own, *inputs)):
        raise StorageFailed(
            "neither a run's own trace nor a file that is read is written over",
            where=str(path),
            hint="give another -o FILE",
        )
    added, pids, boot_ns = 0, _Pids(), _boot_ns(own)
    with replacing(path) as stream:
        packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)
        for piece in unpacked(own):
            stream.write(packer.compress(piece))
        stream.write(packer.flush())
        for number, trace in enumerate(foreign):
            # Members of gzip may follow each other (RFC 1952, 2.2).
            packets = PacketStream(stream, sequence=_FIRST_SEQUENCE + number, clock=CLOCK_REALTIME)
            writer = TraceWriter(packets, first_uuid=_FIRST_UUID + (number << 32))
            _write(writer, trace, number, pids, boot_ns)
            writer.finish()
            added += writer.slices_written
    return added


def _boot_ns(own: Path) -> int:
    """Return what the real-time clock showed when the monotonic one was at zero: Perfetto has no time before it."""
    head = next(unpacked(own), b"")
    for packet in first_packets(head, _MOST_HEAD_PACKETS):
        clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
        if CLOCK_REALTIME in clocks and CLOCK_MONOTONIC in clocks:
            return int(clocks[CLOCK_REALTIME] - clocks[CLOCK_MONOTONIC])
    return 0


def _since(trace: ForeignTrace, boot_ns: int) -> list[int]:
    """Return the rows of a trace that began after the machine. Raises IntegrityError where there are none."""
    rows = [row for row, one in enumerate(trace.slices) if one.start_ns >= boot_ns]
    if trace.slices and not rows:
        raise IntegrityError(
            "all that is in the file is from before this machine was started",
            hint="traces are related to a run by the real-time clock: was this one made on another machine?",
        )
    trace.leave_out(len(trace.slices) - len(rows), "they began before this machine was started")
    return rows


def _write(writer: TraceWriter, trace: ForeignTrace, number: int, pids: _Pids, since_ns: int) -> None:
    by_place: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in _since(trace, since_ns):
        by_place[trace.slices[row].process][trace.slices[row].track].append(row)
    crowded = 0
    flows = _Flows(number)
    for name, tracks in by_place.items():
        shown, pid = pids.of(name)
        process = writer.process(f"{trace.kind}: {shown}" if shown else trace.kind, pid=pid, rank=10 + number)
        for track_rank, (track, rows) in enumerate(tracks.items()):
            place = (track, process, track_rank)
            crowded += _write_track(writer, place, {row: trace.slices[row] for row in rows}, flows)
    trace.leave_out(crowded, f"more than {MAX_LANES} of one track went on at once")


class _Pids:
    """Numbers of processes, each once in the whole trace."""

    def __init__(self) -> None:
        self._taken = set(_OWN_PIDS)
        self._made_up = itertools.count(_FIRST_PID)

    def of(self, name: str) -> tuple[str, int]:
        """Return what a process is called, and its number: the one that its name ends in where that is still free."""
        words, _, last = name.rpartition(" ")
        is_number = last.isascii() and last.isdigit() and 0 < len(last) <= _PID_DIGITS
        if is_number and int(last) and int(last) not in self._taken:
            name, pid = words, int(last)
        else:
            pid = next(number for number in self._made_up if number not in self._taken)
        self._taken.add(pid)
        return name, pid


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
) -> int:
    """Write the slices of a track; returns how many there was no room for beside each other."""
    name, process, rank = place
    slices = list(by_row.values())
    local = {row: index for index, row in enumerate(by_row)}
    start = np.array([one.start_ns for one in slices], np.int64)
    end = np.array([one.end_ns for one in slices], np.int64)
    # A parent is an earlier row here, or it is none: slices of a track are in the order of the file.
    parents = [local.get(one.parent, _NO_PARENT) for one in slices]
    has_parents = any(one.parent != _NO_PARENT for one in slices)
    lanes = assign_lanes(start, end, np.array(parents, np.int64) if has_parents else None, most=MAX_LANES)
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
    return int((lanes == NO_LANE).sum())


def short(value: object) -> str:
    """Return a text as it is kept: printable and not too long."""
    text = str(value)[:MAX_TEXT]
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)
