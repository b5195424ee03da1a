"""Pythons that have a framework: named by a variable, else the environments that the `process` runtime makes.

They are made through the library from the locks that we ship, and kept in a cache between test sessions, since making
one takes a minute. The fixtures are for the whole session; `framework_cache()` is the cache folder of the library in
which the environments lie.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import ROOT, lacking

from mlbundle.errors import MlbundleError
from mlbundle.platforms import this_architecture
from mlbundle.runtime.environments import ensure_environment


def framework_cache() -> Path:
    """A cache folder for `Settings.cache_dir`, the same in every session on this machine."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("MLBUNDLE_TEST_CACHE") or Path(caches) / "mlbundle-tests")


def framework_python(framework: str) -> Path:
    """Return a Python that has a framework; where none can be had, `lacking` says why."""
    variable = f"MLBUNDLE_TEST_{framework.upper()}_PYTHON"
    named = os.environ.get(variable)
    if named:
        if not Path(named).is_file():
            lacking(f"{variable} names no Python: {named}")
        return Path(named)
    lock = ROOT / "containers" / framework / "cpu" / f"requirements-{this_architecture()}.lock"
    if not lock.is_file():
        lacking(f"no lock of {framework} for {this_architecture()}")
    try:
        return ensure_environment(framework_cache(), framework, lock).python
    except MlbundleError as error:
        lacking(f"no environment of {framework}: {error.message}")


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """A Python with PyTorch."""
    return framework_python("torch")


@pytest.fixture(scope="session")
def tensorflow_python() -> Path:
    """A Python with TensorFlow."""
    return framework_python("tensorflow")
