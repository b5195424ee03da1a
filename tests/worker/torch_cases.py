"""Runs in a Python with PyTorch: writes models to the folder named on the command line and loads them in all ways."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import torch
from predictor_cases import Notes, answer, options
from safetensors.torch import save_file
from torch import nn

from mlbundle.worker.predictors.torch_ import TorchPredictor

FOLDER = Path(sys.argv[1])
CODE = """
import torch
from torch import nn

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.second = nn.Linear(3, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, points, extra, scale=1.0):
        return {"sum": self.drop(self.first(points) + self.second(extra)), "scaled": self.first(points) * scale}

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.5]))

    def forward(self, points):
        if points.ndim == 3:
            raise ValueError("three axes")
        mode = torch.tensor([float(torch.is_inference_mode_enabled()), float(self.training)])
        return mode, self.weight, torch.tensor([0.5], dtype=torch.bfloat16)

def model():
    return Pair()
"""


class Two(nn.Module):
    def __init__(self, pair: nn.Module) -> None:
        super().__init__()
        self.pair = pair

    def forward(self, points, extra):
        return self.pair.first(points), self.pair.second(extra)


class Named(Two):
    def forward(self, points, extra):
        return {"one": self.pair.first(points), "two": self.pair.second(extra)}


class Planted:
    def __reduce__(self):
        return (os.mkdir, (str(FOLDER / "planted"),))


def write_models() -> tuple[dict[str, np.ndarray], list[list]]:
    """Write every form; returns feeds, and what the two layers make of them."""
    torch.manual_seed(0)
    (FOLDER / "pair.py").write_text(CODE)
    for name, text in {
        "odd.py": CODE.replace("return Pair()", "return Odd()"),
        "text.py": "def model():\n    return 'a model'\n",
        "none.py": "import torch\n",
        "ends.py": "def model():\n    raise SystemExit(0)\n",
        "raises.py": "def model():\n    raise KeyError('no such size')\n",
    }.items():
        (FOLDER / name).write_text(text)
    scope: dict = {}
    exec(CODE, scope)
    pair = scope["Pair"]().eval()
    state = pair.state_dict()
    save_file(state, FOLDER / "pair.safetensors")
    torch.save(state, FOLDER / "pair.bin")
    save_file({k: v for k, v in state.items() if k != "second.bias"}, FOLDER / "less.safetensors")
    torch.save({**state, "second.bias": Planted()}, FOLDER / "planted.bin")
    points, extra = torch.randn(2, 6), torch.randn(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(Two(pair), (points, extra)).save(str(FOLDER / "two.pt"))
        torch.jit.script(nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)).train()).save(
            str(FOLDER / "train.pt")
        )
        axis = {0: torch.export.Dim("N")}
        torch.export.save(
            torch.export.export(Named(pair), (points, extra), dynamic_shapes={"points": axis, "extra": axis}),
            FOLDER / "named.pt2",
        )
    for name in ("garbage.pt", "garbage.pt2", "garbage.safetensors", "garbage.bin"):
        (FOLDER / name).write_bytes(b"this is no model" * 100)
    (FOLDER / "whole.pt").write_bytes(pickle.dumps([1, 2, 3]))
    with torch.no_grad():
        expected = [pair.first(points).tolist(), pair.second(extra).tolist()]
    return {"points": points.numpy(), "extra": extra.numpy()}, expected


def paths(graph: str, weights: str | None = None) -> dict[str, str]:
    found = {"graph": str(FOLDER / graph)}
    if weights is not None:
        found["weights"] = str(FOLDER / weights)
    return found


def run(graph, inputs, outputs, feeds, weights=None, **others):
    return answer(TorchPredictor(), paths(graph, weights), options(inputs, outputs, **others), feeds)


def facts(**others) -> dict:
    predictor = TorchPredictor()
    handle = predictor.open(paths("two.pt"), options(["points", "extra"], ["a", "b"], **others))
    return {"facts": handle.facts, "torch": [torch.get_num_threads(), torch.get_num_interop_threads()]}


WRITERS = """
import torch
from torch import nn

class Doubles(nn.Module):
    def forward(self, points):
        points.mul_(2)
        return points.sum(1)

class Clips(nn.Module):
    def forward(self, points):
        return nn.functional.relu(points, inplace=True).sum(1)

class Hidden(nn.Module):
    def forward(self, points):
        points.numpy()[:] = 7
        return points.sum(1)

def model():
    return {}()
"""


def write_writers() -> None:
    """Models that write to their inputs, one of them what is there already."""
    for name in ("Doubles", "Clips", "Hidden"):
        (FOLDER / (name.lower() + ".py")).write_text(WRITERS.replace("{}", name))
    scope: dict = {}
    exec(WRITERS.replace("{}", "Doubles"), scope)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(scope["Doubles"](), (torch.ones(2, 6),)).save(str(FOLDER / "doubles.pt"))
        torch.export.save(
            torch.export.export(scope["Doubles"](), (torch.ones(2, 6),)), FOLDER / "doubles.pt2"
        )


def written(graph: str, *, elsewhere: bool = False) -> dict:
    """What a model answers to the same batch again and again, what is left of the batch, and what is said of it."""
    feeds = {"points": np.ones((2, 6), np.float32)}
    predictor = TorchPredictor()
    handle = predictor.open(paths(graph), options(["points"], ["sum"]))
    if elsewhere:
        handle.enter_inference_mode()
    try:
        batches = [predictor.prepare(handle, {"points": feeds["points"].copy()}), None]
        batches[1] = predictor.prepare(handle, feeds)
        answers = [predictor.predict(handle, batch)[0].tolist() for batch in batches * 3]
    finally:
        predictor.close(handle)
    return {"answers": answers, "left": feeds["points"].tolist(), "timed": handle.facts["timed"]}


def in_other_thread(feeds: dict) -> list:
    """Prepare here, predict in a thread of its own, as a pipeline does."""
    predictor = TorchPredictor()
    handle = predictor.open(paths("odd.py"), options(["points"], ["mode"]))
    batch = predictor.prepare(handle, feeds)
    found: list = []
    thread = threading.Thread(target=lambda: found.append(predictor.predict(handle, batch)[0].tolist()))
    thread.start()
    thread.join()
    predictor.close(handle)
    return [found[0], torch.is_inference_mode_enabled()]


def fails_later(feeds: dict) -> list:
    predictor = TorchPredictor()
    handle = predictor.open(paths("odd.py"), options(["points"], ["mode"]))
    predictor.prepare(handle, feeds)
    batch = predictor.prepare(handle, {"points": feeds["points"][None]})
    return predictor.predict(handle, batch)


def read_only(feeds: dict) -> list:
    """Arrays that can't be written, or run backwards, are taken without a warning."""
    array = feeds["points"][::-1]
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return run("two.pt", ["points", "extra"], ["a", "b"], {**feeds, "points": array})


def main() -> None:
    notes = Notes()
    feeds, expected = write_models()
    both = ["points", "extra"]
    notes.note("expected", lambda: expected)
    notes.note("trace", lambda: run("two.pt", both, ["a", "b"], feeds))
    notes.note("trace-reversed", lambda: run("two.pt", both[::-1], ["a", "b"], feeds))
    by_position = {"in_0": feeds["points"], "in_1": feeds["extra"]}
    notes.note("trace-by-position", lambda: run("two.pt", ["in_0", "in_1"], ["a", "b"], by_position))
    notes.note("one-output", lambda: run("two.pt", both, ["a"], feeds))
    notes.note("trained", lambda: run("train.pt", [None], ["a"], {"input": feeds["points"]}))
    notes.note("export", lambda: run("named.pt2", both, ["one", "two"], feeds))
    notes.note("export-reversed", lambda: run("named.pt2", both, ["two", "one"], feeds))
    single = {name: array[:1] for name, array in feeds.items()}
    notes.note("export-one-sample", lambda: run("named.pt2", both, ["one", "two"], single))
    notes.note("safetensors", lambda: run("pair.py", both, ["scaled", "sum"], feeds, "pair.safetensors"))
    notes.note("state-dict", lambda: run("pair.py", both, ["scaled", "sum"], feeds, "pair.bin"))
    scale = {**feeds, "scale": np.array([2.0], np.float32)}
    notes.note("by-keyword", lambda: run("pair.py", [*both, "scale"], ["scaled"], scale, "pair.bin"))
    notes.note("read-only", lambda: read_only(feeds))
    odd = {"points": feeds["points"]}
    notes.note("odd-outputs", lambda: run("odd.py", ["points"], ["mode", "weight", "half"], odd))
    notes.note("other-thread", lambda: in_other_thread(odd))
    write_writers()
    for name in ("doubles.py", "doubles.pt", "doubles.pt2", "clips.py", "hidden.py"):
        notes.note("written " + name, lambda name=name: written(name))
    notes.note("written in inference mode", lambda: written("clips.py", elsewhere=True))
    notes.note("written train.pt", lambda: written("train.pt"))
    notes.note("facts-2", lambda: facts(threads=2))
    notes.note("facts-1", lambda: facts(threads=1))

    notes.note("names-half", lambda: run("two.pt", ["points", "y"], ["a", "b"], {**odd, "y": feeds["extra"]}))
    notes.note("too-few", lambda: run("two.pt", ["points"], ["a", "b"], odd))
    notes.note("fed-otherwise", lambda: run("two.pt", both, ["a", "b"], odd))
    notes.note("output-unknown", lambda: run("named.pt2", both, ["one", "three"], feeds))
    notes.note("outputs-missing", lambda: run("two.pt", both, ["a", "b", "c"], feeds))
    double = {name: array.astype(np.float64) for name, array in feeds.items()}
    notes.note("wrong-type", lambda: run("two.pt", both, ["a", "b"], double))
    notes.note("text", lambda: run("two.pt", both, ["a", "b"], {**feeds, "extra": np.array(["a", "b"])}))
    notes.note("fails-later", lambda: fails_later(odd))
    for name in ("garbage.pt", "garbage.pt2", "whole.pt", "pair.bin"):
        notes.note("load " + name, lambda name=name: run(name, both, ["a"], feeds))
    for name in ("text.py", "none.py", "ends.py", "raises.py"):
        notes.note("load " + name, lambda name=name: run(name, ["points"], ["a"], odd))
    for name in ("less.safetensors", "garbage.safetensors", "garbage.bin", "planted.bin"):
        notes.note("weights " + name, lambda name=name: run("pair.py", both, ["sum"], feeds, name))
    notes.note("planted", (FOLDER / "planted").exists)
    notes.note("weights-unused", lambda: run("two.pt", both, ["a"], feeds, "pair.bin"))
    notes.note("gpu", lambda: run("two.pt", both, ["a"], feeds, accelerator="gpu"))
    notes.note("tpu", lambda: run("two.pt", both, ["a"], feeds, accelerator="tpu"))
    notes.send()


main()
