"""The server of one trace: who gets it, who does not, and when it was taken."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mlbundle.errors import EnvironmentLacks, UsageError
from mlbundle.trace.serving import Offer, TraceServer

CONTENT = bytes(range(256)) * 20_000
NAME = "20261121T000000Z-abcdef.pftrace.gz"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.pftrace.gz"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def server(trace: Path) -> Iterator[TraceServer]:
    with TraceServer(Offer(trace, NAME, "digits")) as running:
        yield running


def ask(
    server: TraceServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(
        method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    try:
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_who_has_the_link_gets_the_page_and_the_trace(server: TraceServer) -> None:
    root = f"/{server.offer.token}/"
    assert server.link == f"http://127.0.0.1:{server.port}{root}"
    status, headers, page = ask(server, root)
    assert status == 200
    assert b"digits" in page
    assert "default-src 'none'" in headers["content-security-policy"]
    with ThreadPoolExecutor(4) as pool:
        for status, headers, body in pool.map(lambda _: ask(server, root + NAME), range(8)):
            assert (status, body) == (200, CONTENT)
            assert "access-control-allow-origin" not in headers
            assert headers["cross-origin-resource-policy"] == "same-origin"
    assert not server.taken.is_set(), "a page that fetched it has not handed it over yet"
    assert ask(server, f"{root}taken", "POST")[0] == 204
    assert server.taken.wait(60)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        f"/{NAME}",
        "/wrong/",
        f"/wrong/{NAME}",
        "/{token}",
        "/{token}/../{token}/x",
        "/{token}/trace.pftrace.gz",
        "/{token}/ui/index.html",
        "/{token}/%2e%2e/%2e%2e/etc/passwd",
        "/{token}//etc/passwd",
        "/{token}x/",
        "/%C3%A4/",
        "http://127.0.0.1/{token}/",
    ],
)
def test_nothing_else_is_there(server: TraceServer, path: str) -> None:
    status, _, body = ask(server, path.replace("{token}", server.offer.token))
    assert (status, body) == (404, b"404 Not Found\n")


def test_taken_is_said_with_the_token_and_by_post(server: TraceServer) -> None:
    assert ask(server, "/wrong/taken", "POST")[0] == 404
    assert ask(server, f"/{server.offer.token}/taken")[0] == 404
    assert ask(server, f"/{server.offer.token}/taken", "PUT")[0] == 501
    assert not server.taken.is_set()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1]", "a b"]
)
def test_a_name_that_was_pointed_here_gets_nothing(server: TraceServer, host: str) -> None:
    assert ask(server, f"/{server.offer.token}/{NAME}", Host=host)[0] == 403


def test_another_port_of_a_tunnel_is_fine(server: TraceServer) -> None:
    for host in ("localhost:1234", "127.0.0.1:80", "LOCALHOST"):
        assert ask(server, f"/{server.offer.token}/{NAME}", Host=host)[0] == 200


def test_only_this_machine_can_ask(server: TraceServer) -> None:
    listening = Path("/proc/net/tcp").read_text().splitlines()[1:]
    mine = [line.split()[1] for line in listening if line.split()[1].endswith(f":{server.port:04X}")]
    assert mine
    assert {place.partition(":")[0] for place in mine} == {"0100007F"}


def test_by_url_the_ui_alone_may_read_it_from_its_origin(trace: Path) -> None:
    with TraceServer(Offer(trace, NAME, "digits", route="url")) as server:
        assert server.link.startswith("https://ui.perfetto.dev/#!/?url=http%3A%2F%2F127.0.0.1%3A")
        path = f"/{server.offer.token}/{NAME}"
        status, headers, _ = ask(server, path, "OPTIONS", Origin="https://ui.perfetto.dev")
        assert status == 204
        assert headers["access-control-allow-private-network"] == "true"
        assert not server.taken.is_set()
        status, headers, body = ask(server, path, Origin="https://evil.example")
        assert headers["access-control-allow-origin"] == "https://ui.perfetto.dev", (
            "the browser refuses others"
        )
        assert body == CONTENT
        assert server.taken.wait(60)


def test_names_are_text_in_the_page(trace: Path) -> None:
    title = '</script><script>alert(1)</script> & "quoted" \u2028 \ud800'
    with TraceServer(Offer(trace, NAME, title)) as server:
        _, headers, body = ask(server, f"/{server.offer.token}/")
    page = body.decode()
    assert page.count("<script") == 2
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page
    (offer,) = re.findall(r'id="offer"[^>]*>(.*?)</script>', page, re.DOTALL)
    given: dict[str, Any] = json.loads(offer)
    assert given["title"] == title
    nonce = re.search(r"script-src 'nonce-([^']+)'", headers["content-security-policy"])
    assert nonce
    assert page.count(f'nonce="{nonce[1]}"') == 3


def test_a_port_that_is_taken_is_told(trace: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EnvironmentLacks, match=f"port {port} is taken") as caught:
            TraceServer(Offer(trace, NAME, "digits"), port=port)
        assert caught.value.exit_code == 3


def test_a_client_that_goes_away_or_says_nothing_hurts_nobody(server: TraceServer) -> None:
    silent = socket.create_connection(("127.0.0.1", server.port))
    rude = socket.create_connection(("127.0.0.1", server.port))
    rude.sendall(f"GET /{server.offer.token}/{NAME} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
    rude.close()
    garbage = socket.create_connection(("127.0.0.1", server.port))
    garbage.sendall(b"\x00\xff" * 100 + b"\r\n\r\n")
    assert ask(server, f"/{server.offer.token}/{NAME}")[2] == CONTENT
    garbage.close()
    silent.close()


def test_a_file_cut_short_meanwhile_ends_too_early_for_the_browser(server: TraceServer, trace: Path) -> None:
    with trace.open("r+b") as stream:
        stream.truncate(1000)
    assert ask(server, f"/{server.offer.token}/{NAME}")[2] == CONTENT[:1000]


@pytest.mark.parametrize(
    "ui", ["ftp://a", "ui.perfetto.dev", "https://", "https://a/?b", "https://a/#c", "javascript:x"]
)
def test_what_is_no_ui_is_refused(trace: Path, ui: str) -> None:
    with pytest.raises(UsageError, match="no address of a Perfetto UI"):
        Offer(trace, NAME, "digits", ui=ui)


def test_a_trace_that_a_browser_may_have_no_room_for_is_said(
    server: TraceServer, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlbundle.cli import trace_open
    from mlbundle.runs.traces import BROWSER_BYTES, OpenTrace, StoredTrace

    stored = StoredTrace("20261121T000000Z-abcdef", Path("/nowhere"), "digits")
    for size, warned in ((BROWSER_BYTES, False), (BROWSER_BYTES + 1, True)):
        trace_open._point_to(OpenTrace(server, stored, size), browser=False)
        captured = capsys.readouterr()
        assert captured.out == f"{server.link}\n"
        assert ("may not have the memory" in captured.err) is warned
