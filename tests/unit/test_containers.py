"""The recipes that we ship: complete, hash-locked, the same libraries everywhere, and nothing for one builder alone."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from mlbundle.manifest.framework import FrameworkManifest
from mlbundle.manifest.versions import VersionConstraint
from mlbundle.resources import built_in_frameworks, resource_folder
from mlbundle.runtime.image_build import plan_build
from mlbundle.runtime.images import built_in_framework
from mlbundle.runtime.loadgen_source import source_locks

CONTAINERS = resource_folder("containers")
LOCKS = sorted(CONTAINERS.glob("*/*/requirements-*.lock"))
FRAMEWORKS = [built_in_framework(name) for name in built_in_frameworks()]
IMAGES = [
    (framework, architecture, accelerator)
    for framework in FRAMEWORKS
    for architecture, row in framework.containers.items()
    for accelerator in row
]
# What a driver of NVIDIA must at least be for the CUDA of this major version ("minor version compatibility" in the
# release notes of the CUDA Toolkit).
LEAST_DRIVER = {"12": "525.60.13", "13": "580"}


def requirements(lock: Path) -> dict[str, str]:
    """Name and version of everything in a lock, read line by line."""
    found = {}
    for line in lock.read_text().replace("\\\n", " ").splitlines():
        pin, *hashes = line.split()
        name, _, version = pin.partition("==")
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name), line
        assert version, line
        assert hashes, line
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), line
        assert name not in found, line
        found[name] = version
    return found


def test_all_three_frameworks_have_images_for_cpus_and_gpus() -> None:
    assert {framework.name for framework in FRAMEWORKS} >= {"onnxruntime", "torch", "tensorflow"}
    for framework in FRAMEWORKS:
        assert set(framework.containers["amd64"]) == {"cpu", "gpu"}
        # What a container has, a process can have too.
        assert {a: set(row) for a, row in framework.python.items()} == {
            a: set(row) for a, row in framework.containers.items()
        }


@pytest.mark.parametrize(("framework", "architecture", "accelerator"), IMAGES, ids=str)
def test_an_image_has_a_recipe_whose_lock_has_the_framework(
    framework: FrameworkManifest, architecture: str, accelerator: str
) -> None:
    plan = plan_build(framework, accelerator, architecture)
    assert plan.ref == f"mlbundle/{framework.name}:{framework.version}-{accelerator}-{architecture}"
    assert plan.recipe.lock == CONTAINERS.resolve().parent / framework.python[architecture][accelerator]
    locked = requirements(plan.recipe.lock)
    names = {framework.name, f"{framework.name}-{accelerator}"} & set(locked)
    assert {locked[name].partition("+")[0] for name in names} == {framework.version}
    assert ("mlcommons-loadgen" in locked) == (architecture == "amd64")
    arguments = plan.arguments()
    assert arguments["TITLE"]
    assert arguments["LICENSE"]
    assert ("LicenseRef-NVIDIA-Proprietary" in arguments["LICENSE"]) == (accelerator == "gpu")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.relative_to(CONTAINERS)))
def test_a_lock_is_hashes_and_names_and_nothing_for_another_accelerator(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"^\s*-(?!-hash=)", text, re.MULTILINE), "an option"
    locked = requirements(lock)
    cuda = sorted(name for name in locked if name.startswith(("nvidia-", "cuda-", "triton")))
    assert bool(cuda) == (lock.parent.name == "gpu"), cuda


def test_every_lock_belongs_to_an_image() -> None:
    used = {plan_build(f, accelerator, architecture).recipe.lock for f, architecture, accelerator in IMAGES}
    assert used == {lock.resolve() for lock in LOCKS}
    for lock in LOCKS:
        assert (lock.parent / "requirements.in").is_file()


def test_loadgen_is_compiled_in_the_version_of_its_wheels() -> None:
    source, tools = source_locks()
    wanted = requirements(source)
    assert {requirements(lock)["mlcommons-loadgen"] for lock in LOCKS if "amd64" in lock.name} == {
        wanted.pop("mlcommons-loadgen")
    }
    assert wanted == {}
    assert {"pybind11", "setuptools", "wheel"} == set(requirements(tools))


def test_the_libraries_that_prepare_inputs_are_the_same_in_all_images() -> None:
    for name in ("numpy", "pillow", "opencv-python-headless"):
        assert len({requirements(lock)[name] for lock in LOCKS}) == 1, name


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_an_image_for_gpus_states_the_driver_that_its_cuda_needs(framework: FrameworkManifest) -> None:
    for architecture, row in framework.containers.items():
        for accelerator, choice in row.items():
            assert (choice.driver is not None) == (accelerator == "gpu")
            if choice.driver is None:
                continue
            locked = requirements(plan_build(framework, accelerator, architecture).recipe.lock)
            runtime = locked.get("nvidia-cuda-runtime") or locked["nvidia-cuda-runtime-cu12"]
            least = LEAST_DRIVER[runtime.partition(".")[0]]
            accepted = VersionConstraint.parse(choice.driver)
            assert accepted.allows(least)
            assert accepted.allows("590.48.1")
            assert not accepted.allows(str(int(least.partition(".")[0]) - 1) + ".99.99")


def test_the_dockerfile_is_one_that_the_classic_builder_reads() -> None:
    text = (CONTAINERS / "Dockerfile").read_text()
    instructions = re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)
    assert {name for name, _ in instructions} <= {
        "ARG", "CMD", "COPY", "ENV", "FROM", "LABEL", "RUN", "USER"
    }  # fmt: skip
    assert not re.search(r"^#\s*(syntax|escape|check)=", text, re.MULTILINE)
    assert "<<" not in text
    for name, rest in instructions:
        flags = re.findall(r"(?:^|\s)(--[a-z-]+)", rest) if name in {"COPY", "FROM"} else []
        assert set(flags) <= {"--from"}, rest
        if name == "RUN":
            assert not rest.startswith("--"), rest


def test_every_stage_but_the_last_says_that_it_can_go() -> None:
    stages = re.split(r"^FROM ", (CONTAINERS / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    names = [stage.split()[2] if " AS " in stage.splitlines()[0] else None for stage in stages]
    assert names == ["python", "build", "cpu", "gpu", None]
    # The others come from the first, and have its label.
    assert "LABEL io.mlbundle.stage=build" in stages[0]
    assert all(stage.split()[0] in {"python", "cpu"} for stage in stages[1:-1])
    assert "io.mlbundle.stage=final" in stages[-1]
    assert "USER 65534:65534" in stages[-1]


@pytest.mark.parametrize("folder", sorted({lock.parent.parent for lock in LOCKS}), ids=lambda path: path.name)
def test_a_recipe_is_described_and_names_only_safe_indexes(folder: Path) -> None:
    described = tomllib.loads((folder / "recipe.toml").read_text())
    accelerators = {lock.parent.name for lock in folder.glob("*/*.lock")}
    assert set(described) <= {"title", "license", "index"}
    assert set(described["license"]) == accelerators
    assert set(described.get("index", {})) <= accelerators
    assert all(index.startswith("https://") for index in described.get("index", {}).values())
    compile((folder / "check.py").read_text(), "check.py", "exec")
