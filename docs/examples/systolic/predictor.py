"""A predictor for an accelerator that does not exist: a systolic array of 16 x 16 multipliers, simulated in NumPy.

What comes out is what such an array would compute (int8 in, int32 sums); how long it takes comes from a cost model.
A real accelerator's predictor has the same three calls: `open` loads the program, `predict` waits for the answer.
"""

import time

import numpy as np

from mlbundle.worker.errors import WorkerError

SIZE = 16
CLOCK_HZ = 10_000_000
LARGEST = 127  # int8


def cycles(rows, inside, columns):
    """Return the cycles of a matrix product: each tile of weights is loaded, then the rows flow through."""
    tiles = -(-inside // SIZE) * -(-columns // SIZE)
    return tiles * (SIZE + rows + 2 * SIZE - 1)


class Layer:
    """A dense layer: float32 in the file, int8 on the array."""

    def __init__(self, weights, bias):
        self.scale = float(np.abs(weights).max()) / LARGEST
        self.weights = np.round(weights / self.scale).astype(np.int8).astype(np.int32)
        self.bias = bias

    def run(self, values):
        """Quantise float values [N, inside], multiply on the array, return float values [N, columns]."""
        scale = max(float(np.abs(values).max()), 1e-9) / LARGEST
        sums = np.round(values / scale).astype(np.int32) @ self.weights
        return sums * (scale * self.scale) + self.bias


class Handle:
    """An open model. The worker looks at these three names: the first two may be empty, the last may be missing."""

    def __init__(self, layers, input_names, output_names):
        self.layers = layers
        self.input_names = input_names
        self.output_names = output_names
        self.facts = {
            "version": "1.0.0",
            "device": f"systolic array {SIZE} x {SIZE} at {CLOCK_HZ / 1e6:g} MHz (simulated)",
            "threads": 1,
            "cycles_for_one_sample": self.cycles(1),
            "timed": "quantisation and the array, which is never faster than the cost model says",
        }

    def cycles(self, rows):
        """Return what the array needs for a batch."""
        return sum(cycles(rows, *layer.weights.shape) for layer in self.layers)


class Predictor:
    """Runs dense layers with ReLU between them: `weights_0`, `bias_0`, `weights_1` ... of an `.npz`."""

    def open(self, model, options):
        """Load the layers."""
        if options["accelerator"] != "cpu":
            what = "there is no array of kind {!r}: it is simulated on the CPU".format(options["accelerator"])
            raise WorkerError("accelerator-missing", what, fault="environment", hint="--accelerator cpu")
        with np.load(model["graph"], allow_pickle=False) as arrays:
            layers = [
                Layer(arrays[f"weights_{n}"], arrays[f"bias_{n}"]) for n in range(len(arrays.files) // 2)
            ]
        # One input and one output: they are called as the manifest calls them.
        return Handle(
            layers, *([spec["layer_name"] for spec in options[side]] for side in ("inputs", "outputs"))
        )

    def prepare(self, handle, feeds):
        """Return what `predict` gets, outside of the timed region: the samples as rows."""
        (values,) = feeds.values()
        return values.reshape(len(values), -1)

    def predict(self, handle, batch):
        """Return the outputs as a list of arrays, in the order of `output_names`."""
        done_at = time.perf_counter() + handle.cycles(len(batch)) / CLOCK_HZ
        values = handle.layers[0].run(batch)
        for layer in handle.layers[1:]:
            values = layer.run(np.maximum(values, 0))
        while time.perf_counter() < done_at:
            pass
        return [values.astype(np.float32)]

    def close(self, handle):
        """Release the device; there is none."""
