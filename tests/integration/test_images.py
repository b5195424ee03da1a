"""Framework images on a real engine: what is built, what a failed build leaves, what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlbundle.config import Settings
from mlbundle.errors import ImageBuildFailed, ImageMismatch
from mlbundle.manifest.framework import FrameworkManifest, ImageChoice
from mlbundle.runtime.images import build_image, built_in_framework, resolve_image

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


def recorded(home: Path) -> dict[str, Any]:
    document = json.loads((home / "data" / "images.lock").read_text())
    (entry,) = document["images"].values()
    return dict(entry)


def test_the_built_image_is_recorded_labelled_and_unprivileged(engine, in_image_home) -> None:
    entry = recorded(in_image_home)
    facts = engine.api.inspect_image(entry["config_digest"])
    labels = facts["Config"]["Labels"]
    assert labels["io.mlbundle.framework"] == "onnxruntime"
    assert labels["io.mlbundle.lock"] == f"sha256:{entry['lock_sha256']}"
    assert f"{labels['io.mlbundle.framework']}:{labels['io.mlbundle.version']}-cpu-amd64" in entry["ref"]
    assert facts["Config"]["User"] == "65534:65534"
    script = (
        "import json, os, sys, onnxruntime, mlperf_loadgen, cv2, PIL\n"
        "compiled = os.path.exists(onnxruntime.__cached__)\n"
        "print(json.dumps([sys.executable, onnxruntime.__version__, os.getuid(), compiled]))"
    )
    said = engine.containers.run(
        entry["config_digest"],
        entrypoint=["python3", "-c", script],
        network_mode="none",
        read_only=True,
        remove=True,
    )
    version = built_in_framework("onnxruntime").version
    assert json.loads(said) == ["/opt/mlbundle/bin/python3", version, 65534, True]


def test_the_list_and_the_log_know_the_build(cli, in_image_home) -> None:
    images = cli("images", "list", "--json").document()["images"]
    states = {image["architecture"]: image["state"] for image in images}
    assert states == {"amd64": "ready", "arm64": "not built"}
    (ready,) = [image for image in images if image["state"] == "ready"]
    assert ready["config_digest"] == recorded(in_image_home)["config_digest"]
    assert ready["size_bytes"] > 100_000_000
    (log,) = (in_image_home / "data" / "logs").glob("image-onnxruntime-*.log")
    assert "Successfully installed" in log.read_text()


def test_an_image_that_is_gone_is_said_with_the_command_that_brings_it_back(cli, home, in_image_home) -> None:
    lock = (in_image_home / "data" / "images.lock").read_text()
    (home / "data").mkdir()
    digest = recorded(in_image_home)["config_digest"]
    (home / "data" / "images.lock").write_text(lock.replace(digest, "sha256:" + "0" * 64))
    elsewhere = {"MLBUNDLE_HOME": str(home)}
    states = {image["state"] for image in cli("images", "list", "--json", env=elsewhere).document()["images"]}
    assert states == {"gone", "not built"}
    failure = cli("run", "digits-cnn", "--runtime", "docker", "--json", env=elsewhere).error(
        3, "image-missing"
    )
    assert failure["hint"].startswith("mlbundle images build onnxruntime")


def test_a_failed_build_shows_the_end_of_its_log_and_leaves_nothing(engine, empty_image, settings) -> None:
    def left() -> tuple[set[str], set[str]]:
        containers = engine.api.containers(all=True, filters={"ancestor": empty_image})
        stages = engine.api.images(filters={"dangling": True, "label": "io.mlbundle.stage=build"})
        return {container["Id"] for container in containers}, {image["Id"] for image in stages}

    before = left()
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
    assert left() == before
    assert any(line.startswith("Step ") for line in heard)
    assert any("python3" in line for line in failure.value.context)
    log = Path(failure.value.where or "")
    assert log.is_file()
    assert "Step 1/" in log.read_text()
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
