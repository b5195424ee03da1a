"""A real registry (Debian's docker-registry, distribution 2.8) on a free port of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support import lacking

from mlbundle.registry.messages import Policy

USER, PASSWORD = "ada", "count-less:secret"


@dataclass(frozen=True)
class RealRegistry:
    """Where it answers and where its files are; speaks http."""

    host: str
    folder: Path

    def blob_path(self, hexadecimal: str) -> Path:
        """The file of a blob, to damage it or to look whether it is there."""
        return self.folder / f"docker/registry/v2/blobs/sha256/{hexadecimal[:2]}/{hexadecimal}/data"


@contextlib.contextmanager
def running_registry(folder: Path, *, with_password: bool = False) -> Iterator[RealRegistry]:
    """Start a registry with its storage under `folder`; afterwards it is gone."""
    program = shutil.which("docker-registry")
    if program is None:
        lacking("docker-registry is not installed (Debian's package of that name)")
    settings: dict[str, object] = {
        "version": 0.1,
        # It says which port it was given: a free one that is chosen before may be somebody else's by then.
        "log": {"level": "info"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}},
        "http": {"addr": "127.0.0.1:0"},
    }
    if with_password:
        settings["auth"] = {"htpasswd": {"realm": "test", "path": str(_password_file(folder))}}
    # JSON is YAML.
    (folder / "config.yml").write_text(json.dumps(settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        yield RealRegistry(_host(process, folder / "log"), folder / "data")
    finally:
        process.kill()
        process.wait()


def _password_file(folder: Path) -> Path:
    if shutil.which("htpasswd") is None:
        lacking("htpasswd is not installed (Debian's apache2-utils)")
    done = subprocess.run(
        ["htpasswd", "-nbB", "-C", "4", USER, PASSWORD], capture_output=True, text=True, check=True
    )
    path = folder / "htpasswd"
    path.write_text(done.stdout.strip() + "\n")
    return path


def _host(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until it listens, and return where."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r'"listening on (127\.0\.0\.1:\d+)"', log.read_text()):
            return found[1]
        time.sleep(0.02)
    raise AssertionError(f"the registry does not start: {log.read_text()[-2000:]}")


class Blobs:
    """Blobs in memory, as a source of uploads; `read_bytes` counts what was read."""

    name = "memory"

    def __init__(self, *blobs: bytes) -> None:
        self._blobs = {hashlib.sha256(blob).hexdigest(): blob for blob in blobs}
        self.read_bytes = 0

    def size_of(self, hexadecimal: str) -> int | None:
        blob = self._blobs.get(hexadecimal)
        return None if blob is None else len(blob)

    def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
        return self._blobs[hexadecimal][offset : offset + size_bytes]

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        view[:] = self._blobs[hexadecimal][offset : offset + len(view)]
        self.read_bytes += len(view)

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        return f"{hexadecimal}, byte {offset}"

    def close(self) -> None:
        pass


def hex_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def noise(size_bytes: int, seed: int = 0) -> bytes:
    """Bytes that never repeat within a blob."""
    return random.Random(seed).randbytes(size_bytes)


HASTY = Policy(
    connect_s=120.0,
    stall_s=120.0,
    document_s=120.0,
    backoff_s=0.01,
    max_backoff_s=0.02,
    max_retry_after_s=0.3,
)
"""For tests: all that is waited for on purpose is short, and an answer has time on the slowest machine."""
