"""Choosing an image or a lock, with an error that lists what exists."""

from __future__ import annotations

import pytest

from mlbundle.errors import ImageMissing, PythonEnvironmentFailed, ReferenceNotFound, UsageError
from mlbundle.manifest.framework import FrameworkManifest, ImageChoice
from mlbundle.manifest.model import FrameworkConstraint, ModelManifest, ModelSource, TensorSpec, Variant
from mlbundle.manifest.select import (
    framework_matches,
    frameworks_of,
    select_image,
    select_lock,
    select_variant,
)

FRAMEWORK = FrameworkManifest(
    name="ONNXRuntime",
    version="1.31.1",
    containers={
        "amd64": {"cpu": ImageChoice("a"), "gpu": ImageChoice("b")},
        "arm64": {"cpu": ImageChoice("c")},
    },
    python={"amd64": {"cpu": "a.lock"}},
)


@pytest.mark.parametrize(
    ("architecture", "accelerator", "image"),
    [("amd64", "cpu", "a"), ("x86_64", "gpu", "b"), ("aarch64", "cpu", "c"), ("AArch64", "cpu", "c")],
)
def test_architectures_have_aliases(architecture: str, accelerator: str, image: str) -> None:
    assert select_image(FRAMEWORK, architecture, accelerator).image == image


def test_what_is_missing_is_named_beside_what_exists() -> None:
    with pytest.raises(ImageMissing) as caught:
        select_image(FRAMEWORK, "aarch64", "gpu")
    assert caught.value.message == "ONNXRuntime 1.31.1 has no image for arm64/gpu"
    assert caught.value.context == ("amd64/cpu", "amd64/gpu", "arm64/cpu")
    assert caught.value.hint == "there is one for: amd64/cpu, amd64/gpu, arm64/cpu"


def test_locks() -> None:
    assert select_lock(FRAMEWORK, "x86_64", "cpu") == "a.lock"
    with pytest.raises(PythonEnvironmentFailed) as caught:
        select_lock(FRAMEWORK, "ppc64le", "cpu")
    assert (caught.value.hint or "").startswith("there is one for: amd64/cpu; `--python PATH`")
    with pytest.raises(PythonEnvironmentFailed) as nothing:
        select_lock(FrameworkManifest("x", "1.0.0"), "amd64", "cpu")
    assert (nothing.value.hint or "").startswith("the framework manifest names no locked environment; ")


def test_unknown_accelerators_are_a_usage_error() -> None:
    with pytest.raises(UsageError):
        select_image(FRAMEWORK, "amd64", "npu")


@pytest.mark.parametrize(
    ("name", "version", "fits"),
    [
        ("onnxruntime", "1.x", True),
        ("ONNXRUNTIME", "*", True),
        ("onnxruntime", "<1.31", False),
        ("torch", "*", False),
    ],
)
def test_frameworks_match_by_name_and_version(name: str, version: str, fits: bool) -> None:
    assert framework_matches(FrameworkConstraint(name, version), FRAMEWORK) is fits


MODEL = ModelManifest(
    name="net",
    version="1.0.0",
    framework=FrameworkConstraint("ONNXRuntime", ">=1"),
    inputs=(TensorSpec("image", "input"),),
    outputs=(TensorSpec("raw", "output"),),
    model=ModelSource("m.onnx"),
    predictor="top.py",
    variants=(
        Variant("torch", FrameworkConstraint("torch", ">=2"), ModelSource("m.pt")),
        Variant("torch-export", FrameworkConstraint("torch"), ModelSource("m.pt2"), predictor="p.py"),
        Variant(
            "tf", FrameworkConstraint("tensorflow"), ModelSource("saved/"), inputs=(TensorSpec("image", "x"),)
        ),
    ),
)


@pytest.mark.parametrize(
    ("name", "graph"),
    [
        (None, "m.onnx"),
        ("onnxruntime", "m.onnx"),
        ("torch", "m.pt"),
        ("Torch-Export", "m.pt2"),
        ("tf", "saved/"),
        ("TensorFlow", "saved/"),
    ],
)
def test_a_variant_is_picked_by_its_name_else_by_its_framework(name: str | None, graph: str) -> None:
    assert select_variant(MODEL, name).model.graph_path == graph


def test_a_variant_takes_what_it_leaves_out_from_the_top_level_but_no_predictor() -> None:
    torch = select_variant(MODEL, "torch")
    assert (torch.inputs, torch.outputs, torch.predictor) == (MODEL.inputs, MODEL.outputs, None)
    assert torch.framework == FrameworkConstraint("torch", ">=2")
    assert not torch.carries_code
    assert select_variant(MODEL, "torch-export").carries_code
    assert select_variant(MODEL, "tf").inputs == (TensorSpec("image", "x"),)


def test_an_unknown_variant_is_named_beside_those_that_exist() -> None:
    with pytest.raises(ReferenceNotFound) as caught:
        select_variant(MODEL, "mxnet")
    assert caught.value.hint == "one of: ONNXRuntime, torch, torch-export, tf"


def test_what_all_forms_ask_of_a_framework_is_gathered() -> None:
    assert frameworks_of(MODEL) == {
        "onnxruntime": [FrameworkConstraint("ONNXRuntime", ">=1")],
        "torch": [FrameworkConstraint("torch", ">=2"), FrameworkConstraint("torch")],
        "tensorflow": [FrameworkConstraint("tensorflow")],
    }
