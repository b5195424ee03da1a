"""A framework of one's own, and a machine that has not what is asked for: each error says what helps here."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Cli, make_bundle

QUICK = ("--queries", "20", "--warmup", "10ms", "--json")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A bundle whose framework is described beside it, with a lock that mlbundle has not."""
    folder = make_bundle(tmp_path / "own")
    (folder / "framework.yml").write_text(
        "name: onnxruntime\nversion: 1.31.1\npython: {amd64: {cpu: mine/requirements.lock}}\n"
    )
    return folder


def test_a_lock_that_does_not_come_with_mlbundle_is_told_with_what_there_is(cli: Cli, own: Path) -> None:
    error = cli("run", own, "--runtime", "process", *QUICK).error(2, "usage")
    assert "'mine/requirements.lock'" in error["message"]
    assert "containers/torch/cpu/requirements-amd64.lock" in error["context"]
    assert "--python PATH" in error["hint"]
    checked = cli("validate", own / "framework.yml")
    assert checked.status == 0
    assert "warning: /python/amd64/cpu: the lock 'mine/requirements.lock'" in checked.stdout
    assert "--python PATH" in checked.stdout


def test_a_framework_without_any_lock_says_python(cli: Cli, own: Path) -> None:
    (own / "framework.yml").write_text(
        "name: onnxruntime\nversion: 1.31.1\ncontainers: {amd64: {cpu: x/y:1}}\n"
    )
    error = cli("run", own, "--runtime", "process", *QUICK).error(3, "python-environment-failed")
    assert "`--python PATH`" in error["hint"]


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="there is a GPU here")
@pytest.mark.parametrize("runtime", ["docker", "auto"])
def test_without_a_driver_nobody_is_told_to_build_an_image(cli: Cli, tmp_path: Path, runtime: str) -> None:
    bundle = make_bundle(tmp_path / "b")
    error = cli("run", bundle, "--runtime", runtime, "--accelerator", "gpu", *QUICK).error(
        3, "accelerator-missing"
    )
    assert "no NVIDIA driver" in error["message"]
    assert "build" not in error["hint"]


def test_a_framework_that_is_not_there_is_told_with_a_command_that_takes_one(
    cli: Cli, tmp_path: Path
) -> None:
    bundle = make_bundle(tmp_path / "b")
    manifest = (bundle / "model.yml").read_text().replace("name: onnxruntime", "name: abacus")
    (bundle / "model.yml").write_text(manifest)
    error = cli("run", bundle, *QUICK).error(2, "reference-not-found")
    assert "`mlbundle pack --framework-manifest FILE`" in error["hint"]
