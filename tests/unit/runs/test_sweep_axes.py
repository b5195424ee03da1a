"""From a matrix to cells: what is combined, what is left out, what is refused, and where."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.cli.run import command as run_command
from mlbundle.cli.scenario import chosen_scenario
from mlbundle.errors import ReferenceNotFound, UsageError
from mlbundle.runs.sweep_axes import MOST_CELLS, Cell, Forms, Matrix, make_cells, varying
from mlbundle.runs.sweep_estimate import Experience, kind_of_cell, planned_seconds
from mlbundle.runs.sweep_matrix import is_matrix, load_matrix

DIGEST = "sha256:" + "5" * 64
FORMS = Forms(("onnxruntime", "torch", "torch-export"), ("onnxruntime", "torch", "torch"))


def cells(axes: dict[str, tuple[str, ...]], **more: object) -> list[Cell]:
    return make_cells(Matrix("mini", axes, **more), DIGEST, FORMS)  # type: ignore[arg-type]


def refused(axes: dict[str, tuple[str, ...]], **more: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        cells(axes, **more)
    return caught.value


def test_nothing_said_is_one_run_of_the_top_level() -> None:
    (cell,) = cells({})
    assert cell.arguments == ("run", DIGEST, "--scenario", "online", "--framework", "onnxruntime")
    assert (cell.number, cell.round) == (1, 1)


@given(
    frameworks=st.lists(st.sampled_from(FORMS.names), min_size=1, max_size=3),
    threads=st.lists(st.integers(1, 1024).map(str), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 64).map(str), min_size=1, max_size=4),
    rounds=st.integers(1, 3),
)
def test_cells_are_the_product_each_once_and_each_a_line_that_run_takes(
    frameworks: list[str], threads: list[str], sizes: list[str], rounds: int
) -> None:
    axes = {
        "scenario": ("online", "batched"),
        "framework": tuple(frameworks),
        "threads": tuple(threads),
        "batch-sizes": tuple(sizes),
    }
    found = cells(axes, rounds=rounds)
    common = set(product(frameworks, threads))
    wanted = {("online", f, t, None) for f, t in common}
    wanted |= {("batched", f, t, size) for (f, t), size in product(common, set(sizes))}
    told = [
        (c.round, c.scenario, c.values["framework"], c.values["threads"], c.values.get("batch-sizes"))
        for c in found
    ]
    assert len(told) == len(set(told)) == rounds * len(wanted)
    assert {cell[1:] for cell in told} == wanted
    assert [c.number for c in found] == list(range(1, len(found) + 1))
    assert [c.round for c in found] == sorted(c.round for c in found)

    cell = found[-1]
    params = run_command.make_context("run", list(cell.arguments[1:])).params
    assert params["reference"] == DIGEST
    assert str(params["threads"]) == cell.values["threads"]
    assert params["framework"] == cell.values["framework"]
    name, options = chosen_scenario(params)
    assert name == cell.scenario == "batched"
    assert options["batch_sizes"] == [int(cell.values["batch-sizes"])]


def test_all_is_every_form_of_the_model() -> None:
    assert [c.values["framework"] for c in cells({"framework": ("all",)})] == list(FORMS.names)


def test_what_is_excluded_is_left_out_and_nothing_else() -> None:
    axes = {"framework": ("onnxruntime", "torch"), "threads": ("1", "2", "4")}
    found = cells(axes, exclude=({"framework": ("torch",), "threads": ("2", "4")},))
    assert [(c.values["framework"], c.values["threads"]) for c in found] == [
        ("onnxruntime", "1"),
        ("onnxruntime", "2"),
        ("onnxruntime", "4"),
        ("torch", "1"),
    ]


def test_only_what_tells_cells_apart_becomes_a_column() -> None:
    found = cells({"threads": ("1", "2"), "duration": ("1s",), "seed": ("7",)})
    assert varying(found) == ["scenario", "framework", "threads"]


def test_flags_files_and_lists_reach_the_run_as_it_reads_them(tmp_path: Path) -> None:
    arrivals = tmp_path / "arrivals.txt"
    arrivals.write_text("0\n0.5\n1.5\n")
    (cell,) = cells({"scenario": ("poisson",), "arrivals": (str(arrivals),)})
    assert f"--arrivals={arrivals}" in cell.arguments
    assert cell.planned_s == 1.5
    quick, slow = cells({"scenario": ("offline",), "quick": ("true", "false")})
    assert "--quick" in quick.arguments
    assert "--quick" not in slow.arguments
    (all_sizes,) = cells({"scenario": ("batched",), "batch-sizes": ("1,2,8",)})
    assert "--batch-sizes=1,2,8" in all_sizes.arguments


@pytest.mark.parametrize(
    ("axes", "word", "hint"),
    [
        ({"scenario": ("onlin",)}, "unknown scenario", "did you mean online"),
        ({"framework": ("jax",)}, "no variant", "torch-export"),
        ({"threads": ("two",)}, "--threads", "whole number"),
        ({"threads": ("0",)}, "--threads 0", "between 1 and 1024"),
        ({"runtime": ("podman",)}, "--runtime", "docker"),
        ({"thread": ("1",)}, "no axis 'thread'", "did you mean threads"),
        ({"duration": ("soon",)}, "--duration", "3s"),
        ({"batch-sizes": ("8",)}, "batch-sizes", "batched"),
        ({"scenario": ("batched",), "repeats": ("3",)}, "repeats", "--rounds"),
        ({"scenario": ("poisson",)}, "poisson needs a rate", "--rate"),
        ({"scenario": ()}, "no values", None),
    ],
)
def test_nonsense_is_refused_before_anything_runs_with_what_helps(
    axes: dict[str, tuple[str, ...]], word: str, hint: str | None
) -> None:
    error = refused(axes)
    assert word in error.message
    if hint is not None:
        assert error.hint is not None
        assert hint in error.hint


def test_too_many_cells_are_refused_without_making_them() -> None:
    numbers = tuple(str(n) for n in range(1, 1001))
    assert str(MOST_CELLS)[:2] in refused({"threads": numbers, "seed": numbers}).hint.replace(",", "")  # type: ignore[union-attr]
    assert "excluded" in refused({}, exclude=({"scenario": ("online",)},)).message
    assert "no axis of this sweep" in refused({}, exclude=({"rate": ("1",)},)).message


MATRIX = """\
schema: mlbundle/sweep/v1
reference: mini
axes:
  scenario: [online, batched]
  threads: [1, 02]
  batch_sizes: [1, 8]
  duration: 1e-1
exclude:
  - {scenario: batched, threads: 02}
rounds: 2
set: {}
options: {accuracy: false, trace: none, memory: 1GiB, concurrent: true}
"""


def matrix(folder: Path, text: str) -> Path:
    path = folder / "sweep.yml"
    path.write_text(text)
    return path


def test_a_matrix_in_yaml_is_read_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "mini").mkdir()
    found = load_matrix(matrix(tmp_path, MATRIX))
    assert found.reference == str(tmp_path / "mini")
    assert found.axes["threads"] == ("1", "02")
    assert found.axes["duration"] == ("1e-1",)
    assert found.fixed == ("--no-accuracy", "--trace=none", "--memory=1GiB", "--concurrent")
    assert found.rounds == 2
    assert is_matrix(str(tmp_path / "sweep.yml"))


def test_a_manifest_is_no_matrix(tmp_path: Path) -> None:
    assert not is_matrix(str(matrix(tmp_path, "name: mini\nversion: 1.0.0\n")))
    assert not is_matrix(str(matrix(tmp_path, "- {")))
    assert not is_matrix(str(tmp_path / "none.yml"))
    with pytest.raises(ReferenceNotFound):
        load_matrix(tmp_path / "none.yml")


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        ("schema: mlbundle/sweep/v1\nreference: mini\naxis: {}\n", "3:1", "unknown key 'axis'"),
        ("schema: mlbundle/sweep/v1\n", "1:1", "'reference' is missing"),
        ("schema: mlbundle/sweep/v9\nreference: mini\n", "1:9", "no schema"),
        ("schema: mlbundle/sweep/v1\nreference: mini\naxes: [threads]\n", "3:7", "can't be"),
        ("schema: mlbundle/sweep/v1\nreference: mini\naxes: {threads: {a: 1}}\n", "3:17", "can't be"),
        ("schema: mlbundle/sweep/v1\nreference: mini\nrounds: many\n", "3:9", "can't be"),
        ("schema: mlbundle/sweep/v1\nreference: mini\nrounds: 0\n", "3:9", "too small"),
        ("schema: mlbundle/sweep/v1\nreference: mini\nrounds: 1\nrounds: 2\n", "4:1", "repeated"),
        ("schema: mlbundle/sweep/v1\nreference: &a mini\n", "2:12", "anchor"),
        (
            "schema: mlbundle/sweep/v1\nreference: mini\noptions: {memory: --trust}\n",
            "3:19",
            "no memory limit",
        ),
        ("schema: mlbundle/sweep/v1\nreference: mini\noptions: {python: bin/python}\n", "3:19", "no python"),
        ("schema: [", "2:1", ""),
        ("", "1:1", "empty"),
    ],
)
def test_a_hostile_matrix_is_refused_with_its_place(tmp_path: Path, text: str, place: str, word: str) -> None:
    path = matrix(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_matrix(path)
    assert str(caught.value.where).startswith(f"{path}:{place}")
    assert word in "\n".join(caught.value.context).lower() or word in "\n".join(caught.value.context)


def test_an_axis_among_the_options_is_told_to_be_one(tmp_path: Path) -> None:
    text = "schema: mlbundle/sweep/v1\nreference: mini\noptions: {runtime: process}\n"
    with pytest.raises(UsageError) as caught:
        load_matrix(matrix(tmp_path, text))
    assert caught.value.hint == "runtime is an axis: write it under axes, one value is enough"


@pytest.mark.parametrize(
    ("axes", "place"),
    [
        ("{threads: 1, duration: soon}", "3:20"),
        ("{seeds: 1}", "3:8"),
        ("{scenario: none}", "3:8"),
    ],
)
def test_a_value_that_makes_no_sense_is_shown_in_the_matrix(tmp_path: Path, axes: str, place: str) -> None:
    text = f"schema: mlbundle/sweep/v1\nreference: mini\naxes: {axes}\n"
    found = load_matrix(matrix(tmp_path, text))
    with pytest.raises(UsageError) as caught:
        make_cells(found, DIGEST, FORMS)
    assert caught.value.where == f"{tmp_path / 'sweep.yml'}:{place}"


@given(st.text(max_size=200))
def test_no_text_makes_a_matrix_fail_in_another_way(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-sweep.yml"
    head = "schema: mlbundle/sweep/v1\nreference: mini\n"
    for content in (text, f"{head}axes: {text}\n", f"{head}axes: {{threads: [{text}]}}\n"):
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
        # Whatever is wrong is the user's; another error would come through.
        with suppress(UsageError):
            make_cells(load_matrix(path), DIGEST, FORMS)


def test_the_planned_time_is_what_the_options_say() -> None:
    online = {"duration_s": 3.0, "warmup": 1.0, "repeats": 4}
    assert planned_seconds("online", online) == 16.0
    assert planned_seconds("online", {**online, "queries": 10}) is None
    assert planned_seconds("batched", {"duration_s": 1.0, "warmup": 0.5, "batch_sizes": [1, 2]}) == 3.0
    assert planned_seconds("offline", {"quick": True}) < 60  # type: ignore[operator]
    assert planned_seconds("server", {"compliance": ["TEST01"]}) == 1200.0
    assert planned_seconds("somebody's", {}) is None


def test_the_remaining_time_follows_what_cells_really_took() -> None:
    first, second = cells({"duration": ("1s", "10s"), "warmup": ("1s",)})
    experience = Experience()
    before = experience.of_cell(second)
    experience.learn("other", first.planned_s, 32.0)
    assert experience.of_cell(second) == 41.0 != before
    unknown = cells({"queries": ("5",)})[0]
    assert experience.of_cells([second, unknown]) == (41.0, 1, 1)
    # What the same scenario and framework took says more than what others did.
    experience.learn("another", 1.0, 3.0, kind_of_cell(second))
    assert experience.of_cells([second, unknown]) == (13.0, 1, 0)
