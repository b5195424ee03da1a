"""ResNet-50 v1.5 without a framework: the order of its layers, the names and shapes of its weights.

The network is torchvision's `resnet50`: bottleneck blocks whose 3x3 convolution has the stride (v1.5), batch
normalisation after every convolution. Names of arrays are those of its state dictionary. A framework is given to
`forward` as an object with one method for each kind of layer.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

EPSILON = 1e-5
"""What batch normalisation adds to the variance."""

PARAMETERS = 25_557_032
"""Of the full network: weights of convolutions and the dense layer, scales and offsets, without running statistics."""

BLOCKS = (3, 4, 6, 3)
EXPANSION = 4


@dataclass(frozen=True)
class Configuration:
    """Size and seed of a network; the default is the full one."""

    width: int = 64
    size: int = 224
    classes: int = 1000
    images: int = 16
    seed: int = 50

    @classmethod
    def of_command_line(cls) -> tuple[Path, Configuration]:
        """Return what a script was called with: `script FOLDER [JSON]`."""
        settings = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
        return Path(sys.argv[1]), cls(**settings)


class Layers(Protocol):
    """What a framework does for `forward`; values have the shape [N, channels, rows, columns]."""

    def convolve(self, name: str, value: Any, *, stride: int, padding: int) -> Any:
        """Apply the convolution whose weights are `<name>.weight`."""

    def normalise(self, name: str, value: Any) -> Any:
        """Apply the batch normalisation `<name>`."""

    def relu(self, name: str, value: Any) -> Any:
        """Replace what is below zero by zero."""

    def max_pool(self, name: str, value: Any) -> Any:
        """Take the largest of 3x3 values at every second place, padded by one."""

    def add(self, name: str, value: Any, other: Any) -> Any:
        """Add two values."""

    def average(self, name: str, value: Any) -> Any:
        """Take the mean of every channel: [N, channels]."""

    def dense(self, name: str, value: Any) -> Any:
        """Apply the dense layer with `<name>.weight` and `<name>.bias`."""


def forward(layers: Layers, images: Any) -> Any:
    """Return the logits [N, classes] of images [N, 3, rows, columns]."""
    value = layers.convolve("conv1", images, stride=2, padding=3)
    value = layers.relu("relu", layers.normalise("bn1", value))
    value = layers.max_pool("maxpool", value)
    for stage, count in enumerate(BLOCKS, start=1):
        for number in range(count):
            stride = 2 if stage > 1 and number == 0 else 1
            value = _block(layers, f"layer{stage}.{number}", value, stride, shrinks=number == 0)
    return layers.dense("fc", layers.average("avgpool", value))


def _block(layers: Layers, name: str, value: Any, stride: int, *, shrinks: bool) -> Any:
    """Apply one bottleneck; the first of a stage has a convolution in its short cut too."""
    branch = layers.convolve(f"{name}.conv1", value, stride=1, padding=0)
    branch = layers.relu(f"{name}.relu1", layers.normalise(f"{name}.bn1", branch))
    branch = layers.convolve(f"{name}.conv2", branch, stride=stride, padding=1)
    branch = layers.relu(f"{name}.relu2", layers.normalise(f"{name}.bn2", branch))
    branch = layers.convolve(f"{name}.conv3", branch, stride=1, padding=0)
    branch = layers.normalise(f"{name}.bn3", branch)
    if shrinks:
        value = layers.convolve(f"{name}.downsample.0", value, stride=stride, padding=0)
        value = layers.normalise(f"{name}.downsample.1", value)
    return layers.relu(f"{name}.relu3", layers.add(f"{name}.add", branch, value))


def shapes(configuration: Configuration) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of every weight, in the order of the network: kernels are [out, in, rows, columns]."""
    width = configuration.width
    yield from _convolution("conv1", "bn1", width, 3, 7)
    channels = width
    for stage, count in enumerate(BLOCKS, start=1):
        inner, outer = width << (stage - 1), (width << (stage - 1)) * EXPANSION
        for number in range(count):
            name = f"layer{stage}.{number}"
            yield from _convolution(f"{name}.conv1", f"{name}.bn1", inner, channels, 1)
            yield from _convolution(f"{name}.conv2", f"{name}.bn2", inner, inner, 3)
            yield from _convolution(f"{name}.conv3", f"{name}.bn3", outer, inner, 1)
            if number == 0:
                yield from _convolution(f"{name}.downsample.0", f"{name}.downsample.1", outer, channels, 1)
            channels = outer
    yield "fc.weight", (configuration.classes, channels)
    yield "fc.bias", (configuration.classes,)


def _convolution(
    name: str, norm: str, out: int, channels: int, side: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (out, channels, side, side)
    for part in ("weight", "bias", "running_mean", "running_var"):
        yield f"{norm}.{part}", (out,)
