"""Write the network as a TensorFlow SavedModel.

    python build_tensorflow.py FOLDER [JSON]      writes FOLDER/tensorflow/saved_model/; needs tensorflow

Images come in with the channels first, as everywhere else; TensorFlow's convolutions on the CPU want them last, so the
graph turns the images around once, at its beginning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from network import EPSILON, Configuration, forward
from weights import arrays


class TensorflowLayers:
    """The layers in TensorFlow, values [N, rows, columns, channels]; see `network.Layers`."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self._weights = weights

    def convolve(self, name: str, value: Any, *, stride: int, padding: int) -> Any:
        """Pad on every side alike (`SAME` would pad one side only when there is a stride), then convolve."""
        around = [[0, 0], [padding, padding], [padding, padding], [0, 0]]
        return tf.nn.conv2d(value, self._weights[f"{name}.weight"], stride, around, name=_plain(name))

    def normalise(self, name: str, value: Any) -> Any:
        """Normalise by the running statistics."""
        scale, offset, mean, variance = (
            self._weights[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
        )
        result, *_ = tf.compat.v1.nn.fused_batch_norm(
            value, scale, offset, mean, variance, epsilon=EPSILON, is_training=False, name=_plain(name)
        )
        return result

    def relu(self, name: str, value: Any) -> Any:
        """Replace what is below zero by zero."""
        return tf.nn.relu(value, name=_plain(name))

    def max_pool(self, name: str, value: Any) -> Any:
        """Take the largest of each window."""
        around = [[0, 0], [1, 1], [1, 1], [0, 0]]
        return tf.nn.max_pool2d(value, 3, 2, around, name=_plain(name))

    def add(self, name: str, value: Any, other: Any) -> Any:
        """Add."""
        return tf.add(value, other, name=_plain(name))

    def average(self, name: str, value: Any) -> Any:
        """Take the mean over rows and columns."""
        return tf.reduce_mean(value, axis=[1, 2], name=_plain(name))

    def dense(self, name: str, value: Any) -> Any:
        """Multiply and add."""
        product = tf.matmul(value, self._weights[f"{name}.weight"], name=_plain(name))
        return tf.add(product, self._weights[f"{name}.bias"], name="logits")


class ResNet50(tf.Module):
    """The network with its weights as variables."""

    def __init__(self, weights: dict[str, Any]) -> None:
        super().__init__()
        self.weights = {
            name: tf.Variable(_laid_out(value), trainable=False, name=_plain(name))
            for name, value in weights.items()
        }

    def call(self, images: Any) -> dict[str, Any]:
        """Return {"logits": [N, classes]} of images [N, 3, rows, columns]."""
        return {"logits": forward(TensorflowLayers(self.weights), tf.transpose(images, [0, 2, 3, 1]))}


def _plain(name: str) -> str:
    return name.replace(".", "_")


def _laid_out(value: Any) -> Any:
    """Return kernels as [rows, columns, in, out], the dense layer as [in, out]."""
    axes = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}
    return np.ascontiguousarray(value.transpose(axes[value.ndim]))


def main() -> None:
    """Write the folder."""
    folder, configuration = Configuration.of_command_line()
    module = ResNet50(dict(arrays(configuration)))
    size = configuration.size
    module.answer = tf.function(
        module.call, input_signature=[tf.TensorSpec([None, 3, size, size], tf.float32, name="input")]
    )
    place = folder / "tensorflow" / "saved_model"
    tf.saved_model.save(module, str(place), signatures=module.answer)
    # It tells copies of a model apart, and is another one every time; nothing needs it to load.
    (place / "fingerprint.pb").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
