"""Layers and kernels as a worker sends them: what is sound comes back, anything else is refused."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_samples import kernels_of, layers_of

from mlbundle.errors import ProtocolBroken
from mlbundle.trace.tables import KERNELS, LAYERS, load_table, merge_tables, save_table
from mlbundle.wire import columns
from mlbundle.worker.profilers.base import Profile, Run, Runs, shape_text
from mlbundle.worker.profilers.rows import MOST_NAME_CHARACTERS, MOST_STRINGS

LAYER = {"run": 0, "index": 1, "name": "conv", "start_ns": 5, "duration_ns": 7}
KERNEL = {"run": 0, "name": "gemm", "kind": "kernel", "start_ns": 5, "duration_ns": 7}


def arrays_of(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "run": st.integers(0, 1000),
                "index": st.integers(0, 1 << 40),
                "name": st.text(max_size=2000),
                "type": st.text(max_size=20),
                "start_ns": st.integers(0, 1 << 61),
                "duration_ns": st.integers(0, 1 << 60),
                "flops": st.integers(-1, 1 << 61),
            }
        ),
        max_size=20,
    )
)
@settings(max_examples=50, deadline=None)
def test_whatever_a_profiler_adds_is_read_again(tmp_path_factory, rows) -> None:
    table = layers_of(tmp_path_factory.mktemp("t") / "layers.npz", *rows)
    assert len(table) == len(rows)
    for name in ("run", "index", "start_ns", "duration_ns", "flops"):
        assert table[name].tolist() == [row[name] for row in rows]
    for shown, row in zip(table.texts("name"), rows, strict=True):
        assert len(shown) <= MOST_NAME_CHARACTERS
        assert shown.isprintable()
        if row["name"].isprintable() and len(row["name"]) <= MOST_NAME_CHARACTERS:
            assert shown == row["name"]


def test_what_is_not_known_is_minus_one_or_empty(tmp_path: Path) -> None:
    table = layers_of(tmp_path / "l.npz", LAYER)
    assert (table["flops"].tolist(), table.texts("original_name")) == ([columns.UNKNOWN], [""])
    assert kernels_of(tmp_path / "k.npz", KERNEL)["layer_index"].tolist() == [columns.UNKNOWN]


def test_a_column_that_is_none_is_a_mistake_of_the_profiler() -> None:
    with pytest.raises(TypeError, match="no such column: colour"):
        Profile().add_layer(**LAYER, colour="red")


def test_more_names_than_a_table_holds_are_left_empty(tmp_path: Path) -> None:
    profile = Profile()
    for number in range(MOST_STRINGS + 10):
        profile.add_layer(**{**LAYER, "name": f"n{number}"})
    (tmp_path / "l.npz").write_bytes(profile.layers_bytes())
    names = load_table(tmp_path / "l.npz", LAYERS).texts("name")
    assert (names[5], names[-1]) == ("n5", "")


def test_a_row_without_what_it_can_not_be_without_is_a_mistake_of_the_profiler() -> None:
    with pytest.raises(TypeError, match="a row lacks duration_ns, start_ns"):
        Profile().add_layer(run=0, index=0, name="conv")


def test_long_names_fit_the_table_however_many_there_are(tmp_path: Path) -> None:
    profile = Profile()
    for number in range(MOST_STRINGS):
        profile.add_layer(**{**LAYER, "name": f"{number:5} {'x' * MOST_NAME_CHARACTERS}"})
    (tmp_path / "l.npz").write_bytes(profile.layers_bytes())
    names = load_table(tmp_path / "l.npz", LAYERS).texts("name")
    assert names[-2].startswith(f"{MOST_STRINGS - 2:5} xxx")


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("start_ns", -5, "start_ns is not negative"),
        ("duration_ns", -1, "duration_ns is not negative"),
        ("flops", -2, "or -1 where it is not known"),
        ("name", 99, "name is a row of the table"),
        ("name", -1, "name is a row of the table"),
        ("flops_source", 1, "flops_source is one of"),
        ("duration_ns", (1 << 63) - 1, "times fit 63 bits"),
    ],
)
def test_a_value_that_can_not_be_is_refused(tmp_path: Path, column: str, value: int, why: str) -> None:
    profile = Profile()
    profile.add_layer(**LAYER)
    arrays = arrays_of(profile.layers_bytes())
    arrays[column][0] = value
    np.savez(tmp_path / "l.npz", **arrays)
    with pytest.raises(ProtocolBroken, match=why):
        load_table(tmp_path / "l.npz", LAYERS)


def test_a_kernel_of_a_kind_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kind is one of 'kernel', 'copy', 'operator'"):
        Profile().add_kernel(**{**KERNEL, "kind": "prank"})
    profile = Profile()
    profile.add_kernel(**KERNEL)
    arrays = arrays_of(profile.kernels_bytes())
    arrays["strings"][arrays["kind"][0]] = "prank"
    np.savez(tmp_path / "k.npz", **arrays)
    with pytest.raises(ProtocolBroken, match="kind is one of 'kernel', 'copy', 'operator'"):
        load_table(tmp_path / "k.npz", KERNELS)


@pytest.mark.parametrize("change", ["float", "missing", "extra", "shorter", "text that can't be shown"])
def test_a_file_of_another_form_is_refused(tmp_path: Path, change: str) -> None:
    profile = Profile()
    profile.add_layer(**LAYER)
    arrays = arrays_of(profile.layers_bytes())
    if change == "float":
        arrays["run"] = arrays["run"].astype(np.float64)
    elif change == "missing":
        del arrays["flops"]
    elif change == "extra":
        arrays["more"] = arrays["run"]
    elif change == "shorter":
        arrays["flops"] = arrays["flops"][:0]
    else:
        arrays["strings"] = np.array(["", "a\nb", "conv"])
    np.savez(tmp_path / "l.npz", **arrays)
    with pytest.raises(ProtocolBroken):
        load_table(tmp_path / "l.npz", LAYERS)


def test_passes_keep_their_numbers_and_their_texts(tmp_path: Path) -> None:
    one = layers_of(tmp_path / "a.npz", LAYER, {**LAYER, "name": "relu"})
    two = layers_of(tmp_path / "b.npz", {**LAYER, "name": "relu", "type": "conv"})
    save_table(tmp_path / "all.npz", merge_tables(LAYERS, [(3, one), (7, two)]))
    merged = load_table(tmp_path / "all.npz", LAYERS)
    assert merged[columns.PASS].tolist() == [3, 3, 7]
    assert merged.texts("name") == ["conv", "relu", "relu"]
    assert merged.texts("type") == ["", "", "conv"]
    assert len(merge_tables(KERNELS, [])) == 0


def test_a_time_is_of_the_query_that_went_on() -> None:
    runs = Runs([Run(0, 100, 200, 1_000), Run(1, 250, 300, 2_000)])
    assert [None if run is None else run.number for run in map(runs.at, (99, 100, 200, 201, 250, 301))] == [
        None, 0, 0, None, 1, None,
    ]  # fmt: skip
    assert runs[0].clip(50, 150) == (100, 150)
    assert runs[0].clip(150, 999) == (150, 200)
    assert runs[0].clip(180, 170) == (180, 180)
    assert runs[0].clip(300, 400) is None
    assert runs[1].from_realtime(2_260) == 260


def test_shapes_as_texts() -> None:
    assert shape_text([(1, 3, 224, 224), (64, 3, 7, 7)]) == "1x3x224x224, 64x3x7x7"
    assert (shape_text([()]), shape_text([])) == ("scalar", "")
