"""Write the manifest of what the other scripts wrote.

python describe.py FOLDER [JSON]      writes FOLDER/model.yml
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from network import Configuration

if TYPE_CHECKING:
    from pathlib import Path

FORMS = (
    ("onnxruntime", ">=1.19 <2", "onnx/model.onnx"),
    ("torch", ">=2.13 <3", "torch/model.pt"),
    ("tensorflow", ">=2.21 <3", "tensorflow/saved_model/"),
)


def name_of(configuration: Configuration) -> str:
    """Return the name of the bundle: that of the network alone when it is the full one."""
    if (configuration.width, configuration.size, configuration.classes) == (64, 224, 1000):
        return "resnet50"
    return f"resnet50-width{configuration.width}-size{configuration.size}-classes{configuration.classes}"


def source(folder: Path, path: str) -> str:
    """Return the value of `model`: where the file is, and its sha256."""
    if path.endswith("/"):
        return f"{{graph_path: {path}}}"
    return f"{{graph_path: {path}, checksum: '{checksum(folder / path)}'}}"


def checksum(path: Path) -> str:
    """Return the sha256 of a file."""
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def manifest(folder: Path, configuration: Configuration) -> str:
    """Return the model manifest; what comes first in FORMS, of those that were built, is its top level."""
    built = [form for form in FORMS if (folder / form[2]).exists()]
    (framework, version, path), *others = built
    size, classes, count = configuration.size, configuration.classes, configuration.images
    variants = "variants:" if others else ""
    variants += "".join(
        f"\n  - framework: {{name: {name}, version: '{wanted}'}}\n    model: {source(folder, where)}"
        for name, wanted, where in others
    )
    return f"""\
name: {name_of(configuration)}
version: 1.0.0
description: ResNet-50 v1.5, width {configuration.width}, with weights drawn from seed {configuration.seed}, not trained
license: Apache-2.0
references:
  - https://arxiv.org/abs/1512.03385
framework: {{name: {framework}, version: '{version}'}}
inputs:
  - type: image
    layer_name: input
    element_type: float32
    shape: [N, 3, {size}, {size}]
outputs:
  - type: probability
    layer_name: logits
    element_type: float32
    shape: [N, {classes}]
model: {source(folder, path)}
{variants}
dataset:
  format: npz
  path: dataset/images.npz
  checksum: {checksum(folder / "dataset" / "images.npz")}
  samples: {count}
  inputs: {{input: images}}
  labels: labels
expected:
  accuracy: {{metric: top1, value: 1.0, tolerance: {1 / count:.6f}}}    # one image
attributes:
  kind: CNN
  manifest_author: The mlbundle authors
  training_dataset:
    - name: none
    - version: weights drawn from seed {configuration.seed}
"""


def main() -> None:
    """Write the manifest."""
    folder, configuration = Configuration.of_command_line()
    (folder / "model.yml").write_text(manifest(folder, configuration), "utf-8")


if __name__ == "__main__":
    main()
