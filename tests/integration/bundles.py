"""Small bundles of any behaviour: a manifest folder around a linear classifier, with code of the test's choice."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "worker"))

import mini

_MANIFEST = """\
name: mini
version: 1.0.0
description: a linear classifier on 24 points
license: Apache-2.0
framework: {{name: onnxruntime, version: '>=1.19 <2'}}
inputs:
  - {{type: vector, layer_name: points, element_type: float32, shape: [N, 6]}}
outputs:
  - {{type: probability, layer_name: scores, element_type: float32, shape: [N, 4]}}
model: {{graph_path: model.onnx}}
dataset: {{format: npz, path: data.npz, samples: 24, inputs: {{points: points}}, labels: labels}}
expected: {{accuracy: {{metric: top1, value: {accuracy}, tolerance: 0.0}}}}
"""


def make_bundle(folder: Path, *, preprocess: str | None = None, accuracy: float = 1.0) -> Path:
    """Write a manifest folder; `preprocess` is the body of `def preprocess(env, data)`."""
    folder.mkdir(parents=True)
    mini.make_assets(folder)
    text = _MANIFEST.format(accuracy=accuracy)
    if preprocess is not None:
        body = "".join(f"    {line}\n" for line in preprocess.splitlines())
        text += "preprocess: |\n  def preprocess(env, data):\n" + "".join(
            f"  {line}\n" for line in body.splitlines()
        )
    (folder / "model.yml").write_text(text)
    return folder
