"""Wheels for an image, downloaded on the host: the build itself then needs no network.

`<cache>/wheels/<hash of lock and target>`: filled under a temporary name, renamed when complete.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlbundle.errors import ImageBuildFailed, StorageFailed
from mlbundle.files import locked, storage_failed
from mlbundle.runtime.commands import TAIL_LINES, call
from mlbundle.runtime.requirements import hash_mismatch, index_hint, not_found
from mlbundle.store.cached import note_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "ppc64le": "ppc64le"}
_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
_FULL = "No space left on device"
_HEARD_LINES = 400
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

    pip checks the hashes, here and again inside the image. Raises ImageBuildFailed with the end of pip's output,
    DigestMismatch for a wheel with other bytes than the lock states, StorageFailed on a full disk.
    """
    key = hashlib.sha256(lock.read_bytes())
    key.update(f"\n{target}".encode())
    folder = cache_dir / "wheels" / key.hexdigest()[:24]
    with locked(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            report(f"wheels for Python {_dotted(target)} are in the cache")
            note_use(folder)
        else:
            report(f"downloading the wheels for Python {_dotted(target)}")
            _download(folder, lock, target, report)
    return folder


def wheels_of(folder: Path, lock: Path) -> list[Path]:
    """Return the wheels in a folder that a lock names, in order of name; others may lie there too.

    Raises ImageBuildFailed, which lists what is missing.
    """
    from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
    from packaging.version import Version

    wanted = {(canonicalize_name(name), Version(version)) for name, version in pinned(lock)}
    found, there = [], set()
    for path in sorted(folder.glob("*.whl")):
        try:
            requirement = parse_wheel_filename(path.name)[:2]
        except InvalidWheelFilename:
            continue
        if requirement in wanted:
            found.append(path)
            there.add(requirement)
    missing = sorted(f"{name}=={version}" for name, version in wanted - there)
    if missing:
        raise ImageBuildFailed(
            f"the folder has no wheel of {', '.join(missing[:8])}{', …' if len(missing) > 8 else ''}",
            where=str(folder),
            hint="fill it with `pip download --require-hashes --no-deps --only-binary :all:` and the lock, or leave "
            "out --wheelhouse",
        )
    return found


def pinned(lock: Path) -> list[tuple[str, str]]:
    """Return name and version of every distribution that a lock names."""
    return _PINNED.findall(lock.read_text("utf-8"))


def forget(cache_dir: Path, folder: Path) -> bool:
    """Remove a wheelhouse of the cache that turned out to be damaged; False for any other folder."""
    if folder.parent != cache_dir / "wheels":
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _download(folder: Path, lock: Path, target: PythonTarget, report: Callable[[str], None]) -> None:
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="mlbundle-pip-") as scratch:
            command = [*_pip(Path(scratch)), "download", *_arguments(lock, target, temporary)]
            _call(command, lock, temporary, report)
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


def _call(command: list[str], lock: Path, folder: Path, report: Callable[[str], None]) -> None:
    said: deque[str] = deque(maxlen=_HEARD_LINES)
    progress = _Progress(len(pinned(lock)), report)

    def hear(line: str) -> None:
        said.append(line)
        progress.hear(line)

    # Or pip's lines would come all at once at its end.
    status, tail = call(command, hear, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    if status == 0:
        return
    if any(_FULL in line for line in said):
        raise StorageFailed(
            "the disk is full, and the wheels are not all here",
            where=str(folder.parent),
            context=tail,
            hint="free some space (pip also needs some in the system's temporary folder), or set MLBUNDLE_HOME to a "
            "folder with more",
        )
    raise hash_mismatch(said, str(lock)) or _not_downloaded(not_found(said), lock, tail)


def _not_downloaded(missing: str | None, lock: Path, tail: list[str]) -> ImageBuildFailed:
    what = (
        "the wheels can't be downloaded" if missing is None else f"pip finds no wheel of {missing} that fits"
    )
    advice = "pip must reach a package index (see its settings), or name a folder of wheels with --wheelhouse"
    elsewhere = index_hint(lock)
    return ImageBuildFailed(what, context=tail, hint=f"{elsewhere}; {advice}" if elsewhere else advice)


class _Progress:
    """Turns what pip says into a line for each distribution, and one for each file of weight."""

    def __init__(self, total: int, report: Callable[[str], None]) -> None:
        self._total = total
        self._report = report
        self._number = 0

    def hear(self, line: str) -> None:
        """Take a line of pip's, of which one begins each distribution and others name files and their sizes."""
        verb, _, rest = line.partition(" ")
        if verb in {"Collecting", "Processing"}:
            self._number += 1
            name = rest.partition(" (from ")[0].rpartition("/")[2]
            self._report(f"({self._number}/{self._total}) {name}")
        elif verb in {"Downloading", "Using"} and rest.endswith(" MB)"):
            self._report(f"  {verb.lower()} {rest.rpartition('/')[2]}")


def _dotted(target: PythonTarget) -> str:
    return ".".join(str(part) for part in target.python)
