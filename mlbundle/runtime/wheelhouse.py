"""Wheels for an image, downloaded on the host: the build itself then needs no network.

`<cache>/wheels/<hash of lock and target>`: filled under a temporary name, renamed when complete.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlbundle.errors import ImageBuildFailed
from mlbundle.files import locked, storage_failed
from mlbundle.runtime.commands import TAIL_LINES, call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "ppc64le": "ppc64le"}
_OLD_NAMES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
"""Minor version of glibc 2 -> the name that PEP 600 replaced."""


@dataclass(frozen=True)
class PythonTarget:
    """The interpreter that the wheels are for: `python` is major and minor, `glibc_minor` that of glibc 2."""

    python: tuple[int, int]
    glibc_minor: int
    architecture: str

    def platforms(self) -> Iterator[str]:
        """Yield the platform tags that fit, newest first (PEP 600)."""
        machine = _MACHINES[self.architecture]
        for minor in range(self.glibc_minor, 4, -1):
            yield f"manylinux_2_{minor}_{machine}"
            if minor in _OLD_NAMES:
                yield f"{_OLD_NAMES[minor]}_{machine}"
        yield f"linux_{machine}"


def ensure_wheelhouse(
    cache_dir: Path, lock: Path, target: PythonTarget, *, report: Callable[[str], None] = lambda _line: None
) -> Path:
    """Return a folder with every wheel that `lock` names for `target`, downloaded now if it is not there.

    pip checks the hashes, here and again inside the image. Raises ImageBuildFailed with the end of pip's output.
    """
    key = hashlib.sha256(lock.read_bytes())
    key.update(f"\n{target}".encode())
    folder = cache_dir / "wheels" / key.hexdigest()[:24]
    with locked(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            report(f"wheels for Python {_dotted(target)} are in the cache")
        else:
            report(f"downloading the wheels for Python {_dotted(target)}")
            _download(folder, lock, target, report)
    return folder


def _download(folder: Path, lock: Path, target: PythonTarget, report: Callable[[str], None]) -> None:
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="mlbundle-pip-") as scratch:
            _call([*_pip(Path(scratch)), "download", *_arguments(lock, target, temporary)], report)
        temporary.rename(folder)
    except OSError as error:
        raise storage_failed(error, temporary) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _arguments(lock: Path, target: PythonTarget, folder: Path) -> list[str]:
    platforms = [argument for tag in target.platforms() for argument in ("--platform", tag)]
    return [
        "--require-hashes",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--progress-bar=off",
        f"--python-version={_dotted(target)}",
        "--implementation=cp",
        *platforms,
        f"--dest={folder}",
        f"--requirement={lock}",
    ]


def _pip(scratch: Path) -> list[str]:
    """Return the command of a pip: ours, or one in a new environment where ours was made without."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(scratch)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        raise ImageBuildFailed(
            "there is no pip to download the wheels with",
            context=(made.stdout + made.stderr).splitlines()[-TAIL_LINES:],
            hint="install python3-venv, or name a folder of wheels with --wheelhouse",
        )
    return [str(scratch / "bin" / "python"), "-m", "pip"]


def _call(command: list[str], report: Callable[[str], None]) -> None:
    def hear(line: str) -> None:
        if line.startswith("Collecting"):
            report(line.partition(" (from ")[0].strip())

    status, tail = call(command, hear)
    if status != 0:
        raise ImageBuildFailed(
            "the wheels can't be downloaded",
            context=tail,
            hint="pip must reach a package index (see its settings), or name a folder of wheels with --wheelhouse",
        )


def _dotted(target: PythonTarget) -> str:
    return ".".join(str(part) for part in target.python)
