"""A home with one traced run in it, made once for all tests of a session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import command_line


@dataclass(frozen=True)
class TracedRun:
    """A home, the id of the run in it, and its folder: look, and leave it as it is."""

    home: Path
    run_id: str

    @property
    def folder(self) -> Path:
        return self.home / "data" / "runs" / self.run_id

    @property
    def env(self) -> dict[str, str]:
        return {"MLBUNDLE_HOME": str(self.home)}


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    """One short run of digits-png, traced at the level of the model."""
    home = tmp_path_factory.mktemp("traced")
    here = (
        "--runtime",
        "process",
        "--python",
        sys.executable,
        "--warmup",
        "50ms",
        "--duration",
        "200ms",
        "--json",
    )
    done = subprocess.run(
        command_line("run", "digits-png", *here),
        capture_output=True,
        text=True,
        env={**os.environ, "MLBUNDLE_HOME": str(home)},
    )
    # 0 or 1: a machine that is busy enough makes any result invalid, and the trace is the same.
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return TracedRun(home, json.loads(done.stdout)["run_id"])
