"""Commands as forked children of a process that has imported everything: they begin with their work at once.

Run as a script this file reads a JSON list of `{"arguments": [...], "uid": null}` from stdin, starts all of them at
the same moment and prints a JSON list of `{"status", "stdout", "stderr"}`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

PACKAGES = ("bundle", "cli", "manifest", "registry", "runs", "signing", "store")
OTHERS = (
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "encodings.idna",
    "encodings.utf_8_sig",
    "jsonschema",
    "mlbundle.config",
    "urllib3",
    "yaml",
    "zoneinfo",
)


def import_everything() -> None:
    """Import what commands import while they run, so that children share it."""
    for package in PACKAGES:
        parent = importlib.import_module(f"mlbundle.{package}")
        for module in pkgutil.iter_modules(parent.__path__, f"mlbundle.{package}."):
            importlib.import_module(module.name)
    for name in OTHERS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Child:
    """A command that runs, or has run; what it writes is in `output` and `output.err`."""

    pid: int
    pidfd: int
    arguments: tuple[str, ...]
    output: Path
    started_s: float

    def kill(self) -> None:
        """End it as a power cut would."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def wait(self) -> int:
        """Return its exit status, minus the signal's number when one killed it."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        return os.waitstatus_to_exitcode(status)

    def stdout(self) -> str:
        return self.output.read_text()

    def stderr(self) -> str:
        return self.output.with_suffix(".err").read_text()


def start(arguments: Sequence[str | Path], output: Path, *, uid: int | None = None, gate: int = -1) -> Child:
    """Fork a child that runs the command; with `gate` it waits for a byte from that pipe."""
    texts = tuple(map(str, arguments))
    sys.stdout.flush()
    sys.stderr.flush()
    started_s = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _be_the_command(texts, output, uid, gate)
    return Child(pid, os.pidfd_open(pid), texts, output, started_s)


def _be_the_command(arguments: tuple[str, ...], output: Path, uid: int | None, gate: int) -> NoReturn:
    status = 99
    try:
        for number, path in ((1, output), (2, output.with_suffix(".err"))):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(descriptor, number)
            os.close(descriptor)
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        if gate >= 0:
            os.read(gate, 1)
        from mlbundle.cli.main import main

        main(arguments)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 98
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def all_at_once(orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Start all commands at the same moment and return what became of them."""
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        children = [
            start(order["arguments"], Path(folder) / f"{number}.out", uid=order.get("uid"), gate=reading)
            for number, order in enumerate(orders)
        ]
        os.write(writing, b"!" * len(children))
        return [
            {"status": child.wait(), "stdout": child.stdout(), "stderr": child.stderr()} for child in children
        ]


if __name__ == "__main__":
    wanted = json.load(sys.stdin)
    import_everything()
    print(json.dumps(all_at_once(wanted)))
