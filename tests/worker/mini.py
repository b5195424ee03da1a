"""A bundle's worth of assets made in a moment: a linear classifier on random points, exported with `onnx`.

`python mini.py FOLDER` writes model.onnx, data.npz and labels.txt; the labels are the model's own answers, so
its accuracy is 1.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

SAMPLES = 24


def make_assets(folder: Path) -> None:
    """Write the assets into `folder`."""
    import onnx
    from onnx import TensorProto, helper

    random = np.random.default_rng(0)
    weights = random.normal(size=(6, 4)).astype(np.float32)
    points = random.normal(size=(SAMPLES, 6)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["points", "weights"], ["scores"])],
        "mini",
        [helper.make_tensor_value_info("points", TensorProto.FLOAT, ["N", 6])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "model.onnx"))
    np.savez(folder / "data.npz", points=points, labels=(points @ weights).argmax(axis=1))
    (folder / "labels.txt").write_text("a\nb\nc\nd\n")
