"""Started as a program: runs a command that ends when whoever started this ends, however that happens.

    python guarded.py DESCRIPTOR COMMAND...

Standard input is a pipe that the starter holds open: the system closes it also where the starter is killed. Then the
command and what it has started in its session are killed. DESCRIPTOR is of a pipe for what became of the command, two
words: `ended` and its exit status, negative for a signal, or `failed` and the `errno` of an attempt to start it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def main() -> None:
    """Run the command and tell what became of it."""
    teller, command = int(sys.argv[1]), sys.argv[2:]
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        os.write(teller, f"failed {error.errno or 0}".encode())
        return
    threading.Thread(target=_kill_when_alone, args=(process.pid,), daemon=True).start()
    os.write(teller, f"ended {process.wait()}".encode())


def _kill_when_alone(session: int) -> None:
    os.read(0, 1)
    with suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main()
