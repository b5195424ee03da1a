"""`mlbundle generate`: a model from its recipe, the same weights everywhere, the same answers by every framework."""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from framework_pythons import framework_python
from inprocess import InProcess
from support import command_line

from mlbundle.files import lock_folder
from mlbundle.manifest.load import load_model
from mlbundle.resources import generated_models

RECIPE = generated_models()["resnet50"]
SETTINGS = {"width": 4, "size": 32, "classes": 10, "images": 8, "seed": 50}
TINY = [argument for name, value in SETTINGS.items() for argument in ("--set", f"{name}={value}")]


@pytest.fixture
def mlbundle(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> InProcess:
    monkeypatch.chdir(tmp_path)
    return InProcess(capsys)


@pytest.fixture(scope="module")
def modules() -> Iterator[tuple[Any, Any]]:
    """The modules `network` and `weights` of the recipe."""
    names = ("network", "weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(RECIPE))
        patch.setattr(sys, "dont_write_bytecode", True)
        yield tuple(importlib.import_module(name) for name in names)  # type: ignore[misc]
    for name in names:
        del sys.modules[name]


def in_framework(framework: str, script: str, *arguments: str | Path) -> str:
    """Run a script with the Python of a framework, the recipe's modules at hand; returns what it prints."""
    variables = {**os.environ, "PYTHONPATH": str(RECIPE), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [framework_python(framework), "-c", script, *arguments],
        capture_output=True,
        text=True,
        env=variables,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# The numbers


def test_the_weights_are_those_of_resnet_50_and_the_same_on_every_machine(modules) -> None:
    network, weights = modules
    digest, parameters = hashlib.sha256(), 0
    for name, values in weights.arrays(network.Configuration()):
        assert values.dtype == np.float32
        digest.update(values.tobytes())
        if ".running_" not in name:
            parameters += values.size
        if values.ndim > 1:
            rows = values.reshape(len(values), -1).astype(np.float64)
            inputs = rows.shape[1]
            assert abs(rows.sum(axis=1)).max() < 1e-4, name
            assert rows.std() == pytest.approx(np.sqrt(2 / inputs), rel=0.05), name
    assert parameters == network.PARAMETERS == 25_557_032
    assert digest.hexdigest() == "6c51d357d8fe3b299c6998109495f392dc12f18ac80e1284450dc7d5233b8a99"


def test_another_seed_makes_other_weights_and_other_images(modules) -> None:
    network, weights = modules
    one, other = network.Configuration(**SETTINGS), network.Configuration(**SETTINGS | {"seed": 51})
    assert [n for n, _ in weights.arrays(one)] == [n for n, _ in weights.arrays(other)]
    for (name, left), (_, right) in zip(weights.arrays(one), weights.arrays(other), strict=True):
        assert (left != right).any(), name
    assert (weights.images(one) != weights.images(other)).mean() > 0.9


@pytest.mark.parametrize("size", [32, 33, 48])
def test_images_have_the_size_asked_for_and_differ(modules, size) -> None:
    network, weights = modules
    images = weights.images(network.Configuration(**SETTINGS | {"size": size}))
    assert images.shape == (8, 3, size, size)
    assert len({image.tobytes() for image in images}) == 8
    assert 0.2 < images.std() < 2


# What it makes


def test_onnx_runtime_and_torch_give_the_answers_of_the_reference(mlbundle, tmp_path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    python = framework_python("torch")
    arguments = ["--framework", "onnxruntime", "--framework", "torch", "--python", f"torch={python}"]
    made = mlbundle("generate", "resnet50", "-o", "tiny", *TINY, *arguments, "--json").document()
    folder = tmp_path / "tiny"
    assert made["written"] is True
    assert made["settings"] == SETTINGS
    assert {e["path"]: e["sha256"] for e in made["files"]} == {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "generated.json"
    }
    manifest = load_model(folder / "model.yml").require()
    assert [manifest.framework.name, *(v.framework.name for v in manifest.variants)] == [
        "onnxruntime",
        "torch",
    ]
    images, labels, expected = answers(folder)
    session = runtime.InferenceSession(folder / "onnx" / "model.onnx")
    (logits,) = session.run(["logits"], {"input": images})
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)
    assert (logits.argmax(axis=1) == labels).all()
    in_framework("torch", RUN_TORCH, folder)
    np.testing.assert_allclose(np.load(folder / "torch.npy"), expected, rtol=1e-3, atol=1e-3)


RUN_TORCH = """
import sys, numpy, torch
folder = sys.argv[1]
images = torch.from_numpy(numpy.load(folder + "/dataset/images.npz")["images"])
with torch.inference_mode():
    numpy.save(folder + "/torch.npy", torch.jit.load(folder + "/torch/model.pt")(images).numpy())
"""


def test_tensorflow_gives_the_answers_of_the_reference(modules, tmp_path) -> None:
    subprocess.run([sys.executable, RECIPE / "reference.py", tmp_path, json.dumps(SETTINGS)], check=True)
    in_framework("tensorflow", RUN_TENSORFLOW, tmp_path, json.dumps(SETTINGS))
    _, _, expected = answers(tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "tensorflow.npy"), expected, rtol=1e-3, atol=1e-3)


RUN_TENSORFLOW = """
import sys, numpy, build_tensorflow, tensorflow
build_tensorflow.main()
folder = sys.argv[1]
images = numpy.load(folder + "/dataset/images.npz")["images"]
answer = tensorflow.saved_model.load(folder + "/tensorflow/saved_model").signatures["serving_default"]
numpy.save(folder + "/tensorflow.npy", answer(input=tensorflow.constant(images))["logits"].numpy())
"""


def answers(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels and logits of the reference; they tell images apart, or agreement would mean nothing."""
    with np.load(folder / "dataset" / "images.npz") as arrays:
        images, labels = arrays["images"], arrays["labels"]
    logits = np.load(folder / "dataset" / "logits.npz")["logits"]
    assert (logits.argmax(axis=1) == labels).all()
    assert len(set(labels.tolist())) > 2
    assert logits.std(axis=0).mean() > 0.1
    return images, labels, logits


def test_what_was_made_can_be_validated_and_run(mlbundle) -> None:
    pytest.importorskip("onnxruntime")
    mlbundle("generate", "resnet50", "-o", "tiny", *TINY, "--framework", "onnxruntime")
    assert mlbundle("validate", "tiny").status == 0
    options = ["--runtime", "process", "--python", sys.executable, "--duration", "50ms", "--warmup", "1ms"]
    accuracy = mlbundle("run", "tiny", *options, "--json").document()["accuracy"]
    assert (accuracy["value"], accuracy["passed"]) == (1.0, True)


# Again, and over what is there


def test_the_same_order_makes_the_same_bytes_and_force_replaces_what_was_made(mlbundle, tmp_path) -> None:
    arguments = ["generate", "resnet50", "-o", "tiny", *TINY, "--framework", "onnxruntime", "--json"]
    first = mlbundle(*arguments).document()
    assert mlbundle(*arguments).error(2, "usage")["hint"].endswith("say --force")
    (tmp_path / "tiny" / "README.md").unlink()
    assert mlbundle(*arguments, "--force").document() == first
    assert (tmp_path / "tiny" / "README.md").is_file()
    assert names_in(tmp_path) == ["tiny"]


def test_force_never_replaces_what_a_user_wrote(mlbundle, tmp_path) -> None:
    folder = tmp_path / "tiny"
    write_generated(folder, {"model.yml": b"name: tiny", "onnx/model.onnx": b"1234"})
    arguments = [
        "generate",
        "resnet50",
        "-o",
        "tiny",
        *TINY,
        "--framework",
        "onnxruntime",
        "--json",
        "--force",
    ]
    for name, path in {
        "notes.txt": folder / "notes.txt",
        "model.yml": folder / "model.yml",
        "onnx/model.onnx": folder / "onnx" / "model.onnx",
    }.items():
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(b"mine")  # as long as what was there
        assert name in mlbundle(*arguments).error(2, "usage")["message"]
        assert path.read_bytes() == b"mine"
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
    (folder / "model.yml").rename(tmp_path / "mine.yml")
    (folder / "model.yml").symlink_to(tmp_path / "mine.yml")
    assert "model.yml" in mlbundle(*arguments).error(2, "usage")["message"]
    assert names_in(tmp_path) == ["mine.yml", "tiny"]


def write_generated(folder: Path, files: dict[str, bytes]) -> None:
    """A folder as `generate` leaves it."""
    entries = []
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        entries.append({"path": name, "size": len(content), "sha256": digest})
    (folder / "generated.json").write_text(json.dumps({"schema": "mlbundle/generated/v1", "files": entries}))


def test_what_a_kill_between_the_renames_put_aside_comes_back(mlbundle, tmp_path) -> None:
    guard = tmp_path / ".tiny.0badcafe.partial"
    (guard / "new").mkdir(parents=True)
    write_generated(guard / "old", {"model.yml": b"name: tiny"})
    arguments = ["generate", "resnet50", "-o", "tiny", *TINY, "--framework", "onnxruntime", "--json"]
    assert "exists already" in mlbundle(*arguments).error(2, "usage")["message"]
    assert (tmp_path / "tiny" / "model.yml").read_bytes() == b"name: tiny"
    assert names_in(tmp_path) == ["tiny"]


def test_a_new_folder_that_cannot_get_its_name_leaves_the_old_one(mlbundle, tmp_path, monkeypatch) -> None:
    write_generated(tmp_path / "tiny", {"model.yml": b"name: tiny"})
    rename = Path.rename

    def fails_for_new(path: Path, target: Path) -> Path:
        if path.name == "new":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_for_new)
    arguments = [
        "generate",
        "resnet50",
        "-o",
        "tiny",
        *TINY,
        "--framework",
        "onnxruntime",
        "--json",
        "--force",
    ]
    mlbundle(*arguments).error(3, "storage-failed")
    assert (tmp_path / "tiny" / "model.yml").read_bytes() == b"name: tiny"
    assert names_in(tmp_path) == ["tiny"]


def test_a_kill_ends_the_script_as_well(tmp_path) -> None:
    with stopped_while_a_script_runs(tmp_path, signal.SIGKILL) as process:
        process.communicate(timeout=60)
    script = int((tmp_path / "started").read_text())
    deadline = time.monotonic() + 60
    while is_running(script):
        assert time.monotonic() < deadline, "it runs on"
        time.sleep(0.01)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def stopped_while_a_script_runs(folder: Path, number: int) -> Iterator[subprocess.Popen[str]]:
    """A generation that got a signal when the script of a framework, which has noted its number, was running."""
    python, started = folder / "python", folder / "started"
    python.write_text(f"#!/bin/sh\necho $$ > {started}.new\nmv {started}.new {started}\nexec sleep 60\n")
    python.chmod(0o755)
    command = command_line(
        "generate", "resnet50", *TINY, "--framework", "torch", "--python", f"torch={python}"
    )
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not started.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        yield process


@pytest.mark.parametrize("content", [None, "{}", '{"schema": "mlbundle/generated/v1", "files": 3}', "\xff{"])
def test_force_never_removes_a_folder_that_was_not_generated(mlbundle, tmp_path, content) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    if content is not None:
        (folder / "generated.json").write_text(content)
    error = mlbundle("generate", "resnet50", "-o", "work", "--force", "--json").error(2, "usage")
    assert "was not generated" in error["message"]
    assert folder.is_dir()


def test_what_a_killed_one_left_goes_and_what_another_is_making_stays(mlbundle, tmp_path) -> None:
    left, used = tmp_path / ".tiny.0badcafe.partial", tmp_path / ".tiny.12345678.partial"
    for folder in (left, used):
        (folder / "new").mkdir(parents=True)
    descriptor = lock_folder(used)
    assert descriptor is not None
    mlbundle("generate", "resnet50", "-o", "tiny", *TINY, "--framework", "onnxruntime")
    os.close(descriptor)
    assert names_in(tmp_path) == [used.name, "tiny"]


# Refusals and failures


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["resnet50", "--framework", "caffe"], "caffe"),
        (["resnet50", "--set", "depth=50"], "depth"),
        (["resnet50", "--set", "width=0"], "width"),
        (["resnet50", "--set", "size=31"], "size"),
        (["resnet50", "--set", "width"], "width"),
        (["resnet50", "--set", "width=-1"], "width=-1"),
        (["resnet50", "--set", "width=99999999999999"], "width"),
        (["resnet50", "--python", "torch"], "torch"),
        (["resnet50", "--python", "torch=/no/such/python"], "/no/such/python"),
        (["resnet50", "--python", "onnxruntime=/bin/sh"], "onnxruntime"),
        (["resnet50", "-o", "no/such/place"], "no/such"),
        (["resnet50", "-o", "."], "exists already"),
        (["--framework", "torch"], "which model"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_before_anything_is_made(
    mlbundle, tmp_path, arguments, said
) -> None:
    error = mlbundle("generate", *arguments, "--json").error(2, "usage")
    assert said in error["message"]
    assert error["hint"] or error["where"]
    assert names_in(tmp_path) == []


def test_an_unknown_name_is_answered_with_those_that_are_known(mlbundle) -> None:
    error = mlbundle("generate", "resnet-51", "--json").error(2, "reference-not-found")
    assert "resnet50" in error["hint"]


def test_a_python_without_the_framework_is_named_and_nothing_is_left(mlbundle, tmp_path) -> None:
    arguments = ["--framework", "torch", "--python", f"torch={bare_python(tmp_path)}", "--json"]
    error = mlbundle("generate", "resnet50", *TINY, *arguments).error(3, "python-environment-failed")
    assert "No module named" in error["message"]
    assert "--python" in error["hint"]
    assert names_in(tmp_path) == ["python"]


def bare_python(folder: Path) -> Path:
    """A Python that finds the standard library alone."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("script", "reference", "status", "said"),
    [
        ("#!/bin/sh\necho what went wrong; exit 7\n", "run-failed", 4, "status 7"),
        ("#!/bin/sh\nkill -9 $$\n", "run-failed", 4, "memory may have run out"),
        ("#!/no/such/interpreter\n", "python-environment-failed", 3, "can't be started"),
    ],
)
def test_a_script_that_fails_says_how_and_leaves_nothing(
    mlbundle, tmp_path, script, reference, status, said
) -> None:
    python = tmp_path / "python"
    python.write_text(script)
    python.chmod(0o755)
    arguments = ["--framework", "torch", "--python", f"torch={python}", "--json"]
    error = mlbundle("generate", "resnet50", *TINY, *arguments).error(status, reference)
    assert said in error["message"]
    assert "torch" in error["where"]
    if "what went wrong" in script:
        assert error["context"] == ["what went wrong"]
    assert names_in(tmp_path) == ["python"]


def test_stopping_it_leaves_nothing_and_no_script_runs_on(tmp_path) -> None:
    with stopped_while_a_script_runs(tmp_path, signal.SIGTERM) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Traceback" not in said
    assert names_in(tmp_path) == ["python", "started"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "started").read_text()), 0)


# Lists and plans


def test_without_a_name_it_lists_what_can_be_made(mlbundle) -> None:
    assert "resnet50" in mlbundle("generate").stdout
    document = mlbundle("generate", "--json").document()
    assert document["schema"] == "mlbundle/recipes/v1"
    (recipe,) = document["recipes"]
    assert recipe["name"] == "resnet50"
    assert recipe["frameworks"] == ["onnxruntime", "torch", "tensorflow"]
    assert recipe["settings"]["width"] == 64
    assert 250e6 < recipe["size"] < 400e6


def test_names_of_recipes_are_completed(cli) -> None:
    environment = {
        "_MLBUNDLE_COMPLETE": "bash_complete",
        "COMP_WORDS": "mlbundle generate res",
        "COMP_CWORD": "2",
    }
    assert "resnet50" in cli(env=environment).stdout


def test_a_dry_run_says_with_what_and_makes_nothing(mlbundle, tmp_path, home) -> None:
    plan = mlbundle("generate", "resnet50", "--dry-run", "--json").document()
    assert plan["written"] is False
    assert plan["files"] == []
    assert plan["pythons"]["torch"].startswith(f"{home}/cache/envs/torch-")
    assert plan["pythons"]["onnxruntime"] == sys.executable
    assert "not written" in mlbundle("generate", "resnet50", "-n", "--framework", "torch").stdout
    assert names_in(tmp_path) == []
    assert not (home / "cache" / "envs").exists()
