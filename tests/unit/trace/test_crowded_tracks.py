"""More slices at once than a track shows: so many lanes, the rest counted and told; the columns keep all."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from span_samples import recorded
from table_samples import kernels_of, layers_of

from mlbundle.trace.columns import SliceColumns
from mlbundle.trace.nesting import MAX_LANES, assign_lanes
from mlbundle.trace.perfetto import trace_writer
from mlbundle.trace.profiled import ProfiledPass
from mlbundle.trace.timeline import write_timeline
from mlbundle.worker.spans import SpanRecorder

T0 = 70_000_000_000
CLOCKS = {"monotonic": T0, "realtime": T0 + 1}


@pytest.mark.parametrize("with_parents", [False, True])
def test_lanes_that_were_left_are_taken_again(with_parents: bool) -> None:
    # Twenty at once, then twenty more when they have ended.
    start = np.concatenate([np.arange(20), 1000 + np.arange(20)]).astype(np.int64)
    parent = np.full(40, -1, np.int64) if with_parents else None
    found = assign_lanes(start, start + 500, parent, most=10)
    assert found[:20].tolist() == [*range(10), *[-1] * 10]
    assert sorted(found[20:30].tolist()) == list(range(10))
    assert (found[30:] == -1).all()


@pytest.mark.parametrize("lasts", [1_000, 10_000_000])
def test_any_number_of_slices_at_once_takes_seconds(tmp_path: Path, lasts: int) -> None:
    count = 100_000
    slices = SliceColumns(
        np.arange(count), np.full(count, lasts, np.int64), np.zeros(count, np.int64), ("k",)
    )
    begun = time.process_time()
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        writer.slices(writer.track("stream", writer.process("worker", pid=1)), slices)
    assert time.process_time() - begun < 10
    assert writer.slices_written + writer.left_out["stream"] == count
    assert writer.slices_written == MAX_LANES * -(-count // lasts)


def test_what_a_track_does_not_show_is_told(tmp_path: Path, judge) -> None:
    kernels = [
        {"run": 0, "layer_index": 0, "name": "k", "kind": "kernel", "device": "GPU 0", "stream": 7,
         "start_ns": T0 + 10 + number, "duration_ns": 5_000}
        for number in range(MAX_LANES + 9)
    ]  # fmt: skip
    recorder = SpanRecorder(True)
    recorder.add_queries([T0], [T0 + 9_000], 0)
    layer = {"run": 0, "index": 0, "name": "conv", "start_ns": T0 + 5, "duration_ns": 8_000}
    profiled = ProfiledPass(
        "system",
        recorded(recorder, tmp_path / "spans.npz"),
        layers_of(tmp_path / "layers.npz", layer),
        kernels_of(tmp_path / "kernels.npz", *kernels),
    )
    summary = write_timeline(
        tmp_path / "t.gz", host_phases=[], spans=[], windows=[], attributes={}, clocks_start=CLOCKS,
        clocks_end={name: value + 10_000 for name, value in CLOCKS.items()}, profiles=[profiled], notes=["first"],
    )  # fmt: skip
    assert summary.notes[0] == "first"
    assert summary.notes[1].startswith("GPU 0 stream 7: 9 slices are left out")
    trace = judge(tmp_path / "t.gz")
    shown = [s for s in trace.slices() if s.name == "k"]
    assert len(shown) == MAX_LANES == len({s.lane for s in shown})
    told = [s.name for s in trace.slices() if s.track == "notes"]
    assert told == list(summary.notes)
    assert trace.losses() == {}
