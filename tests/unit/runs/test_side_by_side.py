"""What differs between several runs, and the files that a run has."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from support import ROOT

from mlbundle.errors import ReferenceNotFound
from mlbundle.runs.layers import kernels_of_run, layers_of_run
from mlbundle.runs.run_files import run_files
from mlbundle.runs.side_by_side import DifferingFact, differing_facts, most_telling

GOLDEN = json.loads((ROOT / "tests" / "golden" / "record-docker.json").read_text())


def changed(**members: object) -> dict:
    return copy.deepcopy(GOLDEN) | members


def test_a_fact_has_a_value_for_each_run() -> None:
    torch = {"name": "torch", "version": "2.0"}
    distributions = GOLDEN["environment"]["distributions"] | {"numpy": "1.0", "extra": "7"}
    other = changed(environment=GOLDEN["environment"] | {"distributions": distributions}, result=None)
    facts = differing_facts([changed(run_id="a"), changed(run_id="b", framework=torch), other])
    found = {(fact.section, fact.name): fact.values for fact in facts}
    numpy = GOLDEN["environment"]["distributions"]["numpy"]
    assert found == {
        ("framework", "name"): ("onnxruntime", "torch", "onnxruntime"),
        ("framework", "version"): ("1.31.1", "2.0", "1.31.1"),
        ("distributions", "numpy"): (numpy, numpy, "1.0"),
        ("distributions", "extra"): (None, None, "7"),
    }
    assert [fact.section for fact in facts] == ["framework"] * 2 + ["distributions"] * 2


def test_runs_that_are_the_same_differ_in_nothing() -> None:
    assert differing_facts([changed(), changed(run_id="x", started_at="later")]) == []
    assert differing_facts([]) == []


def test_the_most_telling_facts_are_the_first_of_each_section() -> None:
    def fact(section: str, name: str, *values: object) -> DifferingFact:
        return DifferingFact(section, name, f"/{section}/{name}", values)

    facts = [
        fact("framework", "name", "torch", "onnx"),
        fact("framework", "variant", "torch", "onnx"),
        fact("framework", "version", "1", "2"),
        fact("machine", "cpu", "a", "b"),
        fact("machine", "kernel", "1", "2"),
        fact("distributions", "extra", None, "1"),
    ]
    assert [fact.name for fact in most_telling(facts, 3)] == ["name", "version", "cpu"]
    assert [fact.name for fact in most_telling(facts, 2)] == ["name", "cpu"]
    assert [fact.name for fact in most_telling(facts, 9)] == ["name", "version", "cpu", "kernel"]


def test_files_of_the_folder_come_before_those_of_passes(tmp_path: Path) -> None:
    (tmp_path / "passes" / "01-measure").mkdir(parents=True)
    (tmp_path / "passes" / "01-measure" / "latencies.npy").write_bytes(b"1234")
    (tmp_path / "worker.log").write_text("x")
    (tmp_path / "gone").symlink_to("/nowhere")
    files = run_files(tmp_path)
    assert [(file.name, file.size_bytes) for file in files][1:] == [
        ("worker.log", 1),
        ("passes/01-measure/latencies.npy", 4),
    ]
    assert (files[0].name, bool(files[1].kind)) == ("gone", True)
    with pytest.raises(ReferenceNotFound):
        run_files(tmp_path / "none")


def test_layers_that_nobody_looked_at_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(ReferenceNotFound) as layers:
        layers_of_run(tmp_path)
    with pytest.raises(ReferenceNotFound) as kernels:
        kernels_of_run(tmp_path)
    assert "--trace framework" in str(layers.value.hint)
    assert "--trace system" in str(kernels.value.hint)
