"""The built-in models: one network, one set of held-out digits, three ways to it, and claims that the files bear out."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from mlbundle.manifest.load import load_model
from mlbundle.resources import built_in_models

MODELS = built_in_models()


def digits() -> tuple[np.ndarray, np.ndarray]:
    with np.load(MODELS["digits-cnn"] / "dataset" / "digits.npz", allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"]


def test_the_dataset_is_what_its_readme_says() -> None:
    images, labels = digits()
    assert (images.shape, images.dtype) == ((360, 1, 8, 8), np.float32)
    assert (labels.shape, labels.dtype) == ((360,), np.int64)
    assert set(np.unique(images * 16)) == set(range(17))
    assert np.bincount(labels).min() >= 34  # every class has its share


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_manifest_is_valid_and_its_checksums_are_those_of_its_files(name: str) -> None:
    folder = MODELS[name]
    result = load_model(folder / "model.yml")
    manifest = result.require()
    assert manifest.name == name
    stated = []
    for source in (manifest.model, *(variant.model for variant in manifest.variants)):
        if source.graph_path.endswith("/"):
            assert (folder / source.graph_path).is_dir()
        else:
            stated.append((source.graph_path, source.checksum))
        if source.weights_path is not None:
            stated.append((source.weights_path, source.weights_checksum))
    assert manifest.dataset is not None
    if manifest.dataset.format == "npz":
        stated.append((manifest.dataset.path, manifest.dataset.checksum))
    for path, checksum in stated:
        assert checksum is not None
        assert checksum.hex == hashlib.sha256((folder / path).read_bytes()).hexdigest(), path


def stored_arrays(file: bytes) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file: the length of a JSON header, the header, the values."""
    length = int.from_bytes(file[:8], "little")
    entries = json.loads(file[8 : 8 + length])
    values = file[8 + length :]
    return {
        name: np.frombuffer(values[slice(*entry["data_offsets"])], np.float32).reshape(entry["shape"])
        for name, entry in entries.items()
        if name != "__metadata__"
    }


def as_it_is(value: np.ndarray) -> list[bytes]:
    return [value.tobytes()]


def laid_out_for_tensorflow(value: np.ndarray) -> list[bytes]:
    """Channels last, inputs first; the dense layer of 512 inputs comes in two halves."""
    turned = value.transpose({4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[value.ndim])
    parts = np.split(turned, 2) if value.shape == (64, 512) else [turned]
    return [np.ascontiguousarray(part).tobytes() for part in parts]


def test_every_form_of_the_network_holds_the_same_weights() -> None:
    folder = MODELS["digits-cnn"]
    weights = stored_arrays((folder / "torch" / "model.safetensors").read_bytes())
    assert sum(value.size for value in weights.values()) == 38_282
    holders: dict[str, Callable[[np.ndarray], list[bytes]]] = {
        "model.onnx": as_it_is,
        "torch/model.pt": as_it_is,
        "torch/model.pt2": as_it_is,
        "tensorflow/frozen.pb": laid_out_for_tensorflow,
        "tensorflow/saved_model/variables/variables.data-00000-of-00001": laid_out_for_tensorflow,
    }
    for path, laid_out in holders.items():
        content = (folder / path).read_bytes()
        for name, value in weights.items():
            assert all(part in content for part in laid_out(value)), (path, name)


def test_no_form_says_on_which_machine_it_was_made() -> None:
    for path in MODELS["digits-cnn"].rglob("*"):
        if path.is_file() and path.suffix in {".pt", ".pt2", ".pb", ".onnx"}:
            content = path.read_bytes()
            assert b"site-packages" not in content, path
            assert b"debug_pkl" not in content, path


def test_the_variants_are_called_as_the_readme_says() -> None:
    manifest = load_model(MODELS["digits-cnn"] / "model.yml").require()
    names = [manifest.framework.name, *(variant.name for variant in manifest.variants)]
    assert names == ["onnxruntime", "torch", "torch-export", "torch-code", "tensorflow", "tensorflow-frozen"]
    readme = (MODELS["digits-cnn"] / "README.md").read_text("utf-8")
    assert all(f"| `{name}` |" in readme for name in names)


def test_all_three_are_the_same_network() -> None:
    assert (
        len({hashlib.sha256((folder / "model.onnx").read_bytes()).digest() for folder in MODELS.values()})
        == 1
    )


def test_the_pictures_hold_the_same_digits() -> None:
    images, labels = digits()
    folder = MODELS["digits-png"] / "dataset"
    lines = [line.split() for line in (folder / "index.txt").read_text().splitlines()]
    assert [int(label) for _, label in lines] == labels.tolist()
    for (name, _), image in zip(lines, images, strict=True):
        with Image.open(io.BytesIO((folder / name).read_bytes())) as picture:
            assert (picture.size, picture.mode) == ((32, 32), "L")
            pixels = np.asarray(picture)
        blocks = pixels.reshape(8, 4, 8, 4)
        assert (blocks == blocks[:, :1, :, :1]).all()
        assert (blocks[:, 0, :, 0] / np.float32(240) == image[0]).all()


def test_the_raw_values_are_the_same_digits() -> None:
    images, labels = digits()
    with np.load(MODELS["digits-code"] / "dataset" / "raw.npz", allow_pickle=False) as arrays:
        assert arrays["digits"].dtype == np.uint8
        assert (arrays["digits"] / np.float32(16) == images[:, 0]).all()
        assert (arrays["labels"] == labels).all()


def test_the_claimed_accuracy_is_exactly_what_the_model_gives() -> None:
    runtime = pytest.importorskip("onnxruntime")
    images, labels = digits()
    session = runtime.InferenceSession(
        MODELS["digits-cnn"] / "model.onnx", providers=["CPUExecutionProvider"]
    )
    (logits,) = session.run(["logits"], {"input": images})
    right = int((logits.argmax(1) == labels).sum())
    for folder in MODELS.values():
        expected = load_model(folder / "model.yml").require().expected
        assert expected is not None
        assert expected.accuracy is not None
        assert expected.accuracy.value == round(right / 360, 6)
        assert expected.accuracy.tolerance < 1.5 / 360
