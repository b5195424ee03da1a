"""What is decided before an engine is asked: plan, wheels, context, and how an absent engine is described."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from mlbundle.errors import EngineUnavailable, ImageBuildFailed, ImageMissing, UsageError
from mlbundle.manifest.framework import FrameworkManifest, ImageChoice
from mlbundle.resources import resource_folder
from mlbundle.runtime import engine as engine_module
from mlbundle.runtime import wheelhouse
from mlbundle.runtime.image_build import _split_ref, _write_context, plan_build
from mlbundle.runtime.images import _repository, built_in_framework
from mlbundle.runtime.wheelhouse import PythonTarget, ensure_wheelhouse


def manifest(build: str | None) -> FrameworkManifest:
    return FrameworkManifest("x", "1.0", containers={"amd64": {"cpu": ImageChoice("x:1.0", None, build)}})


def test_the_built_in_framework_can_be_built_for_both_architectures() -> None:
    for architecture in ("amd64", "aarch64"):
        plan = plan_build(built_in_framework("onnxruntime"), "cpu", architecture)
        assert plan.key.architecture == architecture.replace("aarch64", "arm64")
        assert plan.ref == f"mlbundle/onnxruntime:{plan.key.version}-cpu-{plan.key.architecture}"
        assert plan.base_image.startswith("debian:")
        assert f"onnxruntime=={plan.key.version} " in plan.lock.read_text()
        assert plan.to_document()["lock"].startswith("containers/onnxruntime/cpu/requirements-")


def test_locks_have_hashes_and_no_addresses() -> None:
    for lock in resource_folder("containers").glob("**/*.lock"):
        text = lock.read_text()
        assert "://" not in text, lock
        assert "--index" not in text, lock
        for requirement in text.replace("\\\n", "").splitlines():
            assert requirement.startswith("#") or " --hash=sha256:" in requirement, (lock, requirement)


@pytest.mark.parametrize("build", ["containers/absent", "../containers/onnxruntime/cpu", "tests", "/etc"])
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


def test_a_failed_download_shows_what_pip_said_and_leaves_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("no-hash-here==1.0\n")
    target = PythonTarget((3, 11), 36, "amd64")
    with pytest.raises(ImageBuildFailed, match="wheels") as failure:
        ensure_wheelhouse(tmp_path / "cache", lock, target)
    assert any("hash" in line.lower() for line in failure.value.context)
    assert [path for path in (tmp_path / "cache" / "wheels").iterdir() if path.is_dir()] == []


def test_an_interpreter_without_pip_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheelhouse.importlib.util, "find_spec", lambda _name: None)
    command = wheelhouse._pip(tmp_path / "scratch")
    assert Path(command[0]).is_relative_to(tmp_path)
    assert Path(command[0]).exists()


def test_the_same_files_make_the_same_context(tmp_path: Path) -> None:
    plan = plan_build(built_in_framework("onnxruntime"), "cpu", "amd64")
    (tmp_path / "b-1.whl").write_bytes(b"bb")
    (tmp_path / "a-1.whl").write_bytes(b"a")
    (tmp_path / "secret.txt").write_text("stays here")
    contexts = []
    for _ in range(2):
        stream = io.BytesIO()
        _write_context(stream, plan, tmp_path)
        contexts.append(stream.getvalue())
        (tmp_path / "a-1.whl").touch()
    assert contexts[0] == contexts[1]
    with tarfile.open(fileobj=io.BytesIO(contexts[0])) as archive:
        assert archive.getnames() == ["Dockerfile", "requirements.lock", "wheels/a-1.whl", "wheels/b-1.whl"]


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
