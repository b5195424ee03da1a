"""A scenario of one's own, as the guide writes it, and one that is not there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from support import ROOT, make_bundle

HERE = ("--runtime", "process", "--python", sys.executable, "--trace", "none", "--json")


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "mini")


def install(folder: Path) -> None:
    """Install what the guide shows, as a package installer would."""
    guide = (ROOT / "docs/scenarios.md").read_text()
    code = re.search(r"```python\n(import time.*?)```", guide, re.DOTALL)
    entry = re.search(r'\.entry-points\."(mlbundle\.scenarios)"\]\n(bursts) = "([\w:]+)"', guide)
    assert code is not None
    assert entry is not None
    information = folder / "bursts-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "bursts.py").write_text(code[1])
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: bursts\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{entry[1]}]\n{entry[2]} = {entry[3]}\n")


def test_the_scenario_of_the_guide_runs_and_is_listed(cli, mini, tmp_path, monkeypatch) -> None:
    install(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    outcome = cli("run", mini, *HERE, "--scenario", "plugin:bursts", "--set", "size=10")
    assert outcome.status == 0, outcome.stderr
    record = json.loads(outcome.stdout)
    assert record["scenario"] == {"name": "bursts", "options": {"size": "10"}}
    assert record["result"]["queries"] == 200
    (row,) = cli("runs", "list", "--json").document()["runs"]
    assert row["headline"] == "trimmed mean"


def test_a_scenario_that_is_not_in_the_environment_is_what_is_lacking(cli, mini) -> None:
    error = cli("run", mini, *HERE, "--scenario", "plugin:nowhere").error(3, "environment-lacks")
    assert "'nowhere'" in error["message"]
    assert "mlbundle.scenarios" in error["hint"]
