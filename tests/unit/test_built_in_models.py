"""The built-in models: one network, one set of held-out digits, three ways to it, and claims that the files bear out."""

from __future__ import annotations

import hashlib
import io

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
    stated = [(manifest.model.graph_path, manifest.model.checksum)]
    assert manifest.dataset is not None
    if manifest.dataset.format == "npz":
        stated.append((manifest.dataset.path, manifest.dataset.checksum))
    for path, checksum in stated:
        assert checksum is not None
        assert checksum.hex == hashlib.sha256((folder / path).read_bytes()).hexdigest(), path


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
