"""What is decided before an engine is asked: plan, wheels, context, and how an absent engine is described."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_wheels import locked_line, tiny_wheel

from mlbundle.config import Settings
from mlbundle.errors import (
    DigestMismatch,
    EngineUnavailable,
    ImageBuildFailed,
    ImageMissing,
    StorageFailed,
    UsageError,
)
from mlbundle.manifest.framework import FrameworkManifest, ImageChoice
from mlbundle.runtime import engine as engine_module
from mlbundle.runtime import image_build, wheelhouse
from mlbundle.runtime.image_build import _split_ref, build_image, plan_build
from mlbundle.runtime.image_plan import write_context
from mlbundle.runtime.images import _repository, built_in_framework
from mlbundle.runtime.requirements import hash_mismatch, index_hint
from mlbundle.runtime.wheelhouse import PythonTarget, ensure_wheelhouse, wheels_of


def manifest(build: str | None) -> FrameworkManifest:
    return FrameworkManifest("x", "1.0", containers={"amd64": {"cpu": ImageChoice("x:1.0", None, build)}})


def test_the_built_in_framework_can_be_built_for_both_architectures() -> None:
    for architecture in ("amd64", "aarch64"):
        plan = plan_build(built_in_framework("onnxruntime"), "cpu", architecture)
        assert plan.key.architecture == architecture.replace("aarch64", "arm64")
        assert plan.ref == f"mlbundle/onnxruntime:{plan.key.version}-cpu-{plan.key.architecture}"
        assert plan.base_image.startswith("debian:")
        assert f"onnxruntime=={plan.key.version} " in plan.recipe.lock.read_text()
        assert plan.to_document()["lock"].startswith("containers/onnxruntime/cpu/requirements-")


@pytest.mark.parametrize(
    "build",
    [
        "containers/absent",
        "containers/onnxruntime",
        "containers/onnxruntime/cpu/..",
        "../containers/onnxruntime/cpu",
        "tests",
        "/etc",
    ],
)
def test_a_recipe_that_we_do_not_ship_is_refused(build: str) -> None:
    with pytest.raises(UsageError, match="not installed"):
        plan_build(manifest(build), "cpu", "amd64")


def test_what_can_not_be_built_is_said() -> None:
    with pytest.raises(UsageError, match="no recipe"):
        plan_build(manifest(None), "cpu", "amd64")
    with pytest.raises(ImageMissing):
        plan_build(manifest(None), "gpu", "amd64")


def test_the_wheels_asked_for_are_those_that_the_c_library_can_run() -> None:
    assert list(PythonTarget((3, 9), 6, "arm64").platforms()) == [
        "manylinux_2_6_aarch64",
        "manylinux_2_5_aarch64",
        "manylinux1_aarch64",
        "linux_aarch64",
    ]
    bookworm = list(PythonTarget((3, 11), 36, "amd64").platforms())
    assert bookworm[0] == "manylinux_2_36_x86_64"
    assert {"manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64"} < set(bookworm)


BOOKWORM = PythonTarget((3, 11), 36, "amd64")


@pytest.fixture
def only_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip knows."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def left_in_cache(cache: Path) -> list[Path]:
    return [path for path in (cache / "wheels").iterdir() if path.is_dir()]


def test_a_failed_download_shows_what_pip_said_and_leaves_nothing(tmp_path: Path, only_index: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("not-there==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(ImageBuildFailed, match=r"no wheel of not-there==1\.0") as failure:
        ensure_wheelhouse(tmp_path / "cache", lock, BOOKWORM)
    assert any("not-there" in line for line in failure.value.context)
    assert "--wheelhouse" in (failure.value.hint or "")
    assert "PIP_EXTRA_INDEX_URL" not in (failure.value.hint or "")
    assert left_in_cache(tmp_path / "cache") == []


def test_the_index_that_has_the_builds_of_torch_without_cuda_is_named(
    tmp_path: Path, only_index: Path
) -> None:
    lock = plan_build(built_in_framework("torch"), "cpu", "amd64").recipe.lock
    with pytest.raises(ImageBuildFailed) as failure:
        ensure_wheelhouse(tmp_path / "cache", lock, BOOKWORM)
    assert "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu" in (failure.value.hint or "")
    assert index_hint(lock.parent.parent / "gpu" / lock.name) is None
    assert index_hint(tmp_path / "mine.lock") is None


def test_a_wheel_with_other_bytes_than_the_lock_states_is_named(tmp_path: Path, only_index: Path) -> None:
    wheel = tiny_wheel(only_index, "some-thing", "1.0")
    lock = tmp_path / "requirements.lock"
    lock.write_text(locked_line("some-thing", "1.0", wheel))
    heard: list[str] = []
    folder = ensure_wheelhouse(tmp_path / "cache", lock, BOOKWORM, report=heard.append)
    assert [path.name for path in folder.iterdir()] == [wheel.name]
    assert any(line.startswith("(1/1) some") for line in heard)
    lock.write_text(lock.read_text() + "# made anew\n")
    stated = hashlib.sha256(wheel.read_bytes()).hexdigest()
    tiny_wheel(only_index, "some-thing", "1.0", content="tampered = True\n")
    with pytest.raises(
        DigestMismatch, match=r"some-thing==1\.0 is not the file that the lock names"
    ) as failure:
        ensure_wheelhouse(tmp_path / "cache", lock, BOOKWORM)
    assert failure.value.where == str(lock)
    assert stated in "".join(failure.value.context)
    assert left_in_cache(tmp_path / "cache") == [folder]


PIP_SAID = """\
Collecting numpy
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package versions, \
please update the hashes. Otherwise, examine the package contents carefully; someone may have tampered with them.
    numpy==2.4.6 from https://index.example/numpy-2.4.6.whl#sha256=00 (from -r /build/requirements.lock (line 9)):
        Expected sha256 {a}
        Expected     or {b}
             Got        {c}

The command '/bin/sh -c pip install from somewhere' returned a non-zero code: 1"""


@given(st.lists(st.text(max_size=60), max_size=20))
def test_what_pip_said_is_read_whatever_stands_around_it(noise: list[str]) -> None:
    said = [*noise, *PIP_SAID.format(a="a" * 64, b="b" * 64, c="c" * 64).splitlines()]
    found = hash_mismatch(said, "the.lock")
    assert found is not None
    assert "numpy==2.4.6" in found.message
    assert "c" * 64 in found.context[-1]
    if not any("DO NOT MATCH" in line for line in noise):
        assert hash_mismatch(noise, "the.lock") is None


@pytest.mark.parametrize(
    "item",
    [
        {"error": "write /var/lib/docker/tmp/x: no space left on device"},
        {
            "stream": "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
        },
    ],
)
def test_a_full_disk_of_the_engine_is_told_from_a_failed_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item: dict[str, str]
) -> None:
    stopped = {"error": "The command '/bin/sh -c python3' returned a non-zero code: 1"}
    engine = FullEngine([item, stopped])
    with pytest.raises(StorageFailed, match="the engine's disk is full") as failure:
        build_on(engine, tmp_path, monkeypatch)
    assert "docker system df" in (failure.value.hint or "")
    assert "o space left" in Path(failure.value.where or "").read_text()
    # The base of this engine came from a registry.
    assert engine.labels == {"org.opencontainers.image.base.digest": "sha256:" + "b" * 64}


def build_on(engine: object, folder: Path, monkeypatch: pytest.MonkeyPatch, home: Path | None = None) -> None:
    """Build the image of ONNX Runtime on an engine that is none, of wheels that are none."""
    monkeypatch.setattr(image_build, "engine_client", lambda _timeout_s: engine)
    framework = built_in_framework("onnxruntime")
    for name, version in wheelhouse.pinned(plan_build(framework, "cpu", "amd64").recipe.lock):
        tiny_wheel(folder, name, version)
    home = home or folder
    settings = Settings(home / "data", home / "cache", home / "config")
    build_image(framework, "cpu", "amd64", settings, base_image="base:1", wheelhouse=folder)


def test_wheels_of_the_cache_that_turn_out_damaged_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = PIP_SAID.format(a="a" * 64, b="b" * 64, c="c" * 64)
    engine = FullEngine([{"stream": said}, {"error": "returned a non-zero code: 1"}])
    (tmp_path / "mine").mkdir()
    with pytest.raises(DigestMismatch, match=r"numpy==2\.4\.6"):
        build_on(engine, tmp_path / "mine", monkeypatch)
    assert list((tmp_path / "mine").glob("*.whl")), "a folder of the user's is left alone"
    cached = tmp_path / "cache" / "wheels" / "0123"
    cached.mkdir(parents=True)
    with pytest.raises(DigestMismatch) as failure:
        build_on(engine, cached, monkeypatch, home=tmp_path)
    assert not cached.exists()
    assert "build again" in (failure.value.hint or "")


class FullEngine:
    """An engine whose disk is full, which this machine's engine can't be made to have."""

    def __init__(self, answers: list[dict[str, str]]) -> None:
        self.api = self
        self._answers = answers

    def inspect_image(self, name: str) -> dict[str, object]:
        digests = ["host:5000/base@sha256:" + "b" * 64]
        return {"Architecture": "amd64", "Id": "sha256:" + "0" * 64, "RepoDigests": digests}

    def create_host_config(self, **options: object) -> dict[str, object]:
        return options

    def create_container(self, *arguments: object, **options: object) -> dict[str, str]:
        return {"Id": "c"}

    def start(self, container: str) -> None: ...

    def wait(self, container: str, timeout: float) -> dict[str, int]:
        return {"StatusCode": 0}

    def logs(self, container: str, **options: object) -> bytes:
        return b'[3, 11, "glibc 2.36"]'

    def remove_container(self, container: str, **options: object) -> None: ...

    def images(self, **options: object) -> list[dict[str, str]]:
        return []

    def build(self, *, labels: dict[str, str], **options: object) -> Iterator[dict[str, str]]:
        self.labels = labels
        return iter(self._answers)

    def close(self) -> None: ...


def test_an_interpreter_without_pip_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheelhouse.importlib.util, "find_spec", lambda _name: None)
    command = wheelhouse._pip(tmp_path / "scratch")
    assert Path(command[0]).is_relative_to(tmp_path)
    assert Path(command[0]).exists()


def test_the_same_files_make_the_same_context(tmp_path: Path) -> None:
    plan = plan_build(built_in_framework("onnxruntime"), "cpu", "amd64")
    wheels = [tmp_path / "a-1.whl", tmp_path / "b-1.whl"]
    for path in wheels:
        path.write_bytes(path.name.encode())
    contexts = []
    for _ in range(2):
        stream = io.BytesIO()
        write_context(stream, plan, wheels)
        contexts.append(stream.getvalue())
        wheels[0].touch()
    assert contexts[0] == contexts[1]
    with tarfile.open(fileobj=io.BytesIO(contexts[0])) as archive:
        assert archive.getnames() == [
            "Dockerfile",
            "onnxruntime/check.py",
            "onnxruntime/cpu/requirements-amd64.lock",
            "wheels/a-1.whl",
            "wheels/b-1.whl",
        ]


def test_only_the_wheels_that_the_lock_names_are_given_to_the_engine(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("py-Net==1.0 \\\n    --hash=sha256:00\ntorch==2.13.0+cpu \\\n    --hash=sha256:00\n")
    named = {"py_net-1.0-py3-none-any.whl", "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"}
    for name in (
        *named,
        "py_net-1.1-py3-none-any.whl",
        "other-1.0-py3-none-any.whl",
        "odd.whl",
        "secret.txt",
    ):
        (tmp_path / name).write_bytes(b"")
    assert {path.name for path in wheels_of(tmp_path, lock)} == named
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").unlink()
    with pytest.raises(ImageBuildFailed, match=r"no wheel of torch==2\.13\.0\+cpu") as failure:
        wheels_of(tmp_path, lock)
    assert failure.value.where == str(tmp_path)


@pytest.mark.parametrize(
    ("ref", "split", "repository"),
    [
        ("debian", ("debian", "latest"), "debian"),
        ("debian:bookworm", ("debian", "bookworm"), "debian"),
        ("host:5000/debian", ("host:5000/debian", "latest"), "host:5000/debian"),
        ("host:5000/a/b:1", ("host:5000/a/b", "1"), "host:5000/a/b"),
        ("a/b@sha256:00", ("a/b@sha256:00", None), "a/b"),
        ("a/b:1@sha256:00", ("a/b:1@sha256:00", None), "a/b"),
    ],
)
def test_a_colon_may_be_of_a_tag_or_of_a_port(ref, split, repository) -> None:
    assert _split_ref(ref) == split
    assert _repository(ref) == repository


@pytest.mark.parametrize(
    ("cause", "installed", "message", "hint"),
    [
        (FileNotFoundError(), None, "no container engine is installed", "install Docker"),
        (FileNotFoundError(), "/usr/bin/dockerd", "installed and does not run", "start it"),
        (ConnectionRefusedError(), "/usr/bin/dockerd", "installed and does not run", "start it"),
        (PermissionError(), "/usr/bin/dockerd", "may not talk", "group"),
        (TimeoutError("slow"), "/usr/bin/dockerd", "does not answer", "restart"),
    ],
)
def test_no_engine_is_told_from_a_stopped_and_a_forbidden_one(
    monkeypatch: pytest.MonkeyPatch, cause: OSError, installed: str | None, message: str, hint: str
) -> None:
    import docker
    import docker.errors

    def fail(**_options: object) -> None:
        # The way the SDK wraps it: the socket's error is an argument of an argument.
        raise docker.errors.DockerException("error while asking") from OSError("aborted", cause)

    monkeypatch.setattr(docker, "from_env", fail)
    monkeypatch.setattr(engine_module.shutil, "which", lambda _name: installed)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with pytest.raises(EngineUnavailable, match=message) as failure:
        engine_module.engine_client()
    assert hint in (failure.value.hint or "")
    assert "--runtime process" in (failure.value.hint or "")


def test_an_address_that_nothing_answers_at_is_named(cli) -> None:
    outcome = cli(
        "images", "build", "onnxruntime", "--json", env={"DOCKER_HOST": "unix:///nowhere/docker.sock"}
    )
    failure = outcome.error(3, "engine-unavailable")
    assert "unix:///nowhere/docker.sock" in failure["message"]
    assert "DOCKER_HOST" in failure["hint"]


def test_a_dry_run_says_what_would_be_built_and_needs_no_engine(cli) -> None:
    env = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
    plan = cli(
        "images",
        "build",
        "onnxruntime",
        "--architecture",
        "arm64",
        "--base-image",
        "mine:1",
        "--dry-run",
        "--json",
        env=env,
    ).document()
    assert plan["schema"] == "mlbundle/image-plan/v1"
    assert (plan["architecture"], plan["base_image"]) == ("arm64", "mine:1")
    assert plan["lock"] == "containers/onnxruntime/cpu/requirements-arm64.lock"


def test_the_list_works_without_an_engine(cli) -> None:
    outcome = cli("images", "list", "--json", env={"DOCKER_HOST": "unix:///nowhere/docker.sock"})
    images = outcome.document()["images"]
    assert {(image["architecture"], image["state"]) for image in images} == {
        ("amd64", "not built"),
        ("arm64", "not built"),
    }


def test_an_unknown_framework_lists_the_known_ones(cli) -> None:
    failure = cli("images", "build", "onnxrumtime", "--json").error(2, "reference-not-found")
    assert "onnxruntime" in failure["hint"]
