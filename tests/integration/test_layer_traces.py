"""Traces down to the kernels, from containers, of every framework: what Perfetto reads of them is what was seen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from framework_pythons import framework_cache
from judge import TraceJudge

from mlbundle.trace.tables import KERNELS, LAYERS, Table, load_table

FRAMEWORKS = ("onnxruntime", "torch", "tensorflow")
# Of the network as its authors describe it: one before the blocks, three in each of 16, one beside the first of each
# of four groups. Operations of the convolutions at 224x224, two for a multiplication and an addition.
CONVOLUTIONS = 53
CONVOLUTION_FLOPS = 8_174_272_512
CONVOLUTION_TYPES = {"Conv", "Conv2d", "Conv2D"}

pytestmark = [pytest.mark.engine, pytest.mark.network]


@pytest.fixture(autouse=True)
def frameworks_home(all_images: Path, in_image_home: Path) -> Path:
    """The home with all images; the environments that models are generated with are shared with other tests."""
    environments = in_image_home / "cache" / "envs"
    if not environments.exists():
        environments.parent.mkdir(parents=True, exist_ok=True)
        environments.symlink_to(framework_cache() / "envs", target_is_directory=True)
    return in_image_home


@pytest.fixture(scope="module")
def resnet50(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the real network is generated into, once."""
    return tmp_path_factory.mktemp("resnet") / "resnet50"


class Traced:
    """A run with its columns, and its trace as Perfetto has read it."""

    def __init__(self, home: Path, record: dict[str, Any]) -> None:
        self.record, self.folder = record, home / "data" / "runs" / record["run_id"]
        self.layers = load_table(self.folder / "layers.npz", LAYERS)
        self.kernels = load_table(self.folder / "kernels.npz", KERNELS)

    def numbers(self) -> dict[str, int]:
        """Level -> the number of its pass, as the columns have it."""
        folders = [p["files"][0].split("/")[1] for p in self.record["passes"] if p["kind"] == "profile"]
        levels = [profile["level"] for profile in self.record["profiles"]]
        return {level: int(folder[:2]) for level, folder in zip(levels, folders, strict=True)}


def run(cli, home: Path, model: str | Path, framework: str) -> Traced:
    done = cli(
        "run", model, "--framework", framework, "--runtime", "docker", "--trace", "full", "--concurrent",
        "--duration", "300ms", "--warmup", "10ms", "--no-accuracy", "--json",
    )  # fmt: skip
    record = done.document()
    assert record["status"] == "completed", done.stderr
    assert [profile.get("missing") for profile in record["profiles"]] == [None, None], done.stderr
    return Traced(home, record)


def judge_all(found: Traced) -> None:
    """Ask Perfetto for every layer and kernel of a run, and hold them against the columns."""
    with TraceJudge(found.folder / found.record["files"]["trace"]) as trace:
        assert trace.losses() == {}
        by_id = {s.id: s for s in trace.slices()}
        groups = {
            row["id"]: row["name"]
            for row in trace.query(
                "select t.id, p.name from track t join track p on t.parent_id = p.id where p.name glob 'profile: *'"
            )
        }
        for level, number in found.numbers().items():
            inside = [s for s in by_id.values() if groups.get(s.lane) == f"profile: {level}"]
            layers = [s for s in inside if s.category == "framework"]
            kernels = [s for s in inside if s.category == "system"]
            assert amounts(layers) == amounts_of(found.layers, number)
            assert amounts(kernels) == amounts_of(found.kernels, number)
            assert layers, level
            check_nesting(layers, by_id)
            queries = [s for s in inside if s.name == "query"]
            profile = next(p for p in found.record["profiles"] if p["level"] == level)
            assert len(queries) == profile["queries"]
            latencies = np.load(next(found.folder.glob(f"passes/{number:02d}-profile/latencies.npy")))
            assert sorted(s.dur for s in queries) == sorted(latencies.tolist())
            spent = sum(s.dur for s in layers if lane_of(s, by_id) == "query")
            assert 0 < spent <= sum(s.dur for s in queries)
        linked = {(a, b) for a, b in trace.flows() if by_id[b].category == "system"}
        kernels = [s for s in by_id.values() if s.category == "system"]
        assert kernels
        assert {b for _, b in linked} == {s.id for s in kernels if s.args["layer"] >= 0}
        assert all(s.args["layer"] >= 0 for s in kernels if s.args["kind"] == "operator")
        for layer, kernel in linked:
            assert by_id[layer].category == "framework"
            assert by_id[layer].args["index"] == by_id[kernel].args["layer"]
            assert by_id[layer].args["query"] == by_id[kernel].args["query"]
        assert {"cpu", "memory"} <= trace.counters().keys()


def check_nesting(layers: list[Any], by_id: dict[int, Any]) -> None:
    for layer in layers:
        if layer.parent is None:
            assert layer.track == "query"  # beside another layer: on a lane of its own
            continue
        above = by_id[layer.parent]
        assert above.name == "predict" or above.category == "framework"
        assert above.ts <= layer.ts
        assert layer.ts + layer.dur <= above.ts + above.dur


def lane_of(found: Any, by_id: dict[int, Any]) -> str:
    while found.parent is not None:
        found = by_id[found.parent]
    return str(found.name)


def amounts(slices: list[Any]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in slices:
        # A layer is shown by its author's name; what the framework calls it is beside it.
        name = str(one.args.get("name", one.name))
        total[name + " n"] += 1
        total[name + " ns"] += one.dur
    return total


def amounts_of(table: Table, number: int) -> Counter[str]:
    total: Counter[str] = Counter()
    rows = table.rows(table["pass"] == number)
    for name, duration in zip(rows.texts("name"), rows["duration_ns"].tolist(), strict=True):
        total[name + " n"] += 1
        total[name + " ns"] += duration
    return total


def convolutions(found: Traced) -> list[tuple[str, tuple[int, ...], int]]:
    """Name, sizes of the output without regard to its layout, and operations of each convolution of the first query."""
    layers = found.layers
    first = layers.rows((layers["pass"] == found.numbers()["framework"]) & (layers["run"] == 0))
    return [
        # TensorFlow's names may hold no dot.
        (name.replace("_", "."), tuple(sorted(map(int, shape.split("x")))), flops)
        for kind, name, shape, flops in zip(
            first.texts("type"), first.texts("original_name"), first.texts("shape_out"), first["flops"].tolist(), strict=True
        )
        if kind in CONVOLUTION_TYPES
    ]  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_full_trace_of_a_small_model(cli, frameworks_home: Path, framework: str) -> None:
    found = run(cli, frameworks_home, "digits-cnn", framework)
    judge_all(found)


def test_resnet50_has_the_same_convolutions_in_every_framework(
    cli, frameworks_home: Path, resnet50: Path
) -> None:
    made = cli("generate", "resnet50", "-o", resnet50, "--set", "images=2")
    assert made.status == 0, made.stderr
    tables = {}
    for framework in FRAMEWORKS:
        found = run(cli, frameworks_home, resnet50, framework)
        judge_all(found)
        tables[framework] = convolutions(found)
    for framework, table in tables.items():
        assert len(table) == CONVOLUTIONS, framework
        assert sum(flops for _, _, flops in table) == CONVOLUTION_FLOPS, framework
    one, *others = ([(shape, flops) for _, shape, flops in sorted(table)] for table in tables.values())
    names, *other_names = ([name for name, _, _ in sorted(table)] for table in tables.values())
    assert all(other == one for other in others)
    assert all(other == names for other in other_names), "layers have their author's names in every framework"
