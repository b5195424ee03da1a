"""How fast the trace writer is, beside the documented way of the `perfetto` package.

    python benchmarks/trace_writer.py [--slices 1000000] [--rounds 3]

`documented`, `rows` and `columns` write the same slices (nine inside a tenth, back to back; seven names, one category).
`profile` writes layers and kernels as a run does: queries of 99 layers, each with an operator inside it and a kernel on
a stream of a device; a layer has eleven annotations, six of them texts, and flows from its query and to both of its
kernels, which have five or eight annotations. `counters` are values of ten counters instead of slices.

Each way writes to a file, in a process of its own; the ways take turns. Ours compress while they write, the documented
way does not. CPU seconds are user and system time of the process after its imports. Peak memory is the process's,
imports and input included; `writer` is how much of it came after the input was there.
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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("decode", "resize", "normalize", "predict", "softmax", "argsort", "query")
CATEGORY = "model"
START_NS = 123_456_789_000_000
STEP_NS = 1_000
GROUP = 10
LAYERS = 99
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


def profile(queries: int) -> Any:
    """Make a profiled pass of so many queries, 299 slices each."""
    import numpy as np

    from mlbundle.trace.profiled import ProfiledPass
    from mlbundle.trace.spans import SpanColumns

    query = np.arange(queries, dtype=np.int64)
    begun = START_NS + query * (LAYERS + 2) * STEP_NS
    spans = SpanColumns(
        strings=("query", "predict"),
        level=np.ones(2 * queries, np.int64),
        track=np.zeros(2 * queries, np.int64),
        name=np.tile([0, 1], queries),
        start_ns=np.repeat(begun, 2),
        duration_ns=np.full(2 * queries, (LAYERS + 2) * STEP_NS),
        parent=np.where(np.arange(2 * queries) % 2, np.arange(2 * queries) - 1, -1),
        query=np.repeat(query, 2),
        pass_number=np.zeros(2 * queries, np.int64),
    )
    run, index = np.repeat(query, LAYERS), np.tile(np.arange(LAYERS, dtype=np.int64), queries)
    start = np.repeat(begun, LAYERS) + (index + 1) * STEP_NS
    return ProfiledPass("system", spans, _layers(run, index, start), _kernels(run, index, start))


def _layers(run: Any, index: Any, start: Any) -> Any:
    from mlbundle.trace.tables import LAYERS as KIND
    from mlbundle.trace.tables import Table

    own = [f"layer{number // 10}.{number % 10}.conv" for number in range(LAYERS)]
    shared = ["", "Conv", "Relu", "CPUExecutionProvider", "1x64x56x56", "1x64x56x56, 64x64x3x3", "computed"]
    strings = (*shared, *own, *(f"{name}_nchwc" for name in own))
    first = len(shared)
    columns = {
        "run": run, "index": index, "start_ns": start, "duration_ns": index * 0 + STEP_NS - 100,
        "alloc_bytes": (index + 1) * 4096, "param_bytes": (index + 1) * 1000, "flops": (index + 1) * 1_000_000,
        "name": index + first + LAYERS, "original_name": index + first, "type": index % 2 + 1,
        "provider": index * 0 + 3, "shape_in": index * 0 + 5, "shape_out": index * 0 + 4,
        "flops_source": index * 0 + 6, "pass": index * 0,
    }  # fmt: skip
    return Table(KIND, strings, columns)


def _kernels(run: Any, index: Any, start: Any) -> Any:
    """Two for each layer: an operator inside it, and a kernel of a device later."""
    import numpy as np

    from mlbundle.trace.tables import KERNELS, Table

    count = 2 * len(run)
    on_device = np.tile([False, True], len(run))
    shared = ("", "operator", "kernel", "cpu", "GPU 0", "196,1,1", "64,1,1")
    strings = (*shared, *(f"void implicit_gemm<{number}, float, float>(float*)" for number in range(40)))
    columns = {
        "run": np.repeat(run, 2), "layer_index": np.repeat(index, 2), "stream": np.where(on_device, 7, 1234),
        "start_ns": np.repeat(start, 2) + np.where(on_device, 3 * STEP_NS, 50),
        "duration_ns": np.full(count, STEP_NS // 2), "correlation": np.where(on_device, np.arange(count), -1),
        "bytes": np.full(count, -1), "name": np.repeat(index % 40 + len(shared), 2), "kind": on_device + 1,
        "device": on_device + 3, "grid": on_device * 5, "block": on_device * 6, "pass": np.zeros(count, np.int64),
    }  # fmt: skip
    return Table(KERNELS, strings, columns)


def write_profile(path: Path, profiled: Any) -> None:
    """Layers and kernels, as a run writes them."""
    from mlbundle.trace.perfetto import trace_writer
    from mlbundle.trace.profiled import write_profiles
    from mlbundle.wire.clocks import clock_snapshot

    with trace_writer(path, clock_snapshot()) as writer:
        write_profiles(writer, writer.process("worker", pid=2), [profiled], 1, 1 << 32)


def samples(count: int) -> Any:
    """Make values of ten counters."""
    import numpy as np

    from mlbundle.trace.samples import SampleColumns

    row = np.arange(count, dtype=np.int64)
    names = tuple(f"counter{number}_bytes" for number in range(10))
    return SampleColumns(names, row % 10, START_NS + row * STEP_NS, np.sqrt(row))


def write_samples(path: Path, columns: Any) -> None:
    """Counters, as a run writes them."""
    from mlbundle.trace.counters import write_counters
    from mlbundle.trace.perfetto import trace_writer
    from mlbundle.wire.clocks import clock_snapshot

    with trace_writer(path, clock_snapshot()) as writer:
        write_counters(writer, writer.process("counters", pid=3), columns)


def same(count: int) -> int:
    """Return how many slices there shall be: what the ways that make them as they go begin with."""
    return count


# What makes the input, and what writes it.
WAYS: dict[str, tuple[Callable[[int], Any], Callable[[Path, Any], None]]] = {
    "documented": (same, documented),
    "rows": (same, rows),
    "columns": (same, columns),
    "profile": (lambda count: profile(max(1, round(count / (2 + 3 * LAYERS)))), write_profile),
    "counters": (samples, write_samples),
}


def measure(way: str, count: int) -> dict[str, float]:
    """Run one way in this process and say what it took."""
    make, write = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        write(path, make(GROUP))  # imports
        given = make(count)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begun = time.process_time()
        write(path, given)
        cpu_s = time.process_time() - begun
        size_bytes = path.stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "cpu_s": cpu_s, "peak_mib": peak / 1024, "writer_mib": (peak - before) / 1024, "size_bytes": size_bytes
    }  # fmt: skip


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
    print(
        f"{'way':<12}{'CPU s':>8}{'slices/CPU s':>15}{'ratio':>8}{'bytes/slice':>13}{'peak MiB':>10}{'writer':>8}"
    )
    slowest = medians["documented"]["cpu_s"]
    for way, result in medians.items():
        ratio = slowest / result["cpu_s"]
        print(
            f"{way:<12}{result['cpu_s']:>8.2f}{count / result['cpu_s']:>15,.0f}{'x' + format(ratio, '.2f'):>8}"
            f"{result['size_bytes'] / count:>13.1f}{result['peak_mib']:>10.0f}{result['writer_mib']:>8.0f}"
        )
    missed = [
        f"{way}: {what}"
        for way in ("rows", "columns", "profile", "counters")
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
