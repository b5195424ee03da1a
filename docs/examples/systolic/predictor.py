"""A predictor for an accelerator that does not exist: a systolic array of 16 x 16 multipliers, simulated in NumPy.

What comes out is what such an array would compute (int8 in, int32 sums); how long it takes comes from a cost model.
A real accelerator's predictor has the same three calls: `open` loads the program, `predict` waits for the answer. Its
profiler would read what the device notes of its commands; here they come from the cost model, too.
"""

import time

import numpy as np

from mlbundle.worker.errors import WorkerError
from mlbundle.worker.profilers import base
from mlbundle.worker.profilers.flops import COMPUTED, matmul_flops

SIZE = 16
CLOCK_HZ = 10_000_000
NS_PER_CYCLE = 10**9 // CLOCK_HZ
LARGEST = 127  # int8


def tiles(inside, columns):
    """Return how many tiles of 16 x 16 weights there are, down and across."""
    return -(-inside // SIZE), -(-columns // SIZE)


def cycles(rows, inside, columns):
    """Return the cycles of a matrix product: each tile of weights is loaded, then the rows flow through."""
    down, across = tiles(inside, columns)
    return down * across * (SIZE + rows + 2 * SIZE - 1)


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
        self.log = None  # of a profiler: when each batch began on the array, in ns, and how many rows it had
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
        handle = Handle(
            layers, *([spec["layer_name"] for spec in options[side]] for side in ("inputs", "outputs"))
        )
        if "profile" in options:
            handle.log = []
        return handle

    def prepare(self, handle, feeds):
        """Return what `predict` gets, outside of the timed region: the samples as rows."""
        (values,) = feeds.values()
        return values.reshape(len(values), -1)

    def predict(self, handle, batch):
        """Return the outputs as a list of arrays, in the order of `output_names`."""
        begun_ns = time.monotonic_ns()
        done_ns = begun_ns + handle.cycles(len(batch)) * NS_PER_CYCLE
        values = handle.layers[0].run(batch)
        for layer in handle.layers[1:]:
            values = layer.run(np.maximum(values, 0))
        while time.monotonic_ns() < done_ns:
            pass
        if handle.log is not None:
            handle.log.append((begun_ns, len(batch)))
        return [values.astype(np.float32)]

    def close(self, handle):
        """Release the device; there is none."""


class Profiler(base.Profiler):
    """What the array did: a layer for each product; each tile of it is loaded (a copy) and multiplied (a kernel)."""

    def attach(self, predictor, handle):
        """Take the open model."""
        self.handle = handle

    def begin(self):
        """Forget what warmed up."""
        self.handle.log.clear()

    def read(self, runs, profile):
        """Add the layers of each query, and from the level `system` on what the array did for them."""
        for begun_ns, rows in self.handle.log:
            run, at_ns = runs.at(begun_ns), begun_ns
            if run is None:
                profile.note("the array ran batches that no query asked for")
                continue
            for index, layer in enumerate(self.handle.layers):
                place = {"run": run.number, "start_ns": at_ns}
                self._add_layer(profile, place, index, (rows, *layer.weights.shape))
                if self.level != base.FRAMEWORK:
                    self._add_commands(profile, {**place, "layer_index": index}, rows, layer.weights.shape)
                at_ns += cycles(rows, *layer.weights.shape) * NS_PER_CYCLE
        profile.facts["clock_hz"] = CLOCK_HZ

    def _add_layer(self, profile, place, index, sizes):
        rows, inside, columns = sizes
        profile.add_layer(
            **place,
            index=index,
            duration_ns=cycles(*sizes) * NS_PER_CYCLE,
            name=f"product_{index}",  # as the array calls it; who trained the network knows it by its weights
            original_name=f"weights_{index}",
            type="Dense",
            provider="systolic",
            shape_in=base.shape_text([(rows, inside), (inside, columns)]),
            shape_out=base.shape_text([(rows, columns)]),
            alloc_bytes=rows * columns * 4,  # the sums are int32
            param_bytes=inside * columns,  # int8
            flops=matmul_flops((rows, columns), inside),
            flops_source=COMPUTED,
        )

    def _add_commands(self, profile, place, rows, shape):
        """Add what was loaded and multiplied; the two commands of a tile, each on its own stream, share a number."""
        down, across = tiles(*shape)
        load_ns, multiply_ns = SIZE * NS_PER_CYCLE, (rows + 2 * SIZE - 1) * NS_PER_CYCLE
        load = {
            "name": "load_tile",
            "kind": "copy",
            "stream": 1,
            "bytes": SIZE * SIZE,
            "duration_ns": load_ns,
        }
        multiply = {"name": "multiply_tile", "kind": "kernel", "stream": 0, "duration_ns": multiply_ns}
        multiply |= {"grid": f"{down}x{across}", "block": f"{SIZE}x{SIZE}"}
        at_ns = place["start_ns"]
        for tile in range(down * across):
            known = {**place, "device": "array", "correlation": tile}
            profile.add_kernel(**{**known, **load, "start_ns": at_ns})
            profile.add_kernel(**{**known, **multiply, "start_ns": at_ns + load_ns})
            at_ns += load_ns + multiply_ns
