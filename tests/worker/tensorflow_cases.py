"""Runs in a Python with TensorFlow: writes models to the folder named on the command line and loads them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from predictor_cases import Notes, answer, options

from mlbundle.worker.predictors.tensorflow_ import TensorFlowPredictor

FOLDER = Path(sys.argv[1])
INPUTS = [
    tf.TensorSpec([None, 6], tf.float32, name="points"),
    tf.TensorSpec([None, 3], tf.float32, name="extra"),
]


def threads_started(threads: int) -> int:
    """How many threads a session has started in a process that had none; counted in a child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        before = len(os.listdir("/proc/self/task"))
        TensorFlowPredictor().open(paths("frozen.pb"), options(["points"], ["one"], threads=threads))
        os.write(write, str(len(os.listdir("/proc/self/task")) - before).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        found = stream.read()
    os.waitpid(child, 0)
    return int(found)


def threads_computing(threads: int) -> int:
    """How many threads of a child take part in a heavy operator, by the processor time of each."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        predictor = TensorFlowPredictor()
        handle = predictor.open(paths("heavy.pb"), options(["points"], ["heavy"], threads=threads))
        predictor.predict(handle, [np.full((700, 700), 0.001, np.float32)])
        busy = 0
        for task in Path("/proc/self/task").iterdir():
            busy += int((task / "schedstat").read_text().split()[0]) > 5_000_000  # nanoseconds
        # The main thread has been busy with loading in any case.
        os.write(write, str(busy).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        found = stream.read()
    os.waitpid(child, 0)
    return int(found)


def write_frozen(first: np.ndarray) -> None:
    """Write a frozen graph as one finds them: with a device of the machine that it was trained on."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph, tf.device("/GPU:0"):
        points = v1.placeholder(tf.float32, [None, 6], name="points")
        one = tf.matmul(points, tf.constant(first), name="one")
        tf.nn.relu(one, name="two")
    with tf.Graph().as_default() as heavy:
        square = v1.placeholder(tf.float32, [700, 700], name="points")
        for _ in range(6):
            square = tf.tanh(tf.matmul(square, square))
        tf.identity(square, name="heavy")
    (FOLDER / "heavy.pb").write_bytes(heavy.as_graph_def().SerializeToString())
    (FOLDER / "frozen.pb").write_bytes(graph.as_graph_def().SerializeToString())
    with tf.Graph().as_default() as graph:
        a, b = v1.placeholder(tf.float32, [None, 2], name="a"), v1.placeholder(tf.int64, [None], name="b")
        tf.add(tf.reduce_sum(a, 1), tf.cast(b, tf.float32), name="total")
    (FOLDER / "two.pb").write_bytes(graph.as_graph_def().SerializeToString())


class Two(tf.Module):
    """Two inputs, two outputs, variables."""

    def __init__(self, first: np.ndarray, second: np.ndarray) -> None:
        super().__init__()
        self.first, self.second = tf.Variable(first), tf.Variable(second)

    @tf.function(input_signature=INPUTS)
    def both(self, points, extra):
        return {"two": extra @ self.second, "one": points @ self.first}

    @tf.function(input_signature=INPUTS[:1])
    def negative(self, points):
        return {"negative": -(points @ self.first)}


def write_saved_models(first: np.ndarray, second: np.ndarray) -> None:
    model = Two(first, second)
    for folder, signatures in {
        "saved": {"serving_default": model.both, "negative": model.negative},
        "other": {"negative": model.negative},
        "several": {"both": model.both, "negative": model.negative},
    }.items():
        tf.saved_model.save(model, str(FOLDER / folder), signatures=signatures)
    (FOLDER / "empty").mkdir()
    (FOLDER / "torn").mkdir()
    (FOLDER / "torn" / "saved_model.pb").write_bytes((FOLDER / "saved" / "saved_model.pb").read_bytes())
    (FOLDER / "garbage.pb").write_bytes(b"this is no model" * 100)


def paths(graph: str, **others: str) -> dict[str, str]:
    return {"graph": str(FOLDER / graph), **others}


def run(graph, inputs, outputs, feeds, **others):
    return answer(TensorFlowPredictor(), paths(graph), options(inputs, outputs, **others), feeds)


def opened(graph: str, inputs: list, outputs: list) -> dict:
    predictor = TensorFlowPredictor()
    handle = predictor.open(paths(graph), options(inputs, outputs, threads=3))
    found = {"inputs": handle.input_names, "outputs": handle.output_names, "facts": handle.facts}
    predictor.close(handle)
    return found


def main() -> None:
    random = np.random.default_rng(0)
    first, second = (random.normal(size=(n, 4)).astype(np.float32) for n in (6, 3))
    points, extra = (random.normal(size=(2, n)).astype(np.float32) for n in (6, 3))
    write_frozen(first)
    notes = Notes()
    # Before TensorFlow starts anything of its own in this process.
    notes.note("threads", lambda: [threads_started(1), threads_started(4)])
    notes.note("computing", lambda: [threads_computing(1), threads_computing(2)])
    write_saved_models(first, second)
    both, feeds = ["points", "extra"], {"points": points, "extra": extra}
    notes.note("expected", lambda: [(points @ first).tolist(), (extra @ second).tolist()])
    notes.note("saved", lambda: run("saved", both, ["two", "one"], feeds))
    notes.note("saved-names", lambda: opened("saved", both, ["two", "one"]))
    notes.note("only-signature", lambda: run("other", ["points"], ["negative"], {"points": points}))
    notes.note("frozen", lambda: run("frozen.pb", ["points"], ["two", "one"], {"points": points}))
    notes.note("frozen-ports", lambda: run("frozen.pb", ["points:0"], ["one:0"], {"points:0": points}))
    notes.note("frozen-one-input", lambda: opened("frozen.pb", [None], ["one"]))
    ab = {"b": np.array([3, 4]), "a": np.ones((2, 2), np.float32)}
    notes.note("frozen-two-inputs", lambda: run("two.pb", ["b", "a"], ["total"], ab))

    notes.note("several", lambda: opened("several", both, ["one"]))
    for name in ("garbage.pb", "empty", "torn", "saved/saved_model.pb"):
        notes.note("load " + name, lambda name=name: opened(name, both, ["one"]))
    notes.note("input-unknown", lambda: run("frozen.pb", ["pints"], ["one"], {"pints": points}))
    notes.note("output-unknown", lambda: run("frozen.pb", ["points"], ["three"], {"points": points}))
    notes.note("output-unnamed", lambda: run("frozen.pb", ["points"], [None], {"points": points}))
    notes.note("key-unknown", lambda: run("saved", ["points", "x"], ["one"], {"points": points, "x": extra}))
    notes.note(
        "wrong-type", lambda: run("saved", both, ["one"], {**feeds, "extra": extra.astype(np.float64)})
    )
    notes.note("wrong-shape", lambda: run("saved", both, ["one"], {**feeds, "extra": points}))
    weights = {"weights": str(FOLDER / "frozen.pb")}
    notes.note(
        "weights-unused",
        lambda: TensorFlowPredictor().open(paths("saved", **weights), options(both, ["one"])),
    )
    notes.note("gpu", lambda: run("saved", both, ["one"], feeds, accelerator="gpu"))
    notes.note("fpga", lambda: run("saved", both, ["one"], feeds, accelerator="fpga"))
    notes.send()


main()
