"""Several processes of one run: each is judged, and the reason says which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlbundle.errors import ProtocolBroken
from mlbundle.runs.results import collect_results
from mlbundle.wire.events import Result


def processes(folder: Path, *latencies: Any, **changes: Any) -> dict[str, Result]:
    """Write the latencies of each process; return what each would say of itself."""
    results = {}
    for number, times in enumerate(latencies):
        place = f"passes/{number:02}-{'repeat' if number else 'measure'}"
        (folder / place).mkdir(parents=True)
        np.save(folder / place / "latencies.npy", np.asarray(times, np.int64))
        found = {
            "folder": place,
            "kind": place[10:],
            "headline": True,
            "queries": len(times),
            "samples": len(times),
            "busy_ns": int(np.sum(times)),
            "traced_queries": 0,
            **changes,
        }
        name = f"repeat:{number}" if number else "measure"
        values = {"loop_overhead_ns": 1.0, "warm_up_queries": 1, "peak_memory_bytes": 1, "passes": [found]}
        results[name] = Result(pass_kind=name, values={**values, "warm_up_settled": True})
    return results


STEADY = np.full(1200, 2_000_000)
RISING = np.linspace(1_000_000, 4_000_000, 1200)


def test_a_later_process_that_does_not_hold_still_or_did_too_little_counts_as_well(tmp_path: Path) -> None:
    told = processes(tmp_path, STEADY, RISING, STEADY[:7])
    found = collect_results(tmp_path, told, "online", {"repeats": 3})
    assert found.result["stability"]["stable"], "what is told is of the first"
    assert found.result["repeats"]["processes"] == 3
    assert [reason.partition(" ")[2][:12] for reason in found.reasons] == ["2: the laten", "3: 7 queries"]


def test_a_run_of_one_process_names_none(tmp_path: Path) -> None:
    (reason,) = collect_results(tmp_path, processes(tmp_path, RISING), "online", {}).reasons
    assert reason.startswith("the latency did not hold still")


@pytest.mark.parametrize("asked", [{"repeats": 3}, {"repeats": 1, "queries": 1199}])
def test_more_or_fewer_than_asked_is_refused(tmp_path: Path, asked: dict[str, int]) -> None:
    with pytest.raises(ProtocolBroken):
        collect_results(tmp_path, processes(tmp_path, STEADY, STEADY), "online", asked)


def test_a_lie_of_a_later_process_is_refused(tmp_path: Path) -> None:
    told = processes(tmp_path, STEADY, STEADY)
    told["repeat:1"].values["passes"][0]["busy_ns"] -= 1
    with pytest.raises(ProtocolBroken, match="busy_ns"):
        collect_results(tmp_path, told, "online", {"repeats": 2})
