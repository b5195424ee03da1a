"""Kernels and copies on a GPU, from TensorFlow's profiler (`tf.profiler.experimental`): an XSpace in a file.

Format: `xplane.proto` of TSL; names of facts as its `xplane_schema` has them. Times are ps after the start of a line,
which counts from the start of the profile, and that is on CLOCK_REALTIME.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping

from mlbundle.wire.columns import UNKNOWN

_FOLDER = "mlbundle-tensorflow-profile"
_MOST_BYTES = 1 << 30
_DEVICE_PLANE, _HOST_PLANE, _TASK_PLANE = "/device:GPU:", "/host:CPU", "Task Environment"
# Stamps below are counted from the start of the profile: nothing ran in 1973.
_LEAST_REALTIME_NS = 10**17
_COPIES = ("memcpy_details", "memset_details")
# Lines that the profiler's own analyses add; their events are those of the streams again.
_ADDED_LINES = re.compile(
    r"(?:Steps|XLA|TensorFlow|Framework|Source|Launch|Async|Derived|Kernel|Scope|Op |Modules)"
)


@dataclass(frozen=True)
class DeviceEvent:
    """A kernel or a copy: times in ns on CLOCK_REALTIME, the node that it is of, and when it was launched (or -1)."""

    name: str
    kind: str
    device: str
    stream: int
    start_ns: int
    end_ns: int
    correlation: int
    node: str
    launched_ns: int
    bytes: int
    grid: str
    block: str


class DeviceProfiler:
    """TensorFlow's profiler around all queries; what it refuses is kept in `trouble`."""

    def __init__(self, tf: Any, scratch: str) -> None:
        self._profiler, self._folder = tf.profiler.experimental, os.path.join(scratch, _FOLDER)
        self._running = False
        self.trouble = ""

    def begin(self) -> None:
        """Begin to profile."""
        try:
            options = self._profiler.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
            self._profiler.start(self._folder, options=options)
            self._running = True
        except Exception as error:  # noqa: BLE001 - layers are seen without it
            self._refused(error)

    def end(self) -> None:
        """End profiling; the file is written."""
        if not self._running:
            return
        self._running = False
        try:
            self._profiler.stop()
        except Exception as error:  # noqa: BLE001 - as above
            self._refused(error)

    def _refused(self, error: Exception) -> None:
        self.trouble = "TensorFlow's profiler refuses: {}: {}".format(type(error).__name__, str(error)[:300])

    def take(self) -> bytes:
        """Return the file and delete it; empty where there is none or it is too large."""
        found = glob.glob(os.path.join(glob.escape(self._folder), "plugins", "profile", "*", "*.xplane.pb"))
        try:
            if not found or os.path.getsize(found[0]) > _MOST_BYTES:
                self.trouble = self.trouble or "TensorFlow's profiler left no file that can be read"
                return b""
            with open(found[0], "rb") as stream:
                return stream.read()
        except OSError as error:
            self.trouble = "the file of TensorFlow's profiler can't be read: {}".format(error)
            return b""
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def read_events(data: bytes, note: Callable[[str], None]) -> list[DeviceEvent]:
    """Return what ran on GPUs, in the order of time; what makes no sense is left out and said."""
    if not data:
        return []
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        space = xplane_pb2.XSpace.FromString(data)
    except Exception as error:  # noqa: BLE001 - where it lies is not TensorFlow's public interface
        note("the file of TensorFlow's profiler can't be read: {}".format(type(error).__name__))
        return []
    began_ns = _began_ns(space)
    planes = [plane for plane in space.planes if plane.name.startswith(_DEVICE_PLANE)]
    if not planes:
        note("TensorFlow's profiler saw no GPU: kernels and copies are missing")
    launches: dict[int, int] = {}
    for plane in space.planes:
        if plane.name.startswith(_HOST_PLANE):
            launches.update(_launches(plane, began_ns))
    events = [event for plane in planes for event in _events(plane, began_ns, launches, note)]
    events.sort(key=lambda event: event.start_ns)
    return events


def _began_ns(space: Any) -> int:
    for plane in space.planes:
        if plane.name == _TASK_PLANE:
            return int(_facts(plane, plane.stats).get("profile_start_time", 0))
    return 0


def _facts(plane: Any, stats: Any) -> dict[str, Any]:
    """Return facts by name; a text may be the name of another fact."""
    facts = {}
    for stat in stats:
        kind = stat.WhichOneof("value")
        value = (
            plane.stat_metadata[stat.ref_value].name
            if kind == "ref_value"
            else getattr(stat, kind or "", None)
        )
        facts[plane.stat_metadata[stat.metadata_id].name] = value
    return facts


def _times(line: Any, event: Any, began_ns: int) -> tuple[int, int]:
    start_ns = line.timestamp_ns + event.offset_ps // 1000
    if start_ns < _LEAST_REALTIME_NS:
        start_ns += began_ns
    return start_ns, start_ns + event.duration_ps // 1000


def _launches(plane: Any, began_ns: int) -> Iterator[tuple[int, int]]:
    """Yield the correlation number and the time of each call that launched something."""
    for line in plane.lines:
        for event in line.events:
            correlation = _facts(plane, event.stats).get("correlation_id")
            if isinstance(correlation, int):
                yield correlation, _times(line, event, began_ns)[0]


def _events(
    plane: Any, began_ns: int, launches: Mapping[int, int], note: Callable[[str], None]
) -> Iterator[DeviceEvent]:
    device = "gpu:" + plane.name[len(_DEVICE_PLANE) :].split(" ")[0][:8]
    for line in plane.lines:
        if _ADDED_LINES.match(line.name):
            continue
        for event in line.events:
            start_ns, end_ns = _times(line, event, began_ns)
            if not 0 < start_ns <= end_ns < 1 << 62:
                note("kernels whose times make no sense were left out")
                continue
            metadata = plane.event_metadata[event.metadata_id]
            facts = {**_facts(plane, metadata.stats), **_facts(plane, event.stats)}
            copied = next((str(facts[name]) for name in _COPIES if name in facts), None)
            sizes = _sizes(str(facts.get("kernel_details", "") if copied is None else copied))
            correlation = facts.get("correlation_id")
            correlation = correlation if isinstance(correlation, int) and correlation >= 0 else UNKNOWN
            yield DeviceEvent(
                name=metadata.name,
                kind="kernel" if copied is None else "copy",
                device=device,
                stream=line.id if 0 <= line.id < 1 << 31 else UNKNOWN,
                start_ns=start_ns,
                end_ns=end_ns,
                correlation=correlation,
                node=str(facts.get("tf_op", "")).rpartition(":")[0],
                launched_ns=launches.get(correlation, UNKNOWN),
                bytes=_whole(sizes.get("size", sizes.get("num_bytes", ""))),
                grid=sizes.get("grid", "").replace(",", "x"),
                block=sizes.get("block", "").replace(",", "x"),
            )


def _sizes(details: str) -> dict[str, str]:
    """Return what `regs:32 grid:16,1,1 block:256,1,1` and `size:4096 dest:0` say."""
    return dict(re.findall(r"(\w+):([\d,]+)", details[:1000]))


def _whole(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 18 else UNKNOWN
