"""How fast the trace writer is, beside the documented way of the `perfetto` package.

    python benchmarks/trace_writer.py [--slices 1000000] [--rounds 3]

Each way writes the same slices (nine inside a tenth, back to back; seven names, one category) to a file, in a process
of its own; the ways take turns. Ours compress while they write, the documented way does not. CPU seconds are user and
system time of the process after its imports; peak memory is the process's, imports and input included.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("decode", "resize", "normalize", "predict", "softmax", "argsort", "query")
CATEGORY = "model"
START_NS = 123_456_789_000_000
STEP_NS = 1_000
GROUP = 10
TARGET_RATIO, TARGET_SECONDS, TARGET_MIB = 3.0, 2.5, 250


def documented(path: Path, count: int) -> None:
    """The package's builder, as its documentation shows it."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    builder = TraceProtoBuilder()
    packet = builder.add_packet()
    packet.track_descriptor.uuid = 1
    packet.track_descriptor.name = "slices"

    def event(kind: int, t_ns: int, name: str) -> None:
        packet = builder.add_packet()
        packet.timestamp = t_ns
        packet.timestamp_clock_id = 3
        packet.trusted_packet_sequence_id = 1
        packet.track_event.type = kind
        packet.track_event.track_uuid = 1
        packet.track_event.name = name
        packet.track_event.categories.append(CATEGORY)

    begin, end = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
    for i in range(0, count, GROUP):
        start = START_NS + i * STEP_NS
        event(begin, start, NAMES[-1])
        for k in range(GROUP - 1):
            event(begin, start + k * STEP_NS, NAMES[k % 6])
            event(end, start + (k + 1) * STEP_NS, NAMES[k % 6])
        event(end, start + GROUP * STEP_NS, NAMES[-1])
    path.write_bytes(builder.serialize())


def rows(path: Path, count: int) -> None:
    """Our writer, a call for each slice."""
    from mlbundle.trace.perfetto import trace_writer
    from mlbundle.wire.clocks import clock_snapshot

    with trace_writer(path, clock_snapshot()) as writer:
        track = writer.track("slices", writer.process("benchmark", pid=1))
        add = writer.slice
        for i in range(0, count, GROUP):
            start = START_NS + i * STEP_NS
            add(track, NAMES[-1], start, start + GROUP * STEP_NS, category=CATEGORY)
            for k in range(GROUP - 1):
                t_ns = start + k * STEP_NS
                add(track, NAMES[k % 6], t_ns, t_ns + STEP_NS, category=CATEGORY)


def columns(path: Path, count: int) -> None:
    """Our writer, one call with columns for all slices."""
    import numpy as np

    from mlbundle.trace.columns import SliceColumns
    from mlbundle.trace.perfetto import trace_writer
    from mlbundle.wire.clocks import clock_snapshot

    index = np.arange(count, dtype=np.int64)
    place = index % GROUP - 1  # -1: the slice around the nine that follow
    start = START_NS + (index - index % GROUP + np.maximum(place, 0)) * STEP_NS
    duration = np.where(place < 0, GROUP * STEP_NS, STEP_NS)
    with trace_writer(path, clock_snapshot()) as writer:
        track = writer.track("slices", writer.process("benchmark", pid=1))
        names = np.where(place < 0, 6, place % 6)
        writer.slices(track, SliceColumns(start, duration, names, NAMES, category=CATEGORY))


WAYS = {"documented": documented, "rows": rows, "columns": columns}


def measure(way: str, count: int) -> dict[str, float]:
    """Run one way in this process and say what it took."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        WAYS[way](path, GROUP)  # imports
        begun = time.process_time()
        WAYS[way](path, count)
        cpu_s = time.process_time() - begun
        size_bytes = path.stat().st_size
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu_s": cpu_s, "peak_mib": peak_mib, "size_bytes": size_bytes}


def main() -> int:
    """Measure all ways in turn, print the table; exit status 1 when a target is missed at 1,000,000 slices or more."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slices", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help="measure one way in this process and print JSON")
    chosen = parser.parse_args()
    count = max(GROUP, chosen.slices // GROUP * GROUP)
    if chosen.way:
        print(json.dumps(measure(chosen.way, count)))
        return 0
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(chosen.rounds):
        for way, results in found.items():
            command = [sys.executable, __file__, "--way", way, "--slices", str(count)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results.append(json.loads(done.stdout))
    return report(found, count)


def report(found: dict[str, list[dict[str, float]]], count: int) -> int:
    """Print medians over the rounds and compare ours with the targets."""
    medians = {
        way: {key: statistics.median(result[key] for result in results) for key in results[0]}
        for way, results in found.items()
    }
    print(
        f"{count:,} slices, median of {len(found['rows'])} rounds; CPython {platform.python_version()}, {machine()}"
    )
    print(f"{'way':<12}{'CPU s':>8}{'slices/CPU s':>15}{'ratio':>8}{'bytes/slice':>13}{'peak MiB':>10}")
    slowest = medians["documented"]["cpu_s"]
    for way, result in medians.items():
        ratio = slowest / result["cpu_s"]
        print(
            f"{way:<12}{result['cpu_s']:>8.2f}{count / result['cpu_s']:>15,.0f}{'x' + format(ratio, '.2f'):>8}"
            f"{result['size_bytes'] / count:>13.1f}{result['peak_mib']:>10.0f}"
        )
    missed = [
        f"{way}: {what}"
        for way in ("rows", "columns")
        for what, bad in (
            (f"under x{TARGET_RATIO}", slowest / medians[way]["cpu_s"] < TARGET_RATIO),
            (f"over {TARGET_SECONDS} CPU s", medians[way]["cpu_s"] > TARGET_SECONDS),
            (f"over {TARGET_MIB} MiB", medians[way]["peak_mib"] > TARGET_MIB),
        )
        if bad
    ]
    print("targets (x3, 2.5 CPU s, 250 MiB for a million): " + ("; ".join(missed) or "all met"))
    return 1 if missed and count >= 1_000_000 else 0


def machine() -> str:
    """Return the processor of this machine in words."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} x {models[0]}" if models else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
