"""Reading ahead: the same bytes with fewer requests, and never many more bytes than were wanted."""

from __future__ import annotations

import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlbundle.registry.ahead import MAX_AHEAD_BYTES, ReadAhead
from mlbundle.registry.web import HEAD_BYTES, WebFile

MIB = 1 << 20
DATA = random.Random(3).randbytes(MIB) * 70


class Far:
    """A file far away that notes what is asked of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[int] = []
        self.ahead = ReadAhead(self.fetch, len(data))

    def fetch(self, view: memoryview, offset: int) -> None:
        self.asked.append(len(view))
        view[:] = self.data[offset : offset + len(view)]

    def read(self, offset: int, size_bytes: int) -> bytes:
        buffer = bytearray(size_bytes)
        self.ahead.fill(memoryview(buffer), offset)
        return bytes(buffer)


def test_who_reads_on_asks_seldom() -> None:
    far = Far(DATA)
    assert b"".join(far.read(offset, MIB) for offset in range(0, len(DATA), MIB)) == DATA
    assert len(far.asked) <= 10
    assert max(far.asked) == MAX_AHEAD_BYTES
    assert sum(far.asked) == len(DATA)


def test_single_looks_fetch_what_they_need() -> None:
    far = Far(DATA)
    for offset in (60 * MIB, 5 * MIB, 20 * MIB, 40 * MIB, 10 * MIB):
        assert far.read(offset, 100) == DATA[offset : offset + 100]
    assert far.asked == [100] * 5


def test_several_who_read_on_do_not_disturb_each_other() -> None:
    far = Far(DATA)

    def read_part(start: int) -> bytes:
        return b"".join(far.read(start + offset, MIB) for offset in range(0, 30 * MIB, MIB))

    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(read_part, (0, 35 * MIB)))
    assert parts == [DATA[: 30 * MIB], DATA[35 * MIB : 65 * MIB]]
    assert len(far.asked) <= 16


def test_what_failed_is_asked_for_again() -> None:
    far = Far(DATA[:100])
    far.read(0, 40)
    whole, far.data = far.data, b""
    with pytest.raises(ValueError, match="different"):
        far.read(40, 20)
    far.data = whole
    assert far.read(40, 20) == whole[40:60]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 9_000)), max_size=30))
def test_any_reads_give_the_bytes_that_are_there(reads: list[tuple[int, int]]) -> None:
    far = Far(DATA[:20_000])
    for offset, wanted_bytes in reads:
        size_bytes = min(wanted_bytes, len(far.data) - offset)
        assert far.read(offset, size_bytes) == far.data[offset : offset + size_bytes]
    assert sum(far.asked) <= 2 * sum(wanted_bytes for _, wanted_bytes in reads)


def test_a_file_on_the_web_comes_in_large_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    asked: list[tuple[int, int]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            wanted = re.fullmatch(r"bytes=([0-9]+)-([0-9]+)", self.headers["Range"])
            assert wanted is not None
            first, last = int(wanted[1]), int(wanted[2])
            asked.append((first, last))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(DATA)}")
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            self.wfile.write(DATA[first : last + 1])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            file = WebFile(f"http://127.0.0.1:{server.server_port}/x", user_agent="test", plain_http=True)
            read = b"".join(file.read_at(offset, HEAD_BYTES) for offset in range(0, len(DATA), HEAD_BYTES))
            file.close()
        finally:
            server.shutdown()
            thread.join()
    assert read == DATA
    assert len(asked) <= 11
