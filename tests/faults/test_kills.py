"""SIGKILL at any moment of pack, add, push, pull, gc, rm and sign, with several processes on one data folder."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from kill_rounds import TRACES
from registry_fixture import RealRegistry

SEED = os.environ.get("MLBUNDLE_FAULT_SEED")
"""Repeats what a failed test printed, as far as processes that race can be repeated."""

KILLS = int(os.environ.get("MLBUNDLE_TEST_KILLS", "64"))
"""How many commands are killed at the least; more of them find rarer moments, and take longer."""

LEAST_OF_EACH = KILLS // 8


def test_no_kill_loses_or_spoils_anything(
    tmp_path: Path, home: Path, registry: RealRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(SEED or secrets.randbelow(1_000_000))
    done = subprocess.run(
        [
            sys.executable,
            Path(__file__).with_name("kill_rounds.py"),
            tmp_path,
            registry.host,
            str(seed),
            str(KILLS),
        ],
        capture_output=True,
        text=True,
        timeout=300 + 6 * KILLS,
    )
    with capsys.disabled():
        print(f"\nMLBUNDLE_FAULT_SEED={seed} {done.stdout.strip()}")
    assert done.returncode == 0, f"seed {seed}\n{done.stderr[-6000:]}"
    told = json.loads(done.stdout)
    assert told["kills"] >= KILLS
    for kind in ("pack", "add", "push", "pull", "gc"):
        assert told["killed"][kind] >= LEAST_OF_EACH, kind
    for trace in TRACES:
        assert told["seen"].get(f"{trace} after kills"), trace
    assert told["seen"]["tags verified"] > LEAST_OF_EACH
