"""What a worker sends of a profile has been held against its queries: times of a device, names that are too long."""

from __future__ import annotations

import io

import numpy as np

from mlbundle.wire.columns import DEVICE_CLOCK_NS, DEVICE_MARGIN_NS
from mlbundle.worker.profilers import rows
from mlbundle.worker.profilers.base import Profile, Run
from mlbundle.worker.profilers.settle import settle

T0, LAST = 50 * 10**9, 51 * 10**9
RUNS = [Run(0, T0, T0 + 1000, 0), Run(1, LAST, LAST + 1000, 0)]


def kept(content: bytes, column: str) -> list[int]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return arrays[column].tolist()


def test_a_device_works_for_a_query_after_it_was_asked_to_and_not_for_ever() -> None:
    profile = Profile()
    sound = [
        (0, T0 + 10, 5), (0, T0 - DEVICE_CLOCK_NS, 5), (0, T0 + 10, 2 * 10**9), (1, LAST + DEVICE_MARGIN_NS, 1000),
    ]  # fmt: skip
    lies = [
        (0, 0, 5),
        (1, T0, 5),
        (0, T0, LAST),
        (1, LAST + DEVICE_MARGIN_NS, 1001),
        (0, (1 << 62) - 1, 1 << 61),
    ]
    for run, start_ns, duration_ns in [*sound, *lies]:
        profile.add_kernel(run=run, name="k", kind="kernel", start_ns=start_ns, duration_ns=duration_ns)
    settle(profile, RUNS)
    assert kept(profile.kernels_bytes(), "start_ns") == [start_ns for _, start_ns, _ in sound]
    assert profile.notes == ["5 kernels or operators before their query or long after all of them: left out"]


def test_names_that_are_cut_are_counted(monkeypatch) -> None:
    def notes(*names: str) -> list[str]:
        profile = Profile()
        for index, name in enumerate(names):
            profile.add_layer(run=0, index=index, name=name, start_ns=T0, duration_ns=1)
        settle(profile, RUNS)
        return profile.notes

    assert notes("short", "x" * rows.MOST_NAME_CHARACTERS) == []
    assert notes("short", "x" * 5000, "y" * 1001) == ["2 texts of layers longer than a table holds: cut"]
    # Many texts share the room of a table.
    monkeypatch.setattr(rows, "_MOST_TABLE_CHARACTERS", 20)
    assert notes("short", "a longer one") == ["1 texts of layers longer than a table holds: cut"]
