"""Models that are programs: TorchScript, pickles, SavedModels and code that look around, write and call home."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import calling_pickle, mapping_torchscript, saved_model
from support import Outcome, command_line, make_bundle

QUICK = ("--duration", "50ms", "--warmup", "10ms", "--no-accuracy", "--json")
FRAMEWORK = "framework: {name: onnxruntime, version: '>=1.19 <2'}"
GRAPH = "model: {graph_path: model.onnx}"
TORCH, TENSORFLOW = "torch", "tensorflow"

CODE = """\
import torch

def model():
    return torch.nn.Linear(6, 4)
"""
CALLING = "import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=2)\n"

Attack = Callable[[Path, Path], str]
"""Writes a model into a bundle that is after a file of the host; returns the manifest's `model:`."""


def reads_by_torchscript(bundle: Path, target: Path) -> str:
    mapping_torchscript(bundle / "net.pt", str(target), shared=False)
    return "{graph_path: net.pt}"


def writes_by_torchscript(bundle: Path, target: Path) -> str:
    mapping_torchscript(bundle / "net.pt", f"{target}.planted", shared=True)
    return "{graph_path: net.pt}"


def writes_to_the_root_by_torchscript(bundle: Path, target: Path) -> str:
    mapping_torchscript(bundle / "net.pt", "/planted-by-torchscript", shared=True)
    return "{graph_path: net.pt}"


def calls_by_pickle(bundle: Path, target: Path) -> str:
    (bundle / "net.py").write_text(CODE)
    calling_pickle(bundle / "net.bin", f"touch {target}.planted; echo called >&2")
    return "{graph_path: net.py, weights_path: net.bin}"


def calls_home_by_code(bundle: Path, target: Path) -> str:
    (bundle / "net.py").write_text(CALLING + CODE)
    calling_pickle(bundle / "net.bin", "true")
    return "{graph_path: net.py, weights_path: net.bin}"


def reads_by_saved_model(bundle: Path, target: Path) -> str:
    saved_model(bundle / "net", str(target), write=False)
    return "{graph_path: net/}"


def writes_by_saved_model(bundle: Path, target: Path) -> str:
    saved_model(bundle / "net", "/planted-by-saved-model", write=True)
    return "{graph_path: net/}"


# Attack -> framework, and the words of its end in the container.
ATTACKS: dict[Attack, tuple[str, str]] = {
    reads_by_torchscript: (TORCH, "No such file or directory"),
    writes_by_torchscript: (TORCH, "No such file or directory"),
    writes_to_the_root_by_torchscript: (TORCH, "Read-only file system"),
    calls_by_pickle: (TORCH, "posix.system"),
    calls_home_by_code: (TORCH, "unreachable"),
    reads_by_saved_model: (TENSORFLOW, "No such file or directory"),
    writes_by_saved_model: (TENSORFLOW, "Read-only file system"),
}


def name_of(attack: object) -> str | None:
    return getattr(attack, "__name__", None)


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """A file of the host that a model is after; nothing may lie beside it afterwards."""
    folder = tmp_path / "host"
    folder.mkdir()
    target = folder / "secret"
    target.write_text("secret")
    yield target
    assert list(folder.iterdir()) == [target]
    assert list(Path("/").glob("planted*")) == []


def hostile_bundle(folder: Path, attack: Attack, target: Path) -> Path:
    bundle = make_bundle(folder)
    model = attack(bundle, target)
    framework = f"framework: {{name: {ATTACKS[attack][0]}, version: '*'}}"
    text = (bundle / "model.yml").read_text()
    assert FRAMEWORK in text
    assert GRAPH in text
    (bundle / "model.yml").write_text(text.replace(FRAMEWORK, framework).replace(GRAPH, f"model: {model}"))
    (bundle / "model.onnx").unlink()
    return bundle


def run(bundle: Path, *arguments: str, home: Path) -> Outcome:
    done = subprocess.run(
        command_line("run", bundle, *arguments, *QUICK),
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "MLBUNDLE_HOME": str(home)},
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.engine
@pytest.mark.parametrize("attack", ATTACKS, ids=name_of)
def test_in_a_container_it_finds_nothing_and_changes_nothing(
    all_images: Path, engine: Any, tmp_path, secret, attack
) -> None:
    bundle = hostile_bundle(tmp_path / "b", attack, secret)
    outcome = run(bundle, "--runtime", "docker", home=all_images)
    error = outcome.document()
    assert (outcome.status, error["reference"]) == (4, "worker-failed"), outcome
    # A SavedModel that fails while it runs may also be TensorFlow's fault: nobody can tell.
    assert error["fault"] in ({"bundle"} if ATTACKS[attack][0] == TORCH else {"bundle", "framework"}), error
    assert ATTACKS[attack][1] in error["message"], error
    assert "called" not in json.dumps(error["context"])
    ours = {folder.name for folder in (all_images / "data" / "runs").glob("*")}
    containers = engine.api.containers(all=True, filters={"label": "io.mlbundle.run"})
    assert [c for c in containers if c["Labels"]["io.mlbundle.run"] in ours] == []


@pytest.mark.parametrize("attack", ATTACKS, ids=name_of)
def test_as_a_process_it_is_refused_without_trust(home: Path, tmp_path, secret, attack) -> None:
    bundle = hostile_bundle(tmp_path / "b", attack, secret)
    error = run(bundle, "--runtime", "process", home=home).error(3, "trust-required")
    assert "--trust" in error["hint"]
    assert "--runtime docker" in error["hint"]
    assert not (home / "cache" / "envs").exists()
