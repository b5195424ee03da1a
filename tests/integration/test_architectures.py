"""Another architecture than the machine's: which image is taken, and what is said of it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import make_bundle

pytestmark = pytest.mark.engine

DRY = ("--runtime", "docker", "--dry-run", "--json")
OPT_IN = "MLBUNDLE_TEST_ARM64"


def small_image(client: Any, architecture: str, files: dict[str, bytes]) -> str:
    """Load an image of an architecture made of a few programs, as `docker save` would write it; returns its id."""
    layer = tar_of(files)
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": None, "Layers": ["layer.tar"]}]
    content = json.dumps(config).encode()
    client.images.load(
        tar_of({"manifest.json": json.dumps(manifest).encode(), "config.json": content, "layer.tar": layer})
    )
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def images(engine: Any) -> Iterator[dict[str, str]]:
    """An image each for amd64, arm64 and ppc64le: architecture -> id."""
    made = {name: small_image(engine, name, {name: name.encode()}) for name in ("amd64", "arm64", "ppc64le")}
    yield made
    for image in made.values():
        engine.api.remove_image(image, force=True)


def pinned_bundle(folder: Path, images: dict[str, str]) -> Path:
    """A bundle whose framework manifest pins an image for each architecture."""
    bundle = make_bundle(folder)
    containers = {
        name: {"cpu": {"image": f"example/{name}:1", "digest": image}} for name, image in images.items()
    }
    manifest = {"name": "onnxruntime", "version": "1.31.1", "containers": containers}
    (bundle / "framework.yml").write_text(json.dumps(manifest))
    return bundle


@pytest.mark.parametrize("architecture", ["arm64", "ppc64le"])
def test_the_image_of_the_architecture_that_is_asked_for_is_taken(
    cli, tmp_path: Path, images: dict[str, str], architecture: str
) -> None:
    bundle = pinned_bundle(tmp_path / "net", images)
    done = cli("run", bundle, "--arch", architecture, *DRY)
    if done.status:
        # Nothing here runs it: that is said, after the image was found.
        error = done.error(3, "emulator-missing")
        assert architecture in error["message"]
        assert "qemu-user-static" in error["hint"]
        return
    plan = done.document()
    assert plan["image"].endswith(images[architecture])
    assert plan["container"]["platform"] == f"linux/{architecture}"
    assert plan["emulated"] is True
    assert "emulated" in done.stderr


def test_without_being_asked_the_machines_own_is_taken(cli, tmp_path: Path, images: dict[str, str]) -> None:
    own = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    plan = cli("run", pinned_bundle(tmp_path / "net", images), *DRY).document()
    assert plan["image"].endswith(images[own])
    assert plan["emulated"] is False


def test_what_no_image_is_for_is_named_beside_what_there_is(
    cli, tmp_path: Path, images: dict[str, str]
) -> None:
    bundle = pinned_bundle(tmp_path / "net", {"amd64": images["amd64"]})
    error = cli("run", bundle, "--arch", "ppc64le", *DRY).error(3, "image-missing")
    assert error["message"] == "onnxruntime 1.31.1 has no image for ppc64le/cpu"
    assert error["hint"] == "there is one for: amd64/cpu"


def test_an_image_of_another_architecture_under_the_right_name_is_refused(
    cli, tmp_path: Path, images: dict[str, str]
) -> None:
    bundle = pinned_bundle(tmp_path / "net", {"amd64": images["arm64"], "arm64": images["amd64"]})
    error = cli("run", bundle, *DRY).error(5, "image-mismatch")
    assert "is for" in error["message"]


def test_a_process_is_what_the_machine_is(cli, tmp_path: Path) -> None:
    other = "ppc64le"
    error = cli("run", make_bundle(tmp_path / "net"), "--arch", other, "--runtime", "process", "--json")
    assert "needs a container" in error.error(2, "usage")["hint"]


@pytest.mark.skipif(
    not os.environ.get(OPT_IN), reason=f"{OPT_IN}=1 runs it: needs qemu, and Debian's packages"
)
def test_a_real_arm64_container_runs_under_emulation(cli, tmp_path: Path, engine: Any) -> None:
    """An image of nothing but busybox, whose `python3` says what machine it believes to be on."""
    subprocess.run(["dpkg", "--add-architecture", "arm64"], check=True)
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "download", "-qq", "busybox-static:arm64"], check=True, cwd=tmp_path)
    (package,) = tmp_path.glob("busybox-static*.deb")
    subprocess.run(["dpkg-deb", "-x", package, tmp_path / "deb"], check=True)
    (busybox,) = (path for path in (tmp_path / "deb").rglob("bin/busybox") if path.is_file())
    script = b"#!/bin/busybox sh\n/bin/busybox uname -m >&2\nexit 3\n"
    image = small_image(engine, "arm64", {"bin/busybox": busybox.read_bytes(), "usr/bin/python3": script})
    try:
        bundle = pinned_bundle(tmp_path / "net", {"arm64": image})
        error = cli("run", bundle, "--arch", "arm64", "--runtime", "docker", "--json").error(
            4, "worker-crashed"
        )
        assert "aarch64" in error["context"]
    finally:
        engine.api.remove_image(image, force=True)
        subprocess.run(["dpkg", "--remove-architecture", "arm64"], check=False)
