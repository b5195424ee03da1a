"""What is not as a run expects it: images that went or moved, an engine that says no, a GPU that is not there."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError
from support import BASE_IMAGE, Cli, command_line, make_bundle

from mlbundle.config import load_settings
from mlbundle.errors import ImageMissing
from mlbundle.runs.execute import Execution
from mlbundle.runs.plan import RunOptions, make_plan

QUICK = ("--duration", "50ms", "--warmup", "10ms", "--no-accuracy", "--json")
NOBODY = "65534"


@dataclass(frozen=True)
class OwnImage:
    """An image of this test alone, in the images lock of a home of its own."""

    reference: str
    digest: str


@pytest.fixture
def own_image(engine: Any, image_home: Path, home: Path) -> Iterator[OwnImage]:
    """The image for onnxruntime with another label, hence another digest, so that it may be removed."""
    lock = json.loads((image_home / "data" / "images.lock").read_text())
    name, entry = next((n, e) for n, e in lock["images"].items() if n.startswith("onnxruntime/"))
    reference = f"mlbundle-test/own:{secrets.token_hex(4)}"
    repository, _, tag = reference.partition(":")
    container = engine.api.create_container(entry["config_digest"])["Id"]
    try:
        digest = engine.api.commit(
            container, repository=repository, tag=tag, changes=f"LABEL test.mlbundle={tag}"
        )["Id"]
    finally:
        engine.api.remove_container(container)
    (home / "data").mkdir(parents=True)
    entry |= {"ref": reference, "config_digest": digest}
    (home / "data" / "images.lock").write_text(json.dumps({**lock, "images": {name: entry}}))
    yield OwnImage(reference, digest)
    for left in (reference, digest):
        with suppress(APIError):
            engine.api.remove_image(left, force=True)


@pytest.mark.engine
def test_an_image_that_goes_between_plan_and_run_is_named(engine, own_image, tmp_path) -> None:
    bundle = make_bundle(tmp_path / "b")
    settings = load_settings()
    plan = make_plan(RunOptions(reference=str(bundle), runtime="docker"), settings)
    engine.api.remove_image(own_image.digest, force=True)
    execution = Execution(plan, settings)
    with pytest.raises(ImageMissing) as caught:
        list(execution.events())
    assert caught.value.exit_code == 3
    assert own_image.reference in caught.value.message
    assert "build or pull" in str(caught.value.hint)
    assert execution.record is not None
    assert execution.record["status"] == "failed"
    assert execution.record["error"]["reference"] == "image-missing"


@pytest.mark.engine
def test_a_tag_that_moved_changes_nothing_and_an_image_that_went_is_said(
    cli: Cli, engine, own_image, tmp_path
) -> None:
    bundle = make_bundle(tmp_path / "b")
    repository, _, tag = own_image.reference.partition(":")
    engine.api.tag(BASE_IMAGE, repository, tag, force=True)
    record = cli("run", bundle, "--runtime", "docker", *QUICK).document()
    assert record["image"]["config_digest"] == own_image.digest
    engine.api.remove_image(own_image.digest, force=True)
    # The tag still names an image, and that is not the one.
    error = cli("run", bundle, "--runtime", "docker", *QUICK).error(3, "image-missing")
    assert "mlbundle images build" in error["hint"]


@pytest.fixture
def forbidden_engine(tmp_path: Path) -> Iterator[str]:
    """The address of a real socket that only its owner, another user, may use."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become somebody else, with setpriv")
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        yield f"unix://{path}"


@pytest.mark.parametrize("runtime", ["docker", "auto"])
def test_an_engine_that_this_user_may_not_use_is_told_from_none(
    forbidden_engine: str, tmp_path, runtime
) -> None:
    bundle = make_bundle(tmp_path / "b")
    # May read what root may (this Python lies in root's home, perhaps) and write nothing: a socket needs writing.
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    as_nobody += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    home = tmp_path / "home-of-nobody"
    home.mkdir()
    home.chmod(0o777)
    done = subprocess.run(
        [*as_nobody, *command_line("run", bundle, "--runtime", runtime, "--dry-run", *QUICK)],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            **os.environ,
            "DOCKER_HOST": forbidden_engine,
            "MLBUNDLE_HOME": str(home),
            "HOME": str(home),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    assert "Traceback" not in done.stderr
    if runtime == "auto":  # goes on without, and says why
        assert done.returncode == 0, done.stderr + done.stdout
        assert "may not talk to the container engine" in done.stderr
        return
    error = json.loads(done.stdout)
    assert (done.returncode, error["reference"]) == (3, "engine-unavailable")
    assert "may not" in error["message"]
    assert "group" in error["hint"]


def has_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists()


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said(cli: Cli, tmp_path) -> None:
    bundle = make_bundle(tmp_path / "b")
    for python in ((), ("--python", sys.executable)):
        outcome = cli("run", bundle, "--runtime", "process", *python, "--accelerator", "gpu", *QUICK)
        error = outcome.error(3, "accelerator-missing")
        assert error["hint"]


@pytest.mark.engine
@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
def test_a_container_gets_no_gpu_where_there_is_none(cli: Cli, engine, tmp_path) -> None:
    outcome = cli("run", make_bundle(tmp_path / "b"), "--runtime", "docker", "--accelerator", "gpu", *QUICK)
    error = outcome.document()
    assert outcome.status == 3, error
    assert error["reference"] in {"accelerator-missing", "image-missing"}
    assert "gpu" in (error["message"] + (error["hint"] or "")).lower()
