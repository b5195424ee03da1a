"""Long commands of others (pip, venv), heard line by line."""

from __future__ import annotations

import subprocess
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TAIL_LINES = 12


def call(
    command: Sequence[str], heard: Callable[[str], None], *, env: dict[str, str] | None = None
) -> tuple[int, list[str]]:
    """Run a command, give every line it writes to `heard`; returns its exit status and its last lines.

    An exception (Ctrl-C) ends the command.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                tail.append(line.rstrip())
                heard(line.strip())
        except BaseException:
            process.kill()
            raise
    return process.returncode, list(tail)
