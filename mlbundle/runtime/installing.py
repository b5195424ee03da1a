"""Making a virtual environment of hash-locked requirements with pip, and pip's failures in words."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from mlbundle.errors import MlbundleError, PythonEnvironmentFailed, StorageFailed
from mlbundle.runtime import requirements
from mlbundle.runtime.commands import TAIL_LINES, call
from mlbundle.runtime.environment_steps import Fetching, Placing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_ELSE = "; `--runtime docker` or `--python PATH` need neither"
_KEPT_LINES = 200
_FULL = "No space left on device"
_LEAST_FREE_BYTES = 4 << 20
_UNWANTED = frozenset(
    {
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_ROOT",
        "PIP_USER",
        "PIP_NO_DEPS",
        "PIP_DRY_RUN",
        "PIP_PYTHON",
        "PIP_QUIET",
        "PIP_LOG",
        "__PYVENV_LAUNCHER__",
    }
)
_REQUIREMENT = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.ASCII | re.MULTILINE)
_WHEEL = re.compile(
    r"(?:Downloading|Using cached|Processing) (?:\S*/)?([^\s/-]+)-([^\s/-]+)-\S+\.whl(?: (\(\d.*\)))?"
)


def requirements_of(lock: Path) -> list[tuple[str, str]]:
    """Return name and version of every package that a lock names."""
    return [(m.group(1), m.group(2)) for m in _REQUIREMENT.finditer(lock.read_text("utf-8"))]


def make_environment(folder: Path, lock: Path, report: Callable[[str], None]) -> None:
    """Make a virtual environment in `folder` and install what `lock` names; `report` hears of every package.

    pip is our own where we have one, so that the environment needs none; else ensurepip brings it.
    Raises DigestMismatch where a package is not the one of the lock, StorageFailed on a full disk,
    PythonEnvironmentFailed with the end of what was said for anything else.
    """
    own_pip = _own_pip()
    _call(
        [sys.executable, "-m", "venv", *(["--without-pip"] if own_pip else []), str(folder)],
        folder,
        "make a virtual environment",
        lambda _line: None,
        _venv_failure,
    )
    python = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python] if own_pip else [python, "-m", "pip"]
    arguments = [
        "install",
        "--require-hashes",
        "--no-deps",
        "--only-binary=:all:",
        "--progress-bar=off",
        "--no-input",
        "--disable-pip-version-check",
        "--no-warn-script-location",
        f"--requirement={lock}",
    ]
    progress = _Progress(len(requirements_of(lock)), report)
    what = "install the hash-locked requirements"
    _call([*pip, *arguments], folder, what, progress.hear, lambda said: _pip_failure(said, lock))


def _own_pip() -> bool:
    return importlib.util.find_spec("pip") is not None


class _Progress:
    """Turns what pip says into a line for each package."""

    def __init__(self, total: int, report: Callable[[str], None]) -> None:
        self._total = total
        self._report = report
        self._number = 0

    def hear(self, line: str) -> None:
        """Take a line of pip's."""
        found = _WHEEL.match(line)
        if found is not None:
            self._number += 1
            name, version, size = found.groups()
            self._report(str(Fetching(self._number, self._total, name, version, size or "")))
        elif line.startswith("Installing collected packages"):
            self._report(str(Placing(self._total)))


def _call(
    command: Sequence[str],
    folder: Path,
    what: str,
    heard: Callable[[str], None],
    explain: Callable[[Sequence[str]], MlbundleError | None],
) -> None:
    said: deque[str] = deque(maxlen=_KEPT_LINES)

    def hear(line: str) -> None:
        said.append(line)
        heard(line)

    started = time.monotonic()
    status, tail = call(command, hear, env=_clean_variables())
    if status == 0:
        return
    if any(_FULL in line for line in said) or shutil.disk_usage(folder.parent).free < _LEAST_FREE_BYTES:
        raise StorageFailed(
            f"could not {what}: {_FULL}",
            where=str(folder.parent),
            context=tail,
            hint="free some space (pip also needs some in the system's temporary folder), or set MLBUNDLE_HOME to "
            "a folder with more",
        )
    raise explain(list(said)) or PythonEnvironmentFailed(
        f"could not {what} (after {time.monotonic() - started:.0f} s)",
        context=tail,
        hint="pip must reach a package index (see its settings) and python3-venv must be installed" + _ELSE,
    )


def _venv_failure(said: Sequence[str]) -> MlbundleError | None:
    if not any("ensurepip" in line for line in said):
        return None
    return PythonEnvironmentFailed(
        f"{sys.executable} has neither pip nor ensurepip, so nothing can be installed",
        context=list(said)[-TAIL_LINES:],
        hint="install python3-venv or python3-pip" + _ELSE,
    )


def _pip_failure(said: Sequence[str], lock: Path) -> MlbundleError | None:
    wrong = requirements.hash_mismatch(said, lock.name)
    missing = requirements.not_found(said)
    if wrong is not None or missing is None:
        return wrong
    hint = requirements.index_hint(lock) or (
        "pip must reach a package index (see `pip config list`; PIP_INDEX_URL, PIP_FIND_LINKS)"
    )
    return PythonEnvironmentFailed(
        f"no package index that pip knows has {missing} for this machine",
        where=lock.name,
        context=list(said)[-TAIL_LINES:],
        hint=hint + _ELSE,
    )


def _clean_variables() -> dict[str, str]:
    """Return our environment without what would make pip install elsewhere or believe that things are there."""
    kept = {n: v for n, v in os.environ.items() if n not in _UNWANTED and not n.startswith("PYTHON")}
    # Or pip's lines would come all at once at its end.
    return {**kept, "PYTHONUNBUFFERED": "1"}
