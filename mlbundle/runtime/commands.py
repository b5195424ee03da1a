"""Long commands of others (pip, venv), heard line by line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TAIL_LINES = 12
_GUARD = Path(__file__).with_name("guarded.py")


def call(
    command: Sequence[str], heard: Callable[[str], None], *, env: dict[str, str] | None = None
) -> tuple[int, list[str]]:
    """Run a command, give every line it writes to `heard`; returns its exit status and its last lines.

    An exception (Ctrl-C) ends the command and what it has started, and so does the end of this process, a kill as well.
    Raises OSError when the command can't be started.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    told, teller = os.pipe()
    with os.fdopen(told, "rb") as outcome:
        try:
            process = _start(command, env, teller)
        finally:
            os.close(teller)
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    tail.append(line.rstrip())
                    heard(line.strip())
                process.wait()
            except BaseException:
                process.stdin.close()  # which ends the command
                process.wait()
                raise
        return _status(outcome.read(), process.returncode, command[0]), list(tail)


def _start(command: Sequence[str], env: dict[str, str] | None, teller: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_GUARD), str(teller), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
        pass_fds=(teller,),
        start_new_session=True,  # a terminal's Ctrl-C is for us, and we end the command
    )


def _status(outcome: bytes, of_guard: int, program: str) -> int:
    kind, _, number = outcome.decode("ascii").partition(" ")
    if kind == "failed":
        raise OSError(int(number), os.strerror(int(number)), program)
    return int(number) if kind == "ended" else of_guard
