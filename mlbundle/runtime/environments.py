"""Python environments for the `process` runtime, made from hash-locked requirements and kept in the cache.

`<cache>/envs/<framework>-<hash of lock, Python ABI, architecture>`: made under a temporary name, renamed when
complete, shared by every bundle with the same lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import sysconfig
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.errors import PythonEnvironmentFailed
from mlbundle.files import locked, storage_failed, write_atomically
from mlbundle.platforms import this_architecture
from mlbundle.runtime.commands import call

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_COMPLETE = "mlbundle-environment.json"


@dataclass(frozen=True)
class PythonEnvironment:
    """An environment: its Python, and the sha256 of the lock it was made from (None: not made from a lock)."""

    python: Path
    lock_sha256: str | None


def environment_folder(cache_dir: Path, framework: str, lock: Path) -> Path:
    """Return where the environment of a lock lies or would lie."""
    key = hashlib.sha256(lock.read_bytes())
    key.update(f"\n{sysconfig.get_config_var('SOABI')}\n{this_architecture()}".encode())
    return cache_dir / "envs" / f"{framework}-{key.hexdigest()[:24]}"


def ensure_environment(
    cache_dir: Path,
    framework: str,
    lock: Path,
    *,
    make: bool = True,
    report: Callable[[str], None] = lambda _line: None,
) -> PythonEnvironment:
    """Return the environment of a lock, made now if it is not there; `report` hears how it goes.

    Without `make` it is only said where it would be.

    Raises PythonEnvironmentFailed with the end of pip's output.
    """
    folder = environment_folder(cache_dir, framework, lock)
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    environment = PythonEnvironment(python=folder / "bin" / "python", lock_sha256=digest)
    if (folder / _COMPLETE).is_file():
        return environment
    if not make:
        report(f"the {framework} environment is not there yet; a run would make it")
        return environment
    with locked(folder.with_name(f".{folder.name}.lock")):
        if not (folder / _COMPLETE).is_file():
            report(f"making the {framework} environment (once for each lock)")
            _make(folder, lock, report)
    return environment


def _make(folder: Path, lock: Path, report: Callable[[str], None]) -> None:
    # Interpreters find their own place through the symbolic link, so the folder may be renamed; pip's scripts
    # would not survive it and are not used.
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _call([sys.executable, "-m", "venv", str(temporary)], report, "make a virtual environment")
        python = str(temporary / "bin" / "python")
        arguments = [
            "--require-hashes",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--progress-bar",
            "off",
            "-r",
            str(lock),
        ]
        _call([python, "-m", "pip", "install", *arguments], report, "install the hash-locked requirements")
        document = {"schema": "mlbundle/environment/v1", "lock": lock.name, "python": sys.version.split()[0]}
        write_atomically(temporary / _COMPLETE, json.dumps(document).encode())
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except OSError as error:
        raise storage_failed(error, temporary) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _clean_variables() -> dict[str, str]:
    """Return our environment without what would make pip install elsewhere or believe that things are there."""
    unwanted = {
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_ROOT",
        "PIP_USER",
        "PIP_NO_DEPS",
        "PIP_DRY_RUN",
        "__PYVENV_LAUNCHER__",
    }
    return {n: v for n, v in os.environ.items() if n not in unwanted and not n.startswith("PYTHON")}


def _call(command: list[str], report: Callable[[str], None], what: str) -> None:
    def hear(line: str) -> None:
        if line.startswith(("Downloading", "Installing")):
            report(f"  {line}")

    started = time.monotonic()
    status, tail = call(command, hear, env=_clean_variables())
    if status != 0:
        raise PythonEnvironmentFailed(
            f"could not {what} (after {time.monotonic() - started:.0f} s)",
            context=tail,
            hint="pip must reach a package index (see its settings) and python3-venv must be installed; "
            "`--runtime docker` or `--python PATH` need neither",
        )
