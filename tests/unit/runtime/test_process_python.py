"""`--python`: a Python that exists is looked at first, and told in full in the record."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import Cli, lacking, make_bundle

PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
QUICK = ("--duration", "100ms", "--warmup", "10ms", "--no-accuracy", "--json")


def interpreter(version: str) -> Path:
    found = [*sorted(PYENV.glob(f"{version}*/bin/python")), *filter(None, [shutil.which(f"python{version}")])]
    if not found:
        lacking(f"there is no Python {version} on this machine")
    return Path(found[0])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("python") / "mini")


def test_what_python_it_was_is_in_the_record(cli: Cli, bundle) -> None:
    record = cli("run", bundle, "--python", sys.executable, *QUICK).document()
    assert record["isolation"] == "unpinned"
    told = record["environment"]["python_environment"]
    assert told["version"] == ".".join(str(part) for part in sys.version_info[:3])
    assert told["kind"] == ("installation" if sys.prefix == sys.base_prefix else "virtual environment")
    assert Path(told["prefix"]).expanduser() == Path(sys.prefix)
    assert {"numpy", "onnxruntime"} <= set(record["environment"]["distributions"])


def test_modules_of_a_cluster_come_by_pythonpath_and_are_recorded(cli: Cli, tmp_path, bundle) -> None:
    # A bare environment, made complete by PYTHONPATH alone, as `module load` does.
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    python = bare / "bin" / "python"
    error = cli("run", bundle, "--python", python, *QUICK, env={"PYTHONPATH": ""}).error(
        3, "environment-lacks"
    )
    assert "no numpy and no onnxruntime" in error["message"]
    import numpy as np

    modules = str(Path(np.__file__).parent.parent)
    record = cli("run", bundle, "--python", python, *QUICK, env={"PYTHONPATH": modules}).document()
    told = record["environment"]["python_environment"]
    assert Path(told["pythonpath"]).expanduser() == Path(modules)
    assert told["kind"] == "virtual environment"


@pytest.mark.parametrize("version", ["2.7", "3.8"])
def test_an_old_python_is_too_old(cli: Cli, bundle, version) -> None:
    error = cli("run", bundle, "--python", interpreter(version), *QUICK).error(3, "environment-lacks")
    assert f"Python {version}" in error["message"]
    assert "3.9" in error["hint"]


def test_a_python_without_the_framework_names_it(cli: Cli, bundle) -> None:
    error = cli("run", bundle, "--python", interpreter("3.12"), *QUICK, env={"PYTHONPATH": ""}).error(
        3, "environment-lacks"
    )
    assert "onnxruntime" in error["message"]
    assert "onnxruntime" in error["hint"]


@pytest.mark.parametrize("name", ["true", "cat", "ls"])
def test_a_program_that_is_no_python_is_told(cli: Cli, bundle, name) -> None:
    program = shutil.which(name)
    assert program is not None
    error = cli("run", bundle, "--python", program, *QUICK).error(3, "environment-lacks")
    assert "no Python" in error["message"]
    assert error["where"] == program
    assert len(error["context"]) <= 1
    assert all(line.isprintable() and len(line) <= 200 for line in error["context"])


def test_a_file_that_can_not_be_run_is_told(cli: Cli, tmp_path, bundle) -> None:
    error = cli("run", bundle, "--python", bundle / "model.yml", *QUICK).error(3, "environment-lacks")
    assert "Permission denied" in error["message"]
    garbage = tmp_path / "garbage"
    garbage.write_bytes(os.urandom(100))
    garbage.chmod(0o755)
    cli("run", bundle, "--python", garbage, *QUICK).error(3, "environment-lacks")


def test_a_folder_or_nothing_is_a_slip_of_the_user(cli: Cli, tmp_path, bundle) -> None:
    assert cli("run", bundle, "--python", tmp_path, *QUICK).status == 2
    assert cli("run", bundle, "--python", tmp_path / "none", *QUICK).status == 2
