"""Runs in a Python with PyTorch: profiles models as a pass that profiles does, and tells the rows that came out."""

from __future__ import annotations

import io
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from predictor_cases import Notes, options
from torch import nn

from mlbundle.wire import columns
from mlbundle.worker.predictors.torch_ import TorchPredictor
from mlbundle.worker.profilers.base import Profile, Run, Runs, realtime_offset_ns
from mlbundle.worker.profilers.torch_ import TorchProfiler

FOLDER, ROOT = Path(sys.argv[1]), Path(sys.argv[2])
DIGITS = ROOT / "manifests" / "models" / "digits-cnn" / "torch"
QUERIES = 3
CODE = """
import torch
from torch import nn
from torch.nn import functional as F

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(4))

    def forward(self, value):
        return F.relu(value * self.factor.view(1, 4, 1, 1))

class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(2, 4, 3, stride=2)
        self.grouped = nn.Conv2d(4, 8, 3, groups=2, bias=False)
        self.scale = Scale()
        self.shared = nn.ReLU()
        self.rows = nn.LSTM(8, 3, batch_first=True)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.blöcke = nn.ModuleDict({"große 层": nn.Linear(6, 5)})

    def forward(self, input):
        value = self.shared(self.shared(self.scale(self.up(input))))
        value = self.grouped(value)
        value = value.flatten(2).transpose(1, 2) @ torch.ones(8, 8)
        value, _ = self.rows(value)
        value = torch.cat([value, value], dim=2)
        value, _ = self.attention(value, value, value, need_weights=False)
        value = value + value
        value = self.blöcke["große 层"](value + 1)
        if bool((value.sum() != 0) & (input[0, 0, 0, 0] > 0)):
            value = torch.tanh(value)
        return value.sum(1)

def model():
    torch.manual_seed(0)
    return Parts()
"""
WRITES = """
from torch import nn

class Writes(nn.Module):
    def forward(self, input):
        return input.mul_(2).sum((2, 3))

def model():
    return Writes()
"""


class Counts(nn.Module):
    """A loop and a branch: its graph has each operator once."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4)
        self.end = nn.Conv1d(1, 2, 3)

    def forward(self, input: torch.Tensor, times: int = 3) -> torch.Tensor:  # noqa: A002
        for _ in range(times):
            input = torch.tanh(self.step(input))  # noqa: A001
        if input.dim() == 7:
            input = torch.sigmoid(input)  # noqa: A001
        return self.end(input.unsqueeze(1)).flatten(1)


class Lists(nn.Module):
    """Modules in lists, which TorchScript forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.encoders = nn.ModuleList([nn.Linear(4, 4), Inner()])
        self.decoders = nn.ModuleList([nn.Linear(4, 2)])

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        for one in self.encoders:
            input = one(input)  # noqa: A001
        return self.decoders[0](input)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(value))


def rows(content: bytes, texts: tuple[str, ...]) -> list[dict[str, Any]]:
    table = np.load(io.BytesIO(content), allow_pickle=False)
    strings = table[columns.STRINGS]
    names = [name for name in table.files if name != columns.STRINGS]
    return [
        {
            name: str(strings[value]) if name in texts else int(value)
            for name, value in zip(names, row, strict=True)
        }
        for row in zip(*(table[name] for name in names), strict=True)
    ]


def profile(
    model: dict[str, str], feeds: list[np.ndarray], level: str = "system", predictor: Any = None
) -> dict[str, Any]:
    """Open a model, warm up, profile some queries and read what was seen."""
    predictor = predictor or TorchPredictor()
    told = options([None], [None], scratch=str(FOLDER))
    profiler = TorchProfiler(level, {"scratch": str(FOLDER)})
    handle = predictor.open(model, {**told, "profile": dict(profiler.settings())})
    profiler.attach(predictor, handle)
    batches = [predictor.prepare(handle, {handle.input_names[0]: one}) for one in feeds]
    call = profiler.caller(predictor.predict, handle)
    for batch in batches * 3:
        call(batch)
    most = profiler.most_runs()
    profiler.begin()
    runs = []
    for number in range(QUERIES):
        offset_ns, start_ns = realtime_offset_ns(), time.monotonic_ns()
        call(batches[number % len(batches)])
        runs.append(Run(number, start_ns, time.monotonic_ns(), offset_ns))
    profiler.end()
    found = Profile()
    profiler.read(Runs(runs), found)
    predictor.close(handle)
    return {
        "runs": [[run.start_ns, run.end_ns] for run in runs],
        "layers": rows(found.layers_bytes(), columns.LAYER_TEXTS),
        "kernels": rows(found.kernels_bytes(), columns.KERNEL_TEXTS),
        "notes": found.notes,
        "most": most,
        "left": sorted(path.name for path in FOLDER.glob("*.json")),
    }


def resnet() -> nn.Module:
    sys.path.insert(0, str(ROOT / "manifests" / "generated" / "resnet50"))
    from build_torch import ResNet50
    from network import Configuration

    torch.manual_seed(0)
    return ResNet50(Configuration(width=8, size=32, classes=10)).eval()


def save(name: str, make: Callable[[], Any]) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = make()
        if isinstance(made, torch.export.ExportedProgram):
            torch.export.save(made, FOLDER / name)
        elif isinstance(made, str):
            (FOLDER / name).write_text(made)
        else:
            made.save(str(FOLDER / name))
    return {"graph": str(FOLDER / name)}


class Own:
    """A predictor of another's: its handle has no module."""

    class Handle:
        input_names = ("input",)

    def open(self, model: Any, told: Any) -> Handle:
        return self.Handle()

    def prepare(self, handle: Handle, feeds: dict[str, np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(feeds["input"])

    def predict(self, handle: Handle, batch: torch.Tensor) -> list[np.ndarray]:
        return [torch.relu(batch @ torch.ones(4, 4)).numpy()]

    def close(self, handle: Handle) -> None:
        pass


def main() -> None:
    notes = Notes()
    image = [np.random.default_rng(0).random((1, 1, 8, 8), dtype=np.float32)]
    for name, model in {
        "torchscript": {"graph": str(DIGITS / "model.pt")},
        "program": {"graph": str(DIGITS / "model.pt2")},
        "code": {"graph": str(DIGITS / "model.py"), "weights": str(DIGITS / "model.safetensors")},
    }.items():
        notes.note(name, lambda model=model: profile(model, image))
    notes.note("framework", lambda: profile({"graph": str(DIGITS / "model.pt")}, image, "framework"))
    two = [image[0], np.repeat(image[0], 2, axis=0)]
    notes.note("two shapes", lambda: profile({"graph": str(DIGITS / "model.pt2")}, two))

    network, picture = resnet(), torch.zeros(1, 3, 32, 32)
    with torch.inference_mode():
        traced = save("resnet.pt", lambda: torch.jit.trace(network, picture))
    notes.note("resnet traced", lambda: profile(traced, [picture.numpy()]))
    exported = save("resnet.pt2", lambda: torch.export.export(network, (picture,)))
    notes.note("resnet exported", lambda: profile(exported, [picture.numpy()]))

    ones = np.ones((1, 2, 4, 4), np.float32)
    notes.note("parts", lambda: profile(save("parts.py", lambda: CODE), [ones, -ones]))
    notes.note("writes", lambda: profile(save("writes.py", lambda: WRITES), [ones]))
    vector = np.ones((2, 4), np.float32)
    notes.note("loop", lambda: profile(save("loop.pt", lambda: torch.jit.script(Counts().eval())), [vector]))
    with torch.inference_mode():
        lists = save("lists.pt", lambda: torch.jit.trace(Lists().eval(), torch.ones(2, 4)))
    notes.note("lists", lambda: profile(lists, [vector]))
    notes.note("own predictor", lambda: profile({}, [vector], predictor=Own()))
    notes.send()


main()
