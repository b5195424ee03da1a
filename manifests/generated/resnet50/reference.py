"""The answers of the network by NumPy alone, in double precision: what the frameworks are held against.

python reference.py FOLDER [JSON]      writes FOLDER/dataset/images.npz and logits.npz
"""

from __future__ import annotations

from typing import Any

import numpy as np
from network import EPSILON, Configuration, forward
from numpy.lib.stride_tricks import sliding_window_view
from weights import arrays, images


class NumpyLayers:
    """The layers in NumPy; see `network.Layers`."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self._weights = weights

    def convolve(self, name: str, value: Any, *, stride: int, padding: int) -> Any:
        """Multiply the kernel with every window."""
        kernel = self._weights[f"{name}.weight"]
        windows = _windows(value, kernel.shape[2], stride, padding, 0.0)
        count, _channels, rows, columns = windows.shape[:4]
        spread = windows.transpose(0, 1, 4, 5, 2, 3).reshape(count, -1, rows * columns)
        return (kernel.reshape(len(kernel), -1) @ spread).reshape(count, len(kernel), rows, columns)

    def normalise(self, name: str, value: Any) -> Any:
        """Scale and shift by the running statistics."""
        scale, offset, mean, variance = (
            self._weights[f"{name}.{part}"].reshape(1, -1, 1, 1)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (value - mean) / np.sqrt(variance + EPSILON) * scale + offset

    def relu(self, _name: str, value: Any) -> Any:
        """Replace what is below zero by zero."""
        return np.maximum(value, 0)

    def max_pool(self, _name: str, value: Any) -> Any:
        """Take the largest of each window."""
        return _windows(value, 3, 2, 1, -np.inf).max(axis=(4, 5))

    def add(self, _name: str, value: Any, other: Any) -> Any:
        """Add."""
        return value + other

    def average(self, _name: str, value: Any) -> Any:
        """Take the mean over rows and columns."""
        return value.mean(axis=(2, 3))

    def dense(self, name: str, value: Any) -> Any:
        """Multiply with the transposed weights."""
        return value @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]


def _windows(value: Any, side: int, stride: int, padding: int, filling: float) -> Any:
    """Return all windows of a padded value: [N, channels, rows, columns, side, side]."""
    around = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    padded = np.pad(value, around, constant_values=filling)
    return sliding_window_view(padded, (side, side), axis=(2, 3))[:, :, ::stride, ::stride]


def main() -> None:
    """Write `images` and `labels` (int64 [N]) to one file, `logits` (float32 [N, classes]) to the other."""
    folder, configuration = Configuration.of_command_line()
    layers = NumpyLayers({name: values.astype(np.float64) for name, values in arrays(configuration)})
    pictures = images(configuration)
    # One at a time: the windows of a batch would take gigabytes.
    logits = np.concatenate([forward(layers, picture[np.newaxis].astype(np.float64)) for picture in pictures])
    labels = logits.argmax(axis=1).astype(np.int64)
    (folder / "dataset").mkdir(parents=True, exist_ok=True)
    np.savez(folder / "dataset" / "images.npz", images=pictures, labels=labels)
    np.savez(folder / "dataset" / "logits.npz", logits=logits.astype(np.float32))
    ordered = np.sort(logits, axis=1)
    margin = float((ordered[:, -1] - ordered[:, -2]).min())
    print(
        f"{len(pictures)} images, {len(set(labels.tolist()))} different answers, nearest decision {margin:.4f}"
    )


if __name__ == "__main__":
    main()
