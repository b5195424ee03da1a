"""Write the forms for TensorFlow, with the weights of torch/model.safetensors.

    python export_tensorflow.py [FOLDER]   writes FOLDER/tensorflow/saved_model/ and FOLDER/tensorflow/frozen.pb

Needs tensorflow (the CPU build is enough) and safetensors. Images come in as [N,1,8,8], like everywhere else;
TensorFlow's convolutions on the CPU want the channels last, so the graph turns them around.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parent


def convolve(images: Any, kernel: Any, bias: Any) -> Any:
    """Return a 3x3 convolution of [N,H,W,C] that keeps the size, and its ReLU."""
    return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, kernel, strides=1, padding="SAME"), bias))


def logits_of(images: Any, weights: dict[str, Any]) -> Any:
    """Return the logits [N,10] of images [N,1,8,8]."""
    values = tf.transpose(images, [0, 2, 3, 1])
    values = convolve(values, weights["0.weight"], weights["0.bias"])
    values = convolve(values, weights["2.weight"], weights["2.bias"])
    values = tf.nn.max_pool2d(values, ksize=2, strides=2, padding="VALID")
    # The dense layer was trained on values in the order channel, row, column.
    first, second = tf.split(tf.reshape(tf.transpose(values, [0, 3, 1, 2]), [-1, 512]), 2, axis=1)
    values = tf.matmul(first, weights["6.weight.first"]) + tf.matmul(second, weights["6.weight.second"])
    values = tf.nn.relu(values + weights["6.bias"])
    return tf.add(tf.matmul(values, weights["8.weight"]), weights["8.bias"], name="logits")


def tensorflow_weights() -> dict[str, np.ndarray]:
    """Return the weights as TensorFlow lays them out: kernels [H,W,in,out], dense layers [in,out].

    The dense layer of 512 inputs comes in two halves: TensorFlow's kernel for a single image adds its products one
    after another in float32, and 512 of them are off by 1.0e-5, which is all that the forms may differ by; two times
    256 are off by 0.4e-5.
    """
    axes = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}
    stored = load_file(HERE / "torch" / "model.safetensors")
    weights = {name: value.transpose(axes[value.ndim]) for name, value in stored.items()}
    weights["6.weight.first"], weights["6.weight.second"] = np.split(weights.pop("6.weight"), 2)
    return {name: np.ascontiguousarray(value) for name, value in weights.items()}


class DigitsCnn(tf.Module):
    """The network with its weights as variables."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.weights = {name: tf.Variable(value, trainable=False) for name, value in weights.items()}

    @tf.function(input_signature=[tf.TensorSpec([None, 1, 8, 8], tf.float32, name="input")])
    def __call__(self, images: Any) -> dict[str, Any]:
        """Return {"logits": [N,10]}."""
        return {"logits": logits_of(images, self.weights)}


def save_frozen(weights: dict[str, np.ndarray], path: Path) -> None:
    """Write one graph file with the weights as constants, from the placeholder `input` to `logits`."""
    with tf.Graph().as_default() as graph:
        images = tf.compat.v1.placeholder(tf.float32, [None, 1, 8, 8], name="input")
        logits_of(images, {name: tf.constant(value) for name, value in weights.items()})
    path.write_bytes(graph.as_graph_def().SerializeToString(deterministic=True))


def main() -> None:
    """Write both forms."""
    folder = (Path(sys.argv[1]) if len(sys.argv) > 1 else HERE) / "tensorflow"
    folder.mkdir(parents=True, exist_ok=True)
    weights = tensorflow_weights()
    module = DigitsCnn(weights)
    tf.saved_model.save(module, str(folder / "saved_model"), signatures=module.__call__)
    # It tells copies of a model apart, and is another one every time; nothing needs it to load.
    (folder / "saved_model" / "fingerprint.pb").unlink()
    save_frozen(weights, folder / "frozen.pb")


if __name__ == "__main__":
    main()
