"""A real browser without a network shows the trace: in the packaged UI, and handed over from window to window."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from chromium import Chromium, Page, chromium_program
from support import command_line, lacking
from traced_run import TracedRun

from mlbundle.errors import ToolMissing
from mlbundle.trace.processor import ui_build

SHOWN = "document.querySelectorAll('.pf-track').length > 5 && document.body.innerText"
TRACKS = {"host 1", "worker 2", "phases", "pipeline", "query", "decode", "resize", "normalize", "predict"}


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Chromium]:
    program = chromium_program()
    if program is None:
        lacking("no Chromium on the PATH")
    with Chromium(program, tmp_path / "profile") as browser:
        yield browser


@pytest.fixture
def build() -> Path:
    try:
        return ui_build()
    except ToolMissing as missing:
        lacking(missing.message)


@pytest.fixture
def stand_in(build: Path) -> Iterator[str]:
    """The packaged UI at an origin of its own, in place of the public one."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(build))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@contextmanager
def opened(traced: TracedRun, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `mlbundle trace open`, without a browser of its own; yields the link."""
    process = subprocess.Popen(
        command_line("trace", "open", traced.run_id, "--no-browser", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **traced.env},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.communicate()


def assert_shows_the_trace(page: Page, traced: TracedRun) -> None:
    lines = set(page.wait_for(SHOWN, "tracks of the trace").splitlines())
    assert lines >= TRACKS, f"not shown: {TRACKS - lines}"
    assert traced.run_id in page.run("document.title")


def test_the_packaged_ui_renders_the_trace_and_asks_nobody_else(chromium, build, traced) -> None:
    with opened(traced, "--offline") as (link, process):
        assert_shows_the_trace(chromium.open(link), traced)
        assert chromium.asked, "the requests are seen"
        origin = link.removesuffix(urlsplit(link).path)
        assert [a for a in chromium.asked if not a.startswith(f"{origin}/")] == []
        assert process.poll() is None, "it goes on serving the UI"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "rror" not in stderr


def test_the_page_hands_the_trace_over_and_the_command_ends(chromium, stand_in, traced) -> None:
    with opened(traced, "--ui", stand_in) as (link, process):
        page = chromium.open(link)
        assert traced.run_id in page.wait_for("document.querySelector('h1').innerText", "title")
        # Browsers open no window for a page that the user has not touched.
        page.wait_for("!document.getElementById('open').hidden", "button")
        assert "Press the button" in page.run("document.body.innerText")
        page.press("#open")
        ui = chromium.opened_by(page)
        assert_shows_the_trace(ui, traced)
        assert process.wait(60) == 0, "it ends when the trace was taken"
        page.wait_for("document.body.innerText.includes('Perfetto has the trace')", "end on the page")
        # The bytes went from window to window: the UI never asked for them.
        assert [a for a in ui.asked if a.startswith(stand_in)], "the requests are seen"
        assert [a for a in ui.asked if a.startswith(link)] == []


def test_by_url_the_ui_fetches_the_trace_itself(chromium, stand_in, traced) -> None:
    with opened(traced, "--url", "--ui", stand_in, "--port", str(free_port())) as (link, process):
        assert link.startswith(f"{stand_in}/#!/?url=http%3A%2F%2F127.0.0.1")
        assert_shows_the_trace(chromium.open(link), traced)
        assert process.wait(60) == 0


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port
