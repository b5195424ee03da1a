"""`mlbundle tui --web`: the UI in a real browser, and what is refused to everybody else."""

from __future__ import annotations

import base64
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chromium import Chromium, chromium_program
from support import Cli, lacking
from tui_terminal import ui_command

WAIT_S = 60
# A browser, its page and the UI begin, each with all of the processor if they can have it.
FIRST_S = 180
# The terminal of the page is a canvas: what it is told to draw is what can be read.
LISTEN = """
window.heard = '';
const Plain = WebSocket;
window.WebSocket = class extends Plain {
  constructor(...rest) {
    super(...rest);
    this.addEventListener('message', async ({data}) => {
      window.heard += typeof data === 'string' ? data : new TextDecoder().decode(await new Response(data).arrayBuffer());
    });
  }
};
"""
DRAWN = """(() => {
  const layer = document.querySelector('canvas.xterm-text-layer');
  return layer ? layer.toDataURL() : '';
})()"""


@contextmanager
def served(*flags: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve the UI; gives its address and what the command says on stderr."""
    command = [*ui_command("--web", *flags)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            address = process.stderr.readline().strip()
            assert address.startswith("http://127.0.0.1:"), address
            port = int(address.rpartition(":")[2])
            _await_port(port)
            yield address, process
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) in {0, 130}


def _await_port(port: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def asked(address: str, path: str = "/", **headers: str) -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(address + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers)


def handshake(address: str, origin: str) -> int:
    """Return the status of the answer to a page that wants to speak to the UI."""
    host = address.removeprefix("http://")
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    text = (
        f"GET /ws HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nOrigin: {origin}\r\n\r\n"
    )
    name, _, port = host.partition(":")
    with socket.create_connection((name, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(text.encode())
        return int(connection.recv(1024).split()[1])


def refuses_everybody_else(address: str) -> None:
    """Check that other pages, other names and other addresses of this machine get nothing."""
    status, headers = asked(address)
    assert status == 200
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert asked(address, Host="evil.example")[0] == 403
    assert asked(address, Origin="http://evil.example")[0] == 403
    assert handshake(address, "http://evil.example") == 403
    assert handshake(address, "null") == 403
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", int(address.rpartition(":")[2])), timeout=2)


def test_the_ui_in_a_browser_and_nowhere_else(tmp_path: Path) -> None:
    program = chromium_program()
    if program is None:
        lacking("no Chromium on the PATH")
    with (
        served("--demo", "--theme", "light") as (address, process),
        Chromium(program, tmp_path / "profile") as browser,
    ):
        refuses_everybody_else(address)
        page = browser.open("about:blank")
        browser.call("Page.addScriptToEvaluateOnNewDocument", session=page._session, source=LISTEN)
        page.run(f"location.href = '{address}'")
        page.wait_for("heard.includes('digits-cnn') && heard.includes('DEMO')", "bundles", FIRST_S)
        before = page.run(DRAWN)
        page.run("document.querySelector('textarea').focus()")
        page.type("3")
        page.wait_for("heard.includes('cancelled')", "runs")
        page.wait_for(f"{DRAWN} !== {before!r}", "what it draws")
        own = (address, address.replace("http", "ws"))
        # Nor would it ask if nothing kept it from asking.
        named = page.run("[...document.querySelectorAll('[href], [src]')].map(one => one.href || one.src)")
        assert [one for one in named if not one.startswith((*own, "data:"))] == []
        assert all(one.startswith(own) for one in browser.asked), browser.asked
        assert process.stderr is not None
        assert "no password" in process.stderr.readline()


def test_a_port_that_is_taken(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        outcome = cli("tui", "--web", "--port", str(taken.getsockname()[1]))
    assert outcome.status == 3
    assert "can't be had" in outcome.stderr


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'textual_serve' else find(name, *rest)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "mlbundle", "tui", "--web"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "pip install 'mlbundle[web]'" in done.stderr
