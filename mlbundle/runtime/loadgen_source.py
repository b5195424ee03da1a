"""LoadGen's source and what compiles it, for images of platforms that have no wheel of it.

containers/loadgen/loadgen-source.lock   the source distribution
containers/loadgen/loadgen-tools.lock    what it needs to be built, as wheels
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from mlbundle.errors import ImageBuildFailed
from mlbundle.files import locked, storage_failed
from mlbundle.resources import resource_folder
from mlbundle.runtime.commands import call
from mlbundle.runtime.requirements import hash_mismatch
from mlbundle.runtime.wheelhouse import pinned, wheels_of
from mlbundle.store.cached import note_use

if TYPE_CHECKING:
    from collections.abc import Callable

_PIP = ("--disable-pip-version-check", "--no-deps", "--require-hashes", "--progress-bar=off")
_HEARD_LINES = 400


def source_locks() -> tuple[Path, Path]:
    """Return the locks of the source and of the tools."""
    folder = resource_folder("containers") / "loadgen"
    return folder / "loadgen-source.lock", folder / "loadgen-tools.lock"


def source_files(folder: Path) -> list[Path]:
    """Return what a build is given of a folder: source, tools and their locks.

    Raises ImageBuildFailed, which says what is missing.
    """
    source, tools = source_locks()
    ((name, version),) = pinned(source)
    archive = folder / f"{name.replace('-', '_')}-{version}.tar.gz"
    if not archive.is_file():
        raise ImageBuildFailed(
            f"the folder has no source of {name}=={version}",
            where=str(archive),
            hint=f"fill it with `pip download --no-deps --no-binary {name} {name}=={version}` and the tools of "
            f"{tools.name}, or leave out --wheelhouse",
        )
    return [archive, *wheels_of(folder, tools), source, tools]


def ensure_source(cache_dir: Path, report: Callable[[str], None]) -> Path:
    """Return a folder of the cache with LoadGen's source and its tools, downloaded now if they are not there.

    pip looks into a source for what it needs: with the tools of the lock and in an environment of its own, after it
    has checked the hash. Raises ImageBuildFailed with the end of pip's output, DigestMismatch, StorageFailed.
    """
    key = hashlib.sha256(b"".join(lock.read_bytes() for lock in source_locks()))
    folder = cache_dir / "wheels" / key.hexdigest()[:24]
    with locked(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            note_use(folder)
            return folder
        report("downloading the source of LoadGen")
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            with tempfile.TemporaryDirectory(prefix="mlbundle-pip-") as scratch:
                _download(temporary, Path(scratch))
            temporary.rename(folder)
        except OSError as error:
            raise storage_failed(error, temporary) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _download(folder: Path, scratch: Path) -> None:
    source, tools = source_locks()
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(scratch)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        raise ImageBuildFailed(
            "there is no pip to download the source of LoadGen with",
            context=(made.stdout + made.stderr).splitlines()[-12:],
            hint="install python3-venv, or name a folder that has it with --wheelhouse",
        )
    pip = [str(scratch / "bin" / "python"), "-m", "pip"]
    wheels = ("--only-binary=:all:", f"--requirement={tools}")
    _call([*pip, "download", *_PIP, *wheels, f"--dest={folder}"], tools)
    _call([*pip, "install", *_PIP, *wheels, "--no-index", f"--find-links={folder}"], tools)
    only_source = ("--no-build-isolation", "--no-binary=:all:", f"--requirement={source}")
    _call([*pip, "download", *_PIP, *only_source, f"--dest={folder}"], source)


def _call(command: list[str], lock: Path) -> None:
    said: deque[str] = deque(maxlen=_HEARD_LINES)
    status, tail = call(command, said.append, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    if status != 0:
        raise hash_mismatch(said, str(lock)) or ImageBuildFailed(
            "the source of LoadGen can't be downloaded",
            context=tail,
            hint="pip must reach a package index (see its settings), or name a folder that has it with --wheelhouse",
        )
