"""Shared fixtures: a home of its own for every test, the command line, and the real parts (engine, image)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import side_by_side
from framework_pythons import framework_cache, tensorflow_python, torch_python  # noqa: F401 - fixtures
from hypothesis import HealthCheck, settings
from image_builds import ImageBuild, remove_images
from registry_fixture import RealRegistry, running_registry
from support import BASE_IMAGE, Cli, Outcome, command_line, lacking
from warm_commands import is_warm, run_warm

from mlbundle.cli import output

# How long an example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile(
    "mlbundle",
    settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("mlbundle")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=side_by_side.rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return side_by_side.scheduler(config, log)


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data, cache and settings of this test alone."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("MLBUNDLE_HOME", str(folder))
    output.configure(verbosity=0, color="auto")
    for name in [n for n in os.environ if n.startswith("MLBUNDLE_") and n not in {"MLBUNDLE_HOME"}]:
        if not name.startswith("MLBUNDLE_TEST_"):
            monkeypatch.delenv(name)
    return folder


@pytest.fixture
def cli(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """Run `mlbundle` in a process of its own."""
    folder = tmp_path_factory.mktemp("written")

    def run(*arguments: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> Outcome:
        whole = {**os.environ, **(env or {})}
        if is_warm(env or {}):
            return Outcome(*run_warm([*map(str, arguments)], whole, cwd or tmp_path, folder))
        done = subprocess.run(
            command_line(*arguments),
            capture_output=True,
            text=True,
            timeout=300,
            cwd=cwd or tmp_path,
            env=whole,
            stdin=subprocess.DEVNULL,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """A client of the Docker engine of this machine."""
    docker = pytest.importorskip("docker")
    try:
        client = docker.from_env(timeout=120)
        client.ping()
    except docker.errors.DockerException as error:
        lacking(f"no container engine answers: {error}")
    yield client
    client.close()


@pytest.fixture(scope="session")
def further_builds() -> list[ImageBuild]:
    """Builds of further images, which go on while tests run that need none of them."""
    return []


@pytest.fixture(scope="session")
def image_home(
    engine: Any,
    request: pytest.FixtureRequest,
    further_builds: list[ImageBuild],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:
    """A home where the onnxruntime image was built by the command that users have; shared by the session.

    From then on the images are built that other tests of the session want.
    """
    if not BASE_IMAGE:
        lacking("MLBUNDLE_TEST_BASE_IMAGE names no base image (Debian with python3 and python3-venv)")
    folder = tmp_path_factory.mktemp("image-home")
    before = {image["Id"] for image in engine.api.images()}
    try:
        ImageBuild(folder, "onnxruntime").finish()
        if side_by_side.anybody_uses("all_images", request.session):
            further_builds += [ImageBuild(folder, framework) for framework in ("torch", "tensorflow")]
        yield folder
    finally:
        for build in further_builds:
            build.stop()
        remove_images(engine, folder, before)


@pytest.fixture(scope="session")
def all_images(image_home: Path, further_builds: list[ImageBuild]) -> Path:
    """The home of `image_home` with the images of torch and TensorFlow as well."""
    for build in further_builds:
        build.finish()
    return image_home


@pytest.fixture
def in_image_home(image_home: Path, monkeypatch: pytest.MonkeyPatch, engine: Any) -> Iterator[Path]:
    """Use the home with the image; afterwards no container of ours may be left."""
    monkeypatch.setenv("MLBUNDLE_HOME", str(image_home))
    yield image_home
    containers = engine.api.containers(all=True, filters={"label": "io.mlbundle.run"})
    ours = {folder.name for folder in (image_home / "data" / "runs").glob("*")}
    left = [c for c in containers if c["Labels"]["io.mlbundle.run"] in ours]
    assert left == [], f"containers left behind: {left}"


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRegistry]:
    """A real registry without passwords, shared by the session: use a repository of your own."""
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running
