"""Framework images on a real engine: what is built, what a failed build leaves, what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import BASE_IMAGE, lacking
from tiny_wheels import locked_line, tiny_wheel

from mlbundle.config import Settings
from mlbundle.errors import DigestMismatch, ImageBuildFailed, ImageMismatch
from mlbundle.manifest.framework import FrameworkManifest, ImageChoice
from mlbundle.resources import resource_folder
from mlbundle.runtime import image_plan, recipe, wheelhouse
from mlbundle.runtime.images import build_image, built_in_framework, plan_build, resolve_image

pytestmark = pytest.mark.engine


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path / "data", tmp_path / "cache", tmp_path / "config")


def load_image(engine: Any, name: str, architecture: str) -> None:
    """Put an image into the engine that holds one text file and no program."""
    layer = archive({"name.txt": name.encode()})
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    engine.images.load(archive({**files, "layer.tar": layer}))


def archive(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def empty_image(engine: Any) -> Iterator[str]:
    name = "mlbundle-test/empty:amd64"
    load_image(engine, name, "amd64")
    yield name
    engine.api.remove_image(name, force=True)


@pytest.fixture
def arm64_image(engine: Any) -> Iterator[str]:
    name = "mlbundle-test/empty:arm64"
    load_image(engine, name, "arm64")
    yield name
    engine.api.remove_image(name, force=True)


def recorded(home: Path, framework: str = "onnxruntime") -> dict[str, Any]:
    document = json.loads((home / "data" / "images.lock").read_text())
    (entry,) = [entry for key, entry in document["images"].items() if key.startswith(framework)]
    return dict(entry)


# What is in an image, told by its own Python.
LOOK = """\
import importlib.metadata, importlib.util, json, os, sys
name = sys.argv[1]
found = importlib.util.find_spec(name)
print(json.dumps({
    "python": sys.executable,
    "user": [os.getuid(), os.getgid()],
    "compiled": os.path.exists(found.cached),
    "distributions": {d.metadata["Name"].lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()},
    "left": [path for path in ("/build", "/root/.cache") if os.path.exists(path)],
}))
"""
ISOLATED = {
    "network_mode": "none",
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "tmpfs": {"/tmp": ""},
    "remove": True,
}


def locked(lock: Path) -> dict[str, str]:
    """What a lock names, under the names that distributions have."""
    return {name.lower().replace("_", "-"): version for name, version in wheelhouse.pinned(lock)}


@pytest.mark.parametrize("framework", ["onnxruntime", "torch", "tensorflow"])
def test_an_image_is_labelled_unprivileged_and_holds_what_its_lock_names(
    engine, all_images, framework
) -> None:
    entry = recorded(all_images, framework)
    plan = plan_build(built_in_framework(framework), "cpu", "amd64")
    facts = engine.api.inspect_image(entry["config_digest"])
    labels = facts["Config"]["Labels"]
    ours = {
        name: labels[f"io.mlbundle.{name}"]
        for name in ("framework", "version", "architecture", "accelerator")
    }
    assert ours == {
        "framework": framework,
        "version": plan.key.version,
        "architecture": "amd64",
        "accelerator": "cpu",
    }
    assert labels["io.mlbundle.lock"] == f"sha256:{entry['lock_sha256']}" == f"sha256:{plan.lock_sha256}"
    assert labels["org.opencontainers.image.version"] == plan.key.version
    assert labels["org.opencontainers.image.licenses"] == plan.recipe.licence
    assert labels["org.opencontainers.image.title"].startswith(plan.recipe.title)
    assert labels["org.opencontainers.image.base.name"] == entry["base_image"]
    assert facts["Config"]["User"] == "65534:65534"
    assert not any(name.startswith("NVIDIA") for name in facts["Config"]["Env"])
    look = ["python3", "-c", LOOK, framework]
    said = json.loads(engine.containers.run(entry["config_digest"], entrypoint=look, **ISOLATED))
    assert said == {
        "python": "/opt/mlbundle/bin/python3",
        "user": [65534, 65534],
        "compiled": True,
        "distributions": locked(plan.recipe.lock),
        "left": [],
    }
    # What the image does when nothing else is asked of it.
    offer = json.loads(engine.containers.run(entry["config_digest"], **ISOLATED))
    assert offer["framework"] == framework
    assert offer["version"].partition("+")[0] == plan.key.version


@pytest.fixture
def tiny_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrameworkManifest:
    """A framework of one small wheel and a library for GPUs, which is built by the recipe of the real ones."""
    if not BASE_IMAGE:
        lacking("MLBUNDLE_TEST_BASE_IMAGE names no base image (Debian with python3 and python3-venv)")
    root = tmp_path / "data-of-package" / "containers"
    wheels = tmp_path / "wheels"
    folder = root / "tiny" / "gpu"
    for path in (folder, wheels):
        path.mkdir(parents=True)
    shutil.copy(resource_folder("containers") / "Dockerfile", root)
    (root / "tiny" / "check.py").write_text(
        "import sys, tiny\nsys.exit(sys.argv[1:] != [tiny.__version__])\n"
    )
    (root / "tiny" / "recipe.toml").write_text('title = "Tiny"\nlicense = {gpu = "MIT"}\n')
    driver = {"nvidia/cu99/lib/libtiny.so.1": "no library", "nvidia/cu99/lib/readme.txt": ""}
    lock = locked_line("tiny", "1.0", tiny_wheel(wheels, "tiny", "1.0"))
    lock += locked_line("nvidia-tiny", "9.9", tiny_wheel(wheels, "nvidia-tiny", "9.9", files=driver))
    (folder / "requirements-amd64.lock").write_text(lock)
    for module in (image_plan, recipe):
        monkeypatch.setattr(module, "resource_folder", lambda _name: root)
    choice = ImageChoice("mlbundle-test/tiny:1.0", build="containers/tiny/gpu")
    return FrameworkManifest("tiny", "1.0", containers={"amd64": {"gpu": choice}})


def stages_of(engine: Any, log: Path) -> set[str]:
    """Stages that a build left in the engine without a name; others may be building here at the same time."""
    named = set(re.findall(r"^ ---> ([0-9a-f]{12})$", log.read_text(), re.MULTILINE))
    assert named, "the log names no stages"
    left = engine.api.images(filters={"dangling": True, "label": "io.mlbundle.stage"})
    return {image["Id"].removeprefix("sha256:")[:12] for image in left} & named


def test_an_image_for_gpus_finds_the_libraries_that_came_as_wheels(
    engine, settings, tiny_framework, tmp_path
) -> None:
    built = build_image(
        tiny_framework, "gpu", "amd64", settings, base_image=BASE_IMAGE, wheelhouse=tmp_path / "wheels"
    )
    try:
        assert stages_of(engine, built.log) == set()
        facts = engine.api.inspect_image(built.config_digest)
        assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= set(
            facts["Config"]["Env"]
        )
        look = ["sh", "-c", f"cat /etc/ld.so.conf.d/mlbundle.conf && python3 -c '{LOOK}' tiny"]
        said = engine.containers.run(built.config_digest, entrypoint=look, **ISOLATED).decode().splitlines()
        (folder, about) = said
        assert folder.startswith("/opt/mlbundle/lib/python3")
        assert folder.endswith("/site-packages/nvidia/cu99/lib")
        assert json.loads(about)["distributions"] == {"tiny": "1.0", "nvidia-tiny": "9.9"}
    finally:
        engine.api.remove_image(built.ref, force=True)


def test_a_wheel_with_other_bytes_than_the_lock_states_ends_the_build(
    engine, settings, tiny_framework, tmp_path
) -> None:
    tiny_wheel(tmp_path / "wheels", "tiny", "1.0", content="__version__ = '1.0'; tampered = True\n")
    with pytest.raises(DigestMismatch, match=r"tiny==1\.0 is not the file that the lock names") as failure:
        build_image(
            tiny_framework, "gpu", "amd64", settings, base_image=BASE_IMAGE, wheelhouse=tmp_path / "wheels"
        )
    assert (failure.value.where or "").endswith("tiny/gpu/requirements-amd64.lock")
    assert (tmp_path / "wheels").is_dir()
    (log,) = (settings.data_dir / "logs").iterdir()
    assert "COPY --from=build" not in log.read_text()
    assert stages_of(engine, log) == set()
    assert not settings.images_lock.exists()


def test_an_image_whose_framework_is_of_another_version_is_not_made(
    engine, settings, tiny_framework, tmp_path
) -> None:
    newer = replace(tiny_framework, version="2.0")
    with pytest.raises(ImageBuildFailed, match=r"check\.py") as failure:
        build_image(newer, "gpu", "amd64", settings, base_image=BASE_IMAGE, wheelhouse=tmp_path / "wheels")
    assert stages_of(engine, Path(failure.value.where or "")) == set()
    assert not settings.images_lock.exists()


def test_the_list_and_the_log_know_the_build(cli, in_image_home) -> None:
    images = cli("images", "list", "--json").document()["images"]
    states = {
        (image["architecture"], image["accelerator"]): image["state"]
        for image in images
        if image["framework"] == "onnxruntime"
    }
    assert states == {("amd64", "cpu"): "ready", ("amd64", "gpu"): "not built", ("arm64", "cpu"): "not built"}
    digest = recorded(in_image_home)["config_digest"]
    (ready,) = [image for image in images if image["config_digest"] == digest]
    assert ready["size_bytes"] > 100_000_000
    (log,) = (in_image_home / "data" / "logs").glob("image-onnxruntime-*.log")
    assert "Successfully installed" in log.read_text()


def test_an_image_that_is_gone_is_said_with_the_command_that_brings_it_back(cli, home, in_image_home) -> None:
    lock = (in_image_home / "data" / "images.lock").read_text()
    (home / "data").mkdir()
    digest = recorded(in_image_home)["config_digest"]
    lock = lock.replace(digest, "sha256:" + "0" * 64).replace("mlbundle/onnxruntime:", "mlbundle/gone:")
    (home / "data" / "images.lock").write_text(lock)
    elsewhere = {"MLBUNDLE_HOME": str(home)}
    images = cli("images", "list", "--json", env=elsewhere).document()["images"]
    assert {image["state"] for image in images if image["framework"] == "onnxruntime"} == {
        "gone",
        "not built",
    }
    failure = cli("run", "digits-cnn", "--runtime", "docker", "--json", env=elsewhere).error(
        3, "image-missing"
    )
    assert failure["hint"].startswith("mlbundle images build onnxruntime")


def test_a_failed_build_shows_the_end_of_its_log_and_leaves_nothing(engine, empty_image, settings) -> None:
    heard: list[str] = []
    with pytest.raises(ImageBuildFailed) as failure:
        build_image(
            built_in_framework("onnxruntime"),
            "cpu",
            "amd64",
            settings,
            base_image=empty_image,
            report=heard.append,
        )
    assert any("Python" in line for line in heard)
    assert any("python3" in line for line in failure.value.context)
    log = Path(failure.value.where or "")
    assert log.is_file()
    assert "Step 1/" in log.read_text()
    assert stages_of(engine, log) == set()
    assert engine.api.containers(all=True, filters={"ancestor": empty_image}) == []
    assert "--base-image" in (failure.value.hint or "")
    assert not settings.images_lock.exists()


def test_a_base_image_of_another_architecture_is_refused_before_anything_is_built(
    arm64_image, settings
) -> None:
    with pytest.raises(ImageBuildFailed, match="is an image for arm64, not for amd64"):
        build_image(built_in_framework("onnxruntime"), "cpu", "amd64", settings, base_image=arm64_image)


def pinned(ref: str, digest: str) -> FrameworkManifest:
    return FrameworkManifest("x", "1.0.0", containers={"amd64": {"cpu": ImageChoice(ref, digest)}})


def test_a_pinned_image_is_taken_by_its_digest_and_no_other(engine, empty_image, settings) -> None:
    identifier = engine.api.inspect_image(empty_image)["Id"]
    image = resolve_image(pinned(empty_image, identifier), "amd64", "cpu", settings, engine)
    assert image.image_id == identifier
    with pytest.raises(ImageMismatch):
        resolve_image(pinned(empty_image, "sha256:" + "0" * 64), "amd64", "cpu", settings, engine)


def test_a_pinned_image_of_another_architecture_is_refused(engine, arm64_image, settings) -> None:
    identifier = engine.api.inspect_image(arm64_image)["Id"]
    with pytest.raises(ImageMismatch, match="arm64"):
        resolve_image(pinned(arm64_image, identifier), "amd64", "cpu", settings, engine)
