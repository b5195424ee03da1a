"""The wheel: complete, installable, and the worker in it works on the oldest Python that images may carry."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from support import ROOT, lacking


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    script = f"from hatchling.build import build_wheel; print(build_wheel({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


def test_the_wheel_carries_data_worker_and_licence(wheel) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "mlbundle/py.typed",
        "mlbundle/_data/schemas/model.schema.json",
        "mlbundle/_data/manifests/models/digits-cnn/model.onnx",
        "mlbundle/_data/manifests/frameworks/onnxruntime.yml",
        "mlbundle/_data/manifests/models/digits-cnn/tensorflow/saved_model/saved_model.pb",
        "mlbundle/_data/manifests/generated/resnet50/recipe.yml",
        "mlbundle/_data/containers/Dockerfile",
        "mlbundle/_data/containers/torch/cpu/requirements-amd64.lock",
        "mlbundle/worker/supervisor.py",
        "mlbundle/trace/processor.cjs",
        "mlbundle_tui/__init__.py",
    ):
        assert name in names, name
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "tests/" in name or name.endswith(".pyc")]


def test_an_installed_wheel_finds_its_data_outside_of_a_checkout(wheel, tmp_path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, system_site_packages=False, with_pip=False, symlinks=True)
    site = next(environment.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # The dependencies come from the environment of the tests; the package itself from the wheel alone.
    for path in map(Path, sys.path):
        if path.name == "site-packages" and path != site:
            (site / "dependencies.pth").write_text(f"{path}\n")
    done = subprocess.run(
        [environment / "bin" / "python", "-m", "mlbundle.cli.main", "list"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "digits-cnn" in done.stdout
    where = subprocess.run(
        [environment / "bin" / "python", "-c", "import mlbundle; print(mlbundle.__file__)"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert str(site) in where.stdout


def test_the_worker_is_the_same_bytes_from_checkout_and_wheel(wheel, tmp_path) -> None:
    from mlbundle.runtime.archive import worker_archive

    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    script = "import sys; sys.path.insert(0, sys.argv[1])\nfrom pathlib import Path\n"
    script += (
        "from mlbundle.runtime.archive import worker_archive\nprint(worker_archive(Path(sys.argv[2])).sha256)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, site, tmp_path / "cache"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == worker_archive(tmp_path / "own").sha256


def oldest_python() -> str:
    found = shutil.which("python3.9")
    candidates = [Path(found)] if found else []
    candidates += sorted(Path.home().glob(".pyenv/versions/3.9.*/bin/python"))
    for candidate in candidates:
        if (
            subprocess.run(
                [candidate, "-c", "import sys; assert sys.version_info[:2] == (3, 9)"], capture_output=True
            ).returncode
            == 0
        ):
            return str(candidate)
    pytest.skip("no Python 3.9 here")


@pytest.fixture(scope="module")
def old_environment(tmp_path_factory) -> Path:
    """The Python of an environment with the last NumPy and ONNX Runtime for 3.9, and LoadGen."""
    environment = tmp_path_factory.mktemp("old")
    subprocess.run([oldest_python(), "-m", "venv", environment], check=True, capture_output=True)
    python = environment / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q", "--only-binary", ":all:"]
    requirements = ["numpy==2.0.2", "onnxruntime==1.19.2", "mlcommons-loadgen==6.0.17"]
    done = subprocess.run([*pip, *requirements], capture_output=True, text=True)
    if done.returncode != 0:
        lacking(f"can't install what the worker needs for Python 3.9: {done.stderr[-500:]}")
    return python


@pytest.mark.network
@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        ("online", ("--duration", "300ms")),
        ("batched", ("--duration", "50ms", "--warmup", "10ms", "--batch-sizes", "1,4")),
        ("poisson", ("--duration", "300ms", "--warmup", "10ms", "--rate", "200")),
        ("pipeline", ("--duration", "300ms")),
        ("cold-start", ("--repeats", "1")),
        ("single-stream", ("--duration", "300ms", "--queries", "100")),
    ],
)
def test_the_worker_runs_on_python_3_9(cli, old_environment, scenario, options) -> None:
    place = ("--runtime", "process", "--python", old_environment, "--concurrent")
    done = cli("run", "digits-cnn", *place, "--scenario", scenario, *options, "--json")
    assert done.status == 1, done.stderr  # beside others it is not valid
    record = done.document()
    assert record["status"] == "completed"
    assert record["scenario"]["name"] == scenario
    assert record["result"]["throughput_per_s"] > 0
    assert record["accuracy"]["passed"] is True
    assert record["environment"]["worker"]["python"].startswith("3.9.")
    assert record["framework"]["version"] == "1.19.2"
