"""Commands that begin at once: each is a process of its own, forked from one that has imported what commands import.

To start Python and import the libraries takes longer than most commands need. The standard library's fork server does
it once; what is imported lazily, and that `python -m mlbundle` starts, is seen by the tests that start it themselves.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import mlbundle

WAIT_S = 300
_LIBRARIES = ("docker", "jsonschema", "numpy", "requests", "yaml")
# These are looked at by Python itself when it starts.
_OF_THE_INTERPRETER = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_")


def is_warm(env: dict[str, str]) -> bool:
    """Whether a command in this environment (what is other than here) can do without a Python of its own."""
    return not any(name.startswith(_OF_THE_INTERPRETER) for name in env)


def run_warm(arguments: list[str], env: dict[str, str], cwd: Path, folder: Path) -> tuple[int, str, str]:
    """Run `mlbundle` with arguments; returns its status and what it wrote, by way of two files in a folder.

    Raises TimeoutError after five minutes.
    """
    paths = folder / "stdout", folder / "stderr"
    process = _context().Process(target=_command, args=(arguments, env, cwd, *paths))
    process.start()
    process.join(WAIT_S)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"mlbundle {' '.join(arguments)} goes on after {WAIT_S} s")
    stdout, stderr = (path.read_bytes().decode() for path in paths)
    return process.exitcode, stdout, stderr


@cache
def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_LIBRARIES, *_modules(Path(mlbundle.__file__).parent)])
    return context


def _modules(package: Path) -> Iterator[str]:
    """The modules that commands import, by name."""
    for file in sorted(package.rglob("*.py")):
        parts = (package.name, *file.relative_to(package).with_suffix("").parts)
        if parts[1] != "worker" and parts[-1] not in {"__init__", "__main__"}:
            yield ".".join(parts)


def _command(arguments: list[str], env: dict[str, str], cwd: Path, stdout: Path, stderr: Path) -> None:
    from mlbundle.cli import main

    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for number, path in ((0, Path(os.devnull)), (1, stdout), (2, stderr)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = [main.__file__, *arguments]
    try:
        main.main()
    finally:
        # What multiprocessing's children leave out, and a command's own process does.
        atexit._run_exitfuncs()
