"""`mlbundle run` in a real container: same answers, isolation, limits, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import command_line, make_bundle

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("in_image_home")]

DOCKER = ("--runtime", "docker")
QUICK = ("--duration", "300ms", "--warmup", "10ms")


def probe(tmp_path: Path, code: str) -> Path:
    """A bundle whose pre-processing does something in the container; what it raises comes back as the error."""
    return make_bundle(tmp_path / "probe", preprocess=code)


def test_the_container_answers_as_the_process_does_and_its_image_is_in_the_record(cli, in_image_home) -> None:
    record = cli("run", "digits-cnn", *DOCKER, *QUICK, "--json").document()
    assert record["runtime"] == "docker"
    assert record["isolation"] == "pinned"
    lock = (in_image_home / "data" / "images.lock").read_text()
    assert record["image"]["config_digest"].startswith("sha256:")
    assert record["image"]["config_digest"] in lock
    process = ("--runtime", "process", "--python", sys.executable)
    here = cli("run", "digits-cnn", *process, *QUICK, "--json").document()
    assert record["accuracy"]["predictions_sha256"] == here["accuracy"]["predictions_sha256"]
    assert record["accuracy"]["passed"] is True


def test_auto_takes_the_container_where_an_image_is_ready(cli) -> None:
    assert cli("run", "digits-cnn", *QUICK, "--json").document()["runtime"] == "docker"


@pytest.mark.parametrize("name", ["digits-png", "digits-code"])
def test_images_and_custom_code_run_in_the_container(cli, name) -> None:
    record = cli("run", name, *DOCKER, *QUICK, "--json").document()
    assert record["accuracy"]["passed"] is True
    assert record["accuracy"]["samples"] == 360


def test_all_files_of_a_run_belong_to_the_caller(cli, in_image_home) -> None:
    record = cli("run", "digits-cnn", *DOCKER, *QUICK, "--json").document()
    folder = in_image_home / "data" / "runs" / record["run_id"]
    assert {path.stat().st_uid for path in folder.rglob("*")} == {os.getuid()}


def test_a_container_that_fills_its_disk_ends_typed(cli, tmp_path) -> None:
    code = "for i in range(10**6):\n    open(f'/tmp/{i}', 'wb').write(bytes(1 << 20))"
    limit = {"MLBUNDLE_SCRATCH_BYTES": str(20 << 20)}
    error = cli("run", probe(tmp_path, code), *DOCKER, *QUICK, "--json", env=limit).error(4, "worker-failed")
    assert "No space left on device" in error["message"]


def test_a_container_that_hangs_is_removed(cli, tmp_path) -> None:
    bundle = probe(tmp_path, "import time\nwhile True: time.sleep(1)")
    cli("run", bundle, *DOCKER, *QUICK, "--timeout", "2s", "--json").error(4, "worker-hung")


@pytest.mark.parametrize(
    "code",
    [
        "import os, signal; os.kill(os.getppid(), signal.SIGTERM); os._exit(3)",
        "import ctypes; ctypes.string_at(0)",
    ],
)
def test_a_container_that_crashes_ends_typed(cli, tmp_path, code) -> None:
    cli("run", probe(tmp_path, code), *DOCKER, *QUICK, "--json").error(4, "worker-failed")


def measuring(home: Path, known: set[str]) -> Path:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for events in (home / "data" / "runs").glob("*/events.jsonl"):
            if events.parent.name not in known and '"name":"measure","state":"begun"' in events.read_text():
                return events.parent
        time.sleep(0.05)
    raise AssertionError("the run did not begin to measure")


def begin(home: Path, **more: object) -> tuple[subprocess.Popen[str], Path]:
    known = {folder.name for folder in (home / "data" / "runs").glob("*")}
    process = subprocess.Popen(
        command_line("run", "digits-cnn", *DOCKER, "--duration", "10m", "--warmup", "10ms", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,
    )
    return process, measuring(home, known)


def gone(engine, run_id: str, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while engine.api.containers(all=True, filters={"label": f"io.mlbundle.run={run_id}"}):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def test_ctrl_c_removes_the_container(in_image_home, engine) -> None:
    process, folder = begin(in_image_home)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert gone(engine, folder.name, within_s=0)
    assert json.loads((folder / "record.json").read_text())["status"] == "cancelled"


def test_a_killed_host_leaves_no_container(cli, in_image_home, engine) -> None:
    process, folder = begin(in_image_home)
    process.kill()
    process.wait()
    assert gone(engine, folder.name, within_s=60)
    rows = cli("runs", "list", "--json").document()["runs"]
    assert {r["run_id"]: r["status"] for r in rows}[folder.name] == "partial"


def test_a_pinned_image_that_is_another_is_refused(cli, in_image_home, engine, tmp_path) -> None:
    import shutil

    from mlbundle.resources import built_in_frameworks, built_in_models

    reference = "mlbundle-test/another:1"
    engine.images.get(os.environ["MLBUNDLE_TEST_BASE_IMAGE"]).tag(reference)
    try:
        folder = tmp_path / "pinned"
        shutil.copytree(built_in_models()["digits-cnn"], folder)
        text = built_in_frameworks()["onnxruntime"].read_text()
        head = text.partition("containers:")[0]
        digest = "sha256:" + "0" * 64
        pins = f"containers:\n  amd64:\n    cpu: {{image: {reference}, digest: '{digest}'}}\n"
        (folder / "framework.yml").write_text(head + pins)
        error = cli("run", folder, *DOCKER, *QUICK, "--json").error(5, "image-mismatch")
        assert digest[:19] in json.dumps(error)
    finally:
        engine.images.remove(reference)


def test_a_dry_run_shows_the_exact_digest_and_the_containers_arguments(cli) -> None:
    plan = cli("run", "digits-cnn", *DOCKER, "--dry-run", "--json").document()
    assert "sha256:" in plan["image"]
    host = plan["container"]["host_config"]
    assert host["network_mode"] == "none"
    assert host["read_only"] is True
    assert host["cap_drop"] == ["ALL"]


def test_without_an_image_docker_says_how_to_build_it(cli, tmp_path) -> None:
    error = cli("run", "digits-cnn", *DOCKER, "--json", env={"MLBUNDLE_HOME": str(tmp_path / "h")}).error(
        3, "image-missing"
    )
    # An image of that name may be here and only not be pinned in this home: then that is what to do.
    assert "mlbundle images build onnxruntime" in error["hint"] or "mlbundle images lock" in error["hint"]
