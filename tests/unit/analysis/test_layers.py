"""Layers and kernels over the queries of a profile, against sums and means worked out by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "trace"))

from table_samples import kernels_of, layers_of

from mlbundle.analysis.layers import by_type, kernel_rows, layer_rows, sort_layers
from mlbundle.trace.tables import KERNELS, LAYERS, empty_table, merge_tables


def layer(run: int, index: int, name: str, duration_ns: int, **more: int | str) -> dict[str, int | str]:
    values = {"type": name.rstrip("0123456789"), "start_ns": 1000 * run + 100 * index}
    return {"run": run, "index": index, "name": name, "duration_ns": duration_ns, **values, **more}


def test_a_layer_is_the_trimmed_mean_over_queries(tmp_path: Path) -> None:
    times = [10, 12, 14, 16, 10_000]
    rows = []
    for run, time in enumerate(times):
        rows += [layer(run, 0, "Conv1", time, flops=50, alloc_bytes=8 + run), layer(run, 1, "Relu1", 14)]
    conv, relu = layer_rows(layers_of(tmp_path / "l.npz", *rows))
    assert (conv.order, conv.name, conv.type, conv.queries) == (0, "Conv1", "Conv", 5)
    assert (conv.latency_ns, conv.p50_ns, conv.share) == (14.0, 14, 0.5)
    assert (conv.alloc_bytes, conv.flops, conv.param_bytes) == (10, 50, None)
    assert conv.flops_per_s == pytest.approx(50e9 / 14)
    assert (relu.order, relu.latency_ns, relu.alloc_bytes, relu.flops_per_s) == (1, 14.0, None, None)


def test_layers_of_one_name_are_told_apart_and_orders_may_change(tmp_path: Path) -> None:
    table = layers_of(
        tmp_path / "l.npz",
        *(layer(0, 0, "Add", 1), layer(0, 1, "Mul", 5), layer(0, 2, "Add", 3)),
        *(layer(1, 0, "Mul", 7), layer(1, 1, "Add", 1), layer(1, 2, "Add", 3)),
        *(layer(2, 0, "Add", 1), layer(2, 1, "Mul", 6), layer(2, 2, "Add", 3)),
    )
    rows = layer_rows(table)
    assert [(row.name, row.latency_ns, row.queries) for row in rows] == [
        ("Add", 1.0, 3),
        ("Mul", 6.0, 3),
        ("Add", 3.0, 3),
    ]


def test_times_are_of_the_pass_that_looks_least_deep(tmp_path: Path) -> None:
    shallow = layers_of(tmp_path / "a.npz", layer(0, 0, "Conv1", 10))
    deep = layers_of(tmp_path / "b.npz", layer(0, 0, "Conv1", 99), layer(0, 1, "Extra", 1))
    (row,) = layer_rows(merge_tables(LAYERS, [(3, deep), (2, shallow)]))
    assert (row.name, row.latency_ns) == ("Conv1", 10.0)


def test_types_are_sums_of_their_layers(tmp_path: Path) -> None:
    table = layers_of(
        tmp_path / "l.npz",
        layer(0, 0, "Conv1", 10, alloc_bytes=100),
        layer(0, 1, "Relu1", 30),
        layer(0, 2, "Conv2", 60, alloc_bytes=20, flops=7),
    )
    conv, relu = by_type(layer_rows(table))
    assert (conv.type, conv.layers, conv.latency_ns, conv.alloc_bytes, conv.flops) == (
        "Conv",
        2,
        70.0,
        120,
        7,
    )
    assert (conv.p50_ns, relu.p50_ns) == (70, 30)
    assert (conv.share, relu.share) == (pytest.approx(0.7), pytest.approx(0.3))
    assert (relu.type, relu.alloc_bytes) == ("Relu", None)


def test_sorting_puts_the_largest_first_and_the_unknown_last(tmp_path: Path) -> None:
    rows = layer_rows(
        layers_of(
            tmp_path / "l.npz",
            layer(0, 0, "b", 10, alloc_bytes=0, flops=5),
            layer(0, 1, "a", 30, flops=9),
            layer(0, 2, "c", 20, alloc_bytes=9),
        )
    )
    found = {
        sort: "".join(row.name for row in sort_layers(rows, sort)) for sort in ("order", "latency", "name")
    }
    assert found == {"order": "bac", "latency": "acb", "name": "abc"}
    assert "".join(row.name for row in sort_layers(rows, "memory")) == "cba"
    assert "".join(row.name for row in sort_layers(rows, "flops")) == "abc"


def test_kernels_of_a_name_are_one_row_and_queries_without_them_count(tmp_path: Path) -> None:
    def kernel(run: int, name: str, duration_ns: int, size: int = -1) -> dict[str, int | str]:
        times = {"start_ns": run, "duration_ns": duration_ns, "bytes": size}
        return {"run": run, "layer_index": -1, "name": name, "kind": "kernel", **times}

    table = kernels_of(
        tmp_path / "k.npz",
        *(kernel(0, "gemm", 10, 4), kernel(0, "gemm", 30, 4), kernel(0, "copy", 5)),
        kernel(1, "gemm", 20, 8),
    )
    gemm, copy = kernel_rows(table)
    assert (gemm.name, gemm.per_query, gemm.latency_ns, gemm.each_ns, gemm.bytes) == (
        "gemm",
        1.5,
        30.0,
        20.0,
        8,
    )
    assert (copy.name, copy.per_query, copy.latency_ns, copy.bytes) == ("copy", 0.5, 2.5, None)
    assert gemm.share + copy.share == pytest.approx(1)


def test_nothing_is_nothing() -> None:
    assert layer_rows(empty_table(LAYERS)) == []
    assert kernel_rows(empty_table(KERNELS)) == []
    assert by_type([]) == []


def test_many_rows_are_summed_up_as_one_by_one(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    rows = [layer(run, i, f"L{i % 7}", int(random.integers(1, 99))) for run in range(20) for i in range(30)]
    found = layer_rows(layers_of(tmp_path / "l.npz", *rows))
    assert len(found) == 30
    for order, row in enumerate(found):
        times = sorted(int(r["duration_ns"]) for r in rows if r["index"] == order)
        assert row.latency_ns == pytest.approx(np.mean(times[4:-4]))
