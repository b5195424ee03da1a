"""A detached run in a container: whoever stops it takes the container away, and so does the death of its process."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Cli

from mlbundle.runs.following import follow_events
from mlbundle.runs.owner import read_owner
from mlbundle.wire.events import Window

RUN = ("run", "digits-cnn", "--runtime", "docker", "--trace", "none", "--no-accuracy", "--warmup", "10ms")


def wait_until_gone(engine: Any, run_id: str) -> None:
    deadline = time.monotonic() + 60
    while engine.api.containers(all=True, filters={"label": f"io.mlbundle.run={run_id}"}):
        assert time.monotonic() < deadline, "the container is still there"
        time.sleep(0.1)


def stop(cli: Cli, run_id: str, _pid: int) -> None:
    assert cli("runs", "stop", run_id).stdout == f"{run_id} cancelled\n"


def kill(cli: Cli, run_id: str, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert cli("runs", "attach", run_id).status == 4


@pytest.mark.parametrize(("end", "status"), [(stop, "cancelled"), (kill, "partial")])
def test_a_detached_run_in_a_container(
    cli: Cli, in_image_home: Path, engine: Any, end: Callable[[Cli, str, int], None], status: str
) -> None:
    started = cli(*RUN, "--duration", "10m", "--concurrent", "--detach", "--json").document()
    folder = Path(started["folder"])
    assert next(event for event in follow_events(folder) if isinstance(event, Window)), "it measures"
    owner = read_owner(folder / "owner.lock")
    assert owner is not None
    end(cli, started["run_id"], owner.pid)
    assert json.loads((folder / "record.json").read_text())["status"] == status
    wait_until_gone(engine, started["run_id"])
