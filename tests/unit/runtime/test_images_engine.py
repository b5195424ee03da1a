"""Which engine is talked to when none is named: the first that answers, Docker's place before Podman's."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlbundle.errors import EngineUnavailable
from mlbundle.runtime import engine as engine_module
from mlbundle.runtime.engine import engine_client, engine_name

PODMAN = {
    "Version": "4.3.1",
    "ApiVersion": "1.41",
    "Components": [{"Name": "Podman Engine", "Version": "4.3.1"}],
}


class Answers(http.server.BaseHTTPRequestHandler):
    """Enough of an engine to be asked for its version."""

    def do_GET(self) -> None:
        body = b"OK" if self.path.endswith("/_ping") else json.dumps(PODMAN).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def user_podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder of sockets with Podman's in it, on a machine without Docker."""
    socket = tmp_path / "podman" / "podman.sock"
    socket.parent.mkdir()
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    server = socketserver.ThreadingUnixStreamServer(str(socket), Answers)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield socket
    server.shutdown()
    server.server_close()


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    import docker
    import docker.errors

    def fail(**_options: object) -> None:
        raise docker.errors.DockerException("error while asking") from PermissionError(13, "not for you")

    monkeypatch.setattr(docker, "from_env", fail)


def test_podman_of_the_user_is_found_where_docker_does_not_answer(user_podman, no_docker) -> None:
    client = engine_client()
    assert engine_name(client) == "Podman 4.3.1"
    client.close()


def test_where_nothing_answers_the_first_place_says_why(user_podman, no_docker, monkeypatch) -> None:
    monkeypatch.setattr(engine_module, "_SYSTEM_SOCKETS", (Path("/nowhere/a"), Path("/nowhere/b")))
    user_podman.unlink()
    with pytest.raises(EngineUnavailable, match="may not talk"):
        engine_client()


def test_an_engine_that_is_named_is_the_only_one_asked(user_podman, monkeypatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(EngineUnavailable, match=r"unix:///nowhere/docker\.sock"):
        engine_client()


def test_podman_that_is_installed_and_does_not_listen_gets_its_own_hint(monkeypatch) -> None:
    monkeypatch.setattr(engine_module.shutil, "which", lambda name: name == "podman" or None)
    error = engine_module._unavailable(FileNotFoundError())
    assert "podman.socket" in (error.hint or "")
