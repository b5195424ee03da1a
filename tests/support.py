"""What tests share that is no fixture: the command line, its outcomes, and a small bundle of any behaviour."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

IN_CI = os.environ.get("CI", "").lower() == "true"
BASE_IMAGE = os.environ.get("MLBUNDLE_TEST_BASE_IMAGE", "")
ROOT = Path(__file__).resolve().parent.parent


TINY_NET = """\
name: Tiny Net
version: 1.0.0+cu12
framework: {name: onnxruntime, version: '>=1.0 <2'}
inputs:
  - {type: image, layer_name: input, element_type: float32, shape: [N, 4]}
outputs:
  - {type: probability, layer_name: output, element_type: float32, shape: [N, 2]}
model: {graph_path: net.onnx}
dataset: {format: directory, path: data, index: index.txt, samples: 2}
"""
"""A manifest of a graph and two samples; nothing of it can be run."""


def lacking(reason: str) -> NoReturn:
    """A missing real part: a failure under CI, a skip with its reason on a user's machine."""
    if IN_CI:
        pytest.fail(f"under CI this must be there: {reason}")
    pytest.skip(reason)


@contextmanager
def small_file_system(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of this size on a new folder; a skip with its reason where that can't be done."""
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    status: int
    stdout: str
    stderr: str

    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        found = json.loads(self.stdout)
        assert isinstance(found, dict)
        return found

    def error(self, status: int, reference: str) -> dict[str, Any]:
        """The error document, after checking that it is the expected one and no traceback is shown."""
        assert self.status == status, f"status {self.status}\n{self.stdout}\n{self.stderr}"
        document = self.document()
        # The context may quote the end of a worker's log, which may hold a traceback of the bundle's own code.
        shown = {name: value for name, value in document.items() if name != "context"}
        assert "Traceback" not in self.stderr + str(shown)
        assert document["schema"] == "mlbundle/error/v1"
        assert document["reference"] == reference, document
        assert document["message"]
        return document


Cli = Callable[..., Outcome]


def command_line(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "mlbundle.cli.main", *map(str, arguments)]


def make_assets(folder: Path) -> None:
    """Write a linear classifier, random points, and the classifier's own answers as labels: its accuracy is 1."""
    import onnx
    from onnx import TensorProto, helper

    random = np.random.default_rng(0)
    weights = random.normal(size=(6, 4)).astype(np.float32)
    points = random.normal(size=(24, 6)).astype(np.float32)
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
    make_assets(folder)
    text = _MANIFEST.format(accuracy=accuracy)
    if preprocess is not None:
        body = "".join(f"    {line}\n" for line in preprocess.splitlines())
        text += "preprocess: |\n  def preprocess(env, data):\n" + "".join(
            f"  {line}\n" for line in body.splitlines()
        )
    (folder / "model.yml").write_text(text)
    return folder
