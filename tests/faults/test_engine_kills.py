"""SIGKILL of the container engine in the middle of each scenario: it is named, no worker stays, nothing seen is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from scenario_runs import SCENARIOS, SEED, Run, check_kept, start

from mlbundle.config import load_settings
from mlbundle.runs.recover import recover_left_runs
from mlbundle.runtime.docker import RUN_LABEL

pytestmark = pytest.mark.engine
_API = "1.41"  # said here, it is not asked for before the engine answers


class Engine:
    """A second Docker engine of our own, that may be killed and started again on the same data."""

    def __init__(self, folder: Path) -> None:
        import docker

        self.address = f"unix://{folder}/docker.sock"
        self._folder = folder
        self._log = (folder / "log").open("wb")
        self._daemon: subprocess.Popen[bytes] | None = None
        self.client = docker.DockerClient(base_url=self.address, version=_API, timeout=60)
        self.start()

    def start(self) -> None:
        """Start it, unless it runs, and wait until it answers."""
        if self._daemon is not None and self._daemon.poll() is None:
            return
        folder = self._folder
        arguments = [
            "--data-root",
            folder / "data",
            "--exec-root",
            folder / "exec",
            "--pidfile",
            folder / "pid",
        ]
        arguments += ["-H", self.address, "--bridge", "none", "--iptables=false", "--live-restore"]
        self._daemon = subprocess.Popen(
            ["dockerd", *map(str, arguments)], stdout=self._log, stderr=self._log, start_new_session=True
        )
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self._daemon.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the second engine did not start"
            time.sleep(0.05)

    def _answers(self) -> bool:
        with suppress(OSError):
            return bool(self.client.ping())
        return False

    def kill(self) -> None:
        """Kill it, and see that its containerd is gone: the next engine would take a dying one for its own."""
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon.wait()
        with suppress(OSError, ValueError):
            while Path(f"/proc/{(self._folder / 'exec/containerd/containerd.pid').read_text()}").exists():
                time.sleep(0.01)

    def containers(self, run_id: str) -> list[dict[str, Any]]:
        """What it has of a run, running or not."""
        found: list[dict[str, Any]] = self.client.api.containers(
            all=True, filters={"label": f"{RUN_LABEL}={run_id}"}
        )
        return found

    def close(self) -> None:
        """Kill everything of it and take its mounts away."""
        self.client.close()
        self.kill()
        self._log.close()
        for entry in Path("/proc").iterdir():  # containerd and its shims are in sessions of their own
            with suppress(OSError):
                if entry.name.isdecimal() and os.fsencode(self._folder) in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(str(self._folder))), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False)


@pytest.fixture(scope="module")
def private_engine(
    engine: Any, image_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    if os.getuid() != 0:
        pytest.skip("starting an engine needs root")
    private = Engine(tmp_path_factory.mktemp("engine"))
    try:
        lock = json.loads((image_home / "data" / "images.lock").read_text())
        (digest,) = [
            entry["config_digest"] for key, entry in lock["images"].items() if key.startswith("onnxruntime/")
        ]
        private.client.images.load(engine.images.get(digest).save(chunk_size=1 << 22))
        yield private
    finally:
        private.close()


@pytest.fixture
def run(
    request: pytest.FixtureRequest, tmp_path: Path, image_home: Path, private_engine: Engine
) -> Iterator[Run]:
    private_engine.start()
    images = image_home / "data" / "images.lock"
    begun = start(request.param, tmp_path, images=images, engine=private_engine.address)
    yield begun
    begun.process.kill()
    begun.process.communicate()


def worker_of(private_engine: Engine, run: Run) -> Path:
    """The first process of the run's container."""
    (container,) = private_engine.containers(run.folder.name)
    return Path("/proc") / str(private_engine.client.api.inspect_container(container["Id"])["State"]["Pid"])


@pytest.mark.parametrize("run", SCENARIOS, indirect=True)
def test_an_engine_that_dies_in_the_middle_is_named(
    run: Run, private_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.told()
    worker = worker_of(private_engine, run)
    private_engine.kill()
    stdout, stderr = run.process.communicate(timeout=60)
    assert run.process.returncode == 4, stderr
    assert "Traceback" not in stderr
    error = json.loads(stdout)
    assert error["reference"] == "engine-died", error
    assert error["hint"]
    check_kept(run, "failed", f"MLBUNDLE_FAULT_SEED={SEED}")

    # This engine keeps the containers of one that died before it; the next command takes ours away.
    private_engine.start()
    monkeypatch.setenv("MLBUNDLE_HOME", str(run.home))
    monkeypatch.setenv("DOCKER_HOST", private_engine.address)
    assert recover_left_runs(load_settings()) == []
    deadline = time.monotonic() + 60
    while worker.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not worker.exists()
    assert private_engine.containers(run.folder.name) == []
    recover_left_runs(load_settings())
    assert not list((run.home / "data" / "left-containers").iterdir()), "it is asked for no more"
