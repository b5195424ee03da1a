"""A real registry (Debian's docker-registry, distribution 2.8) on a free port of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
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
    host = f"127.0.0.1:{_free_port()}"
    settings: dict[str, object] = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}},
        "http": {"addr": host},
    }
    if with_password:
        settings["auth"] = {"htpasswd": {"realm": "test", "path": str(_password_file(folder))}}
    # JSON is YAML.
    (folder / "config.yml").write_text(json.dumps(settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        _wait_for(host, process, folder / "log")
        yield RealRegistry(host, folder / "data")
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _password_file(folder: Path) -> Path:
    if shutil.which("htpasswd") is None:
        lacking("htpasswd is not installed (Debian's apache2-utils)")
    done = subprocess.run(
        ["htpasswd", "-nbB", "-C", "4", USER, PASSWORD], capture_output=True, text=True, check=True
    )
    path = folder / "htpasswd"
    path.write_text(done.stdout.strip() + "\n")
    return path


def _wait_for(host: str, process: subprocess.Popen[bytes], log: Path) -> None:
    straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and process.poll() is None:
        try:
            straight.open(f"http://{host}/v2/", timeout=2).close()
        except urllib.error.HTTPError:
            return  # it wants a password
        except OSError:
            time.sleep(0.02)
        else:
            return
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
    connect_s=60.0, stall_s=60.0, document_s=60.0, backoff_s=0.01, max_backoff_s=0.02, max_retry_after_s=0.3
)
"""Patience for tests."""
