"""Workers that lie about their profiles: a typed error, and what was measured before is still in the trace."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judge import TraceJudge
from support import make_bundle
from test_workers import FAKE

from mlbundle.config import load_settings
from mlbundle.errors import ProtocolBroken, RunFailed
from mlbundle.runs.execute import Execution
from mlbundle.runs.plan import RunOptions, make_plan
from mlbundle.runs.profiles import load_profiled, read_profiles
from mlbundle.runtime.archive import WorkerArchive
from mlbundle.trace.tables import KERNELS, LAYERS, load_table
from mlbundle.wire import columns
from mlbundle.wire.events import Result
from mlbundle.worker.profilers.base import Profile

HONEST: dict[str, Any] = {
    "folder": "passes/02-profile",
    "level": "framework",
    "queries": 3,
    "batch_size": 1,
    "batches": 1,
    "unprofiled_queries": 2,
    "layers": 6,
    "kernels": 3,
    "notes": ["a note"],
    "facts": {"nodes": 2},
}


def layers(**changes: list[int]) -> dict[str, np.ndarray]:
    """Two layers in each of three queries, as columns."""
    profile = Profile()
    for run in range(3):
        for index in range(2):
            profile.add_layer(run=run, index=index, name="conv", start_ns=run * 100 + index, duration_ns=1)
    return changed(profile.layers_bytes(), changes)


def kernels(**changes: list[int]) -> dict[str, np.ndarray]:
    """One kernel in each of three queries, as columns."""
    profile = Profile()
    for run in range(3):
        profile.add_kernel(run=run, layer_index=0, name="k", kind="kernel", start_ns=run * 100, duration_ns=1)
    return changed(profile.kernels_bytes(), changes)


def changed(content: bytes, changes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    import io

    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        found = dict(arrays)
    found.update({name: np.array(values) for name, values in changes.items()})
    return found


class Sent:
    """The folder of a run with what a worker sent: honest, until a test changes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "passes" / "01-measure").mkdir(parents=True)
        self.place = folder / "passes" / "02-profile"
        self.place.mkdir()
        self.times("unprofiled.npy", [7, 9])
        self.times("latencies.npy", [10, 30, 20])
        self.table("layers", layers())
        self.table("kernels", kernels())

    def times(self, name: str, values: Any, dtype: Any = np.int64) -> None:
        np.save(self.place / name, np.array(values, dtype))

    def table(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        np.savez_compressed(self.place / f"{name}.npz", **arrays)

    def read(self, name: str = "profile:framework", **changes: Any) -> dict[str, Any]:
        """Read all of it as a run does; returns what the record would say."""
        results = {name: Result(pass_kind=name, values={**HONEST, **changes})}
        (profile,) = read_profiles(self.folder, results)
        for kind in (LAYERS, KERNELS):
            load_profiled(self.folder, [profile], kind)
        return dict(profile.document)


@pytest.fixture
def sent(tmp_path: Path) -> Sent:
    return Sent(tmp_path / "run")


def test_an_honest_worker_is_believed(sent: Sent) -> None:
    found = sent.read()
    # Of both the first two.
    assert (found["unprofiled_p50_ns"], found["profiled_p50_ns"]) == (7, 10)
    assert found["facts"] == {"nodes": 2}


@pytest.mark.parametrize(
    "values",
    [
        {"folder": "passes/01-measure"},
        {"folder": "passes/03-profile"},
        {"folder": "passes/x-profile"},
        {"folder": "../02-profile"},
        {"folder": "passes/../../etc-profile"},
        {"folder": "passes/02-profile/../02-profile"},
        {"folder": 2},
        {"level": "system"},
        {"level": ["framework"]},
        {"queries": 4},
        {"queries": 0},
        {"queries": -1},
        {"queries": True},
        {"queries": 1 << 70},
        {"batch_size": 0},
        {"batches": 0},
        {"batches": None},
        {"unprofiled_queries": 0},
        {"unprofiled_queries": 3},
        {"layers": 5},
        {"layers": "many"},
        {"kernels": 4},
        {"notes": "all is well"},
        {"notes": [7]},
        {"notes": ["\x1b[31mred"]},
        {"notes": ["x" * 1001]},
        {"notes": ["x"] * 33},
        {"notes": None},
        {"facts": [1]},
        {"facts": None},
    ],
    ids=str,
)
def test_words_that_can_not_be_are_not_believed(sent: Sent, values: dict[str, Any]) -> None:
    with pytest.raises(ProtocolBroken):
        sent.read(**values)


def test_the_ratio_is_of_the_same_queries_in_whole_rounds(sent: Sent) -> None:
    # Samples of 10 and 90 ns in turn, twice as slow with the profiler, which saw fewer of them.
    sent.times("unprofiled.npy", [10, 90, 90] * 3)
    sent.times("latencies.npy", [20, 180, 180, 20, 20])
    sent.table("layers", layers())
    found = sent.read(queries=5, unprofiled_queries=9, batches=3)
    assert (found["queries"], found["unprofiled_queries"], found["compared_queries"]) == (5, 9, 3)
    assert (found["unprofiled_p50_ns"], found["profiled_p50_ns"], found["ratio"]) == (90, 180, 2.0)
    # Less than a round of one of them: as many of the other.
    sent.times("latencies.npy", [20, 180])
    sent.table(
        "layers",
        {name: column[:4] for name, column in layers().items() if name != "strings"}
        | {"strings": layers()["strings"]},
    )
    sent.table("kernels", kernels(run=[0, 1, 1]))
    found = sent.read(queries=2, unprofiled_queries=9, batches=3, layers=4)
    assert (found["compared_queries"], found["ratio"]) == (2, 2.0)


def test_facts_of_any_size_and_depth_are_cut(sent: Sent) -> None:
    deep: Any = {"end": "x" * 100_000}
    for _ in range(100):
        deep = {"deeper": deep}
    found = sent.read(facts={**{f"n{number}": 1 for number in range(10_000)}, "deep": deep})
    assert len(json.dumps(found["facts"])) < 10_000


@pytest.mark.parametrize(
    ("name", "values", "dtype"),
    [
        ("unprofiled.npy", [7.5, 9.5], np.float64),
        ("unprofiled.npy", [-7, 9], np.int64),
        ("latencies.npy", [-10, 30, 20], np.int64),
        ("latencies.npy", [[10, 30, 20]], np.int64),
    ],
)
def test_times_that_can_not_be_are_not_believed(sent: Sent, name: str, values: Any, dtype: Any) -> None:
    sent.times(name, values, dtype)
    with pytest.raises(ProtocolBroken):
        sent.read()


@pytest.mark.parametrize(
    ("name", "arrays", "words"),
    [
        ("layers", layers(run=[0, 0, 1, 1, 2, 3]), "queries that there were not"),
        ("kernels", kernels(run=[0, 1, 1 << 40]), "queries that there were not"),
        ("layers", layers(index=[0, 1, 0, 1, 1, 1]), "the same number"),
        ("layers", layers(start_ns=[-1] * 6), "start_ns is not negative"),
        ("layers", layers(duration_ns=[(1 << 63) - 1] * 6), "63 bits"),
        ("kernels", kernels(duration_ns=[-1, 0, 0]), "duration_ns is not negative"),
        ("kernels", kernels(kind=[0, 0, 0]), "kind is one of"),
        ("layers", layers(strings=["", "a\x07"]), "printable"),
        ("layers", layers(strings=["x" * 1025, "y"]), "characters long"),
        ("layers", layers(strings=["x"] * 65_537), "rows"),
        ("layers", layers(run=[0.0] * 6), "float64"),
    ],
)
def test_tables_that_can_not_be_are_not_believed(sent: Sent, name: str, arrays: Any, words: str) -> None:
    sent.table(name, arrays)
    with pytest.raises(ProtocolBroken, match=words):
        sent.read()


def test_a_table_that_was_not_sent_or_is_another_one(sent: Sent) -> None:
    (sent.place / "kernels.npz").unlink()
    with pytest.raises(ProtocolBroken, match="not as many"):
        sent.read()
    (sent.place / "kernels.npz").write_bytes((sent.place / "layers.npz").read_bytes())
    with pytest.raises(ProtocolBroken, match="can't be read"):
        sent.read()
    (sent.place / "kernels.npz").write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(ProtocolBroken, match="can't be read"):
        sent.read()


def test_a_giant_table_is_refused_before_it_is_read(sent: Sent) -> None:
    giant = np.zeros(columns.MAX_ROWS + 1, np.int64)
    sent.table("layers", layers(run=giant))
    with pytest.raises(ProtocolBroken, match="can't be read"):
        sent.read()


def test_layers_without_a_query_are_none(sent: Sent) -> None:
    with pytest.raises(ProtocolBroken):
        sent.read(queries=0, kernels=0)


def test_a_number_of_a_pass_is_used_once(sent: Sent) -> None:
    (sent.folder / "passes" / "02-measure").mkdir()
    with pytest.raises(ProtocolBroken, match="folder"):
        sent.read()


def test_two_profiles_in_one_folder(sent: Sent) -> None:
    words = {"profile:framework": HONEST, "profile:system": {**HONEST, "level": "system"}}
    results = {name: Result(pass_kind=name, values=values) for name, values in words.items()}
    with pytest.raises(ProtocolBroken, match="folder"):
        read_profiles(sent.folder, results)


PRELUDE = """
import time
from mlbundle.worker.profilers.base import Profile
from mlbundle.worker.spans import SpanRecorder
NOW, TOLD = CLOCK, %r
HELLO["clocks"] = dict(monotonic=NOW, realtime=time.time_ns())

def event(**document):
    frame(2, json.dumps(dict(protocol=1, t_ns=NOW, **document)).encode())

def queries(rows):
    spans = SpanRecorder(True)
    spans.add_queries([NOW + run * 100 for run in range(3)], [NOW + run * 100 + 50 for run in range(3)], 0)
    file("passes/02-profile/spans.npz", spans.to_bytes())

def profile(folder="passes/02-profile", name="profile:framework", files=True, more=lambda rows: None, **values):
    rows = Profile()
    for run in range(3):
        for index in range(2):
            rows.add_layer(run=run, index=index, name="conv", start_ns=NOW + run * 100, duration_ns=1)
    more(rows)
    values = {**TOLD, "layers": rows.layers, "kernels": rows.kernels, "folder": folder, **values}
    if files:
        file(folder + "/unprofiled.npy", npy(np.array([7, 9])))
        file(folder + "/latencies.npy", npy(np.array([10, 30, 20])))
        file(folder + "/layers.npz", rows.layers_bytes())
        if rows.kernels:
            file(folder + "/kernels.npz", rows.kernels_bytes())
    event(kind="result", pass_kind=name, values=values)
""" % {**HONEST, "kernels": 0}  # noqa: UP031 - the text is full of braces

LIES = {
    "fewer layers": "greet(); results(); profile(layers=5); end()",
    "two results": "greet(); results(); profile(); profile(files=False); end()",
    "a level that nobody asked for": "greet(); results(); profile(name='profile:system', level='system'); end()",
    "the folder of another pass": "greet(); results(); profile('passes/01-profile'); end()",
    "a note of 10 MB": "greet(); results(); profile(notes=['x' * 10_000_000]); end()",
    "a file that profiles do not have": "greet(); results(); file('passes/02-measure/layers.npz', b'x'); end()",
}


@pytest.fixture
def run_with(tmp_path: Path):
    settings = load_settings()
    bundle = make_bundle(tmp_path / "mini")

    def run(
        body: str, level: str = "framework", clock: str = "time.monotonic_ns()"
    ) -> tuple[Execution, Path]:
        script = tmp_path / "worker-fake.py"
        prelude = PRELUDE.replace("CLOCK", clock)
        script.write_text(FAKE.format(body=prelude + body))
        here = {"runtime": "process", "python": Path(sys.executable), "hang_timeout_s": 60.0}
        plan = make_plan(RunOptions(str(bundle), trace_level=level, **here), settings)
        plan = dataclasses.replace(plan, worker=WorkerArchive(script, "0" * 64, "0"))
        return Execution(plan, settings), settings.runs_dir / plan.run_id

    return run


def test_an_honest_profile_is_in_record_and_trace(run_with) -> None:
    execution, folder = run_with("greet(); results(); profile(); end()")
    list(execution.events())
    assert execution.record is not None
    assert execution.record["profiles"][0]["layers"] == 6
    with TraceJudge(folder / "trace.pftrace.gz") as trace:
        assert sum(s.category == "framework" for s in trace.slices()) == 6


OTHER_TIMES = """
def more(rows):
    queries(rows)
    rows.add_layer(run=0, index=7, name="of another query", start_ns=NOW + 50_000, duration_ns=1)
    rows.add_layer(run=1, index=7, name="longer than its query", start_ns=NOW + 110, duration_ns=10**9)
    rows.add_layer(run=2, index=7, name="at boot", start_ns=0, duration_ns=5)
    for start_ns in (0, NOW - 10**12, NOW + 10**14, (1 << 62) - 1):
        rows.add_kernel(run=0, name="k", kind="kernel", start_ns=start_ns, duration_ns=5)
    rows.add_kernel(run=0, name="k", kind="kernel", start_ns=NOW + 30, duration_ns=4 * 10**9)

greet(); results(); profile(more=more); end()
"""


@pytest.mark.parametrize("ahead_ns", [0, 10**12])
def test_rows_of_other_times_are_left_out_and_told(run_with, ahead_ns: int) -> None:
    # A worker whose clock is another one's is shifted; what can't be shifted is no reason to lose the run.
    clock = f"{ahead_ns} + time.monotonic_ns()"
    execution, folder = run_with(OTHER_TIMES, clock=clock)
    list(execution.events())
    assert execution.record is not None
    (found,) = execution.record["profiles"]
    assert (found["layers"], found["kernels"]) == (6, 1)
    assert found["notes"][-2:] == [
        "3 layers are left out: their times can't be",
        "4 kernels are left out: their times can't be",
    ]
    assert len(load_table(folder / "kernels.npz", KERNELS)) == 1
    with TraceJudge(folder / "trace.pftrace.gz") as trace:
        assert trace.losses() == {}
        assert {s.name for s in trace.slices() if s.category == "framework"} == {"conv"}
        assert [s.dur for s in trace.slices() if s.category == "system"] == [4 * 10**9]


@pytest.mark.parametrize("name", sorted(LIES))
def test_a_lying_profile_ends_in_a_typed_error_and_a_trace_without_it(run_with, name) -> None:
    execution, folder = run_with(LIES[name])
    with pytest.raises(ProtocolBroken) as caught:
        list(execution.events())
    assert len(str(caught.value)) < 5000
    record = json.loads((folder / "record.json").read_text())
    assert (record["status"], record["profiles"]) == ("failed", [])
    assert (folder / record["files"]["trace"]).stat().st_size > 0
    if name == "fewer layers":  # one will do: each takes a second
        with TraceJudge(folder / "trace.pftrace.gz") as trace:
            assert trace.losses() == {}
            assert not any(s.category in {"framework", "system", "model"} for s in trace.slices())


def test_profiles_are_refused_where_none_was_asked_for(run_with) -> None:
    for level in ("none", "model"):
        execution, _ = run_with("greet(); results(); profile(files=False); end()", level)
        with pytest.raises(RunFailed, match="not wanted"):
            list(execution.events())
