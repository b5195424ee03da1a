"""The weights of ResNet-50 and images to show it, drawn from a seed. Nothing here was trained.

Every number comes from the raw output of NumPy's Philox generator by integers and single IEEE operations, so that the
bytes are the same on every machine and with every version of NumPy.

A network that was not trained tells images apart badly: with each layer the mean of the activations weighs more than
what differs between them. So the weights of each output channel add up to zero (what a mean then adds is nothing), and
the images differ in how coarse their patterns are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from network import Configuration, shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_BITS = 24
_UNIT = 1 << _BITS
_IMAGES = 1 << 32
"""Where the numbers of the images begin; those of the weights are counted from 0."""

_RANGES = {
    "weight": (0.8, 1.2),
    "bias": (-0.1, 0.1),
    "running_mean": (-0.1, 0.1),
    "running_var": (0.8, 1.2),
}
"""Of batch normalisation: scale, offset, and statistics as training might have left them."""


def arrays(configuration: Configuration) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield name and values, float32, of every weight, in the order of the network."""
    for number, (name, shape) in enumerate(shapes(configuration)):
        drawn = _draw(configuration.seed, number, shape)
        if len(shape) > 1:
            yield name, _kernel(drawn)
        else:
            low, high = _RANGES[name.rpartition(".")[2]]
            yield name, (low + drawn * ((high - low) / _UNIT)).astype(np.float32)


def images(configuration: Configuration) -> NDArray[Any]:
    """Return images, float32 [images, 3, size, size]: sums of coloured squares, each size as strong as it was drawn."""
    size, seed = configuration.size, configuration.seed
    sides = [1]
    while size % (2 * sides[0]) == 0:
        sides.insert(0, sides[0] * 2)
    grids = sorted({1, *(size // side for side in sides)})
    result = np.zeros((configuration.images, 3, size, size))
    for image in range(configuration.images):
        strengths = _draw(seed, _IMAGES + image * 64, (len(grids),)) / _UNIT
        for number, grid in enumerate(grids):
            squares = _draw(seed, _IMAGES + image * 64 + number + 1, (3, grid, grid)) / (_UNIT / 2) - 1
            side = size // grid
            result[image] += (squares * strengths[number]).repeat(side, axis=1).repeat(side, axis=2)
    return result.astype(np.float32)


def _draw(seed: int, number: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return whole numbers of 24 bits; each array has a stream of its own."""
    raw = np.random.Philox(key=[seed, number]).random_raw(math.prod(shape))
    return (raw >> np.uint64(64 - _BITS)).astype(np.int64).reshape(shape)


def _kernel(drawn: NDArray[np.int64]) -> NDArray[Any]:
    """Return weights of He's variance, 2 / inputs, that add up to zero for each output."""
    rows = drawn.reshape(len(drawn), -1)
    inputs = rows.shape[1]
    centred = rows * inputs - rows.sum(axis=1, keepdims=True)
    scale = math.sqrt(6 / inputs) / (inputs * (_UNIT // 2))
    return (centred * scale).astype(np.float32).reshape(drawn.shape)
