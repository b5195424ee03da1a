"""Choosing an image or a lock, with an error that lists what exists."""

from __future__ import annotations

import pytest

from mlbundle.errors import ImageMissing, PythonEnvironmentFailed, UsageError
from mlbundle.manifest.framework import FrameworkManifest, ImageChoice
from mlbundle.manifest.model import FrameworkConstraint
from mlbundle.manifest.select import framework_matches, select_image, select_lock

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
    assert caught.value.hint == "there is one for: amd64/cpu"
    with pytest.raises(PythonEnvironmentFailed) as nothing:
        select_lock(FrameworkManifest("x", "1.0.0"), "amd64", "cpu")
    assert nothing.value.hint == "the framework manifest names no locked environment"


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
