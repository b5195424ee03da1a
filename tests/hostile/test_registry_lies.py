"""Registries and web servers that lie, stall, cut and lead astray: a typed error in time, nothing taken in.

Everything here is about what a server may not do to its client; credentials in particular stay with the registry.
"""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lying_registry import Exchange, LyingRegistry, Script, make_certificate
from registry_fixture import HASTY, Blobs, hex_of, noise

from mlbundle.bundle.oci import INDEX_TYPE, MANIFEST_TYPE
from mlbundle.errors import (
    BundleCorrupt,
    DigestMismatch,
    MlbundleError,
    ReferenceNotFound,
    RegistryAnswerInvalid,
    RegistryDenied,
    RegistryUnavailable,
    UsageError,
)
from mlbundle.registry import upload
from mlbundle.registry.client import RegistryClient
from mlbundle.registry.credentials import Credentials
from mlbundle.registry.transfer import BlobOrder, fetch_blob, fetch_many
from mlbundle.registry.web import HEAD_BYTES, WebFile
from mlbundle.store.blobs import BlobStore

Serve = Callable[..., LyingRegistry]
Connect = Callable[..., RegistryClient]
DATA = noise(3 << 20, seed=40)
ORDER = BlobOrder(hex_of(DATA), len(DATA))
SECRET = "sesame-open"
LOGIN = Credentials("ada", SECRET)
BASIC = LOGIN.basic()
LIMIT_S = 60.0
"""More than anything here takes on a slow machine, and less than whoever waits for nothing would wait."""


@pytest.fixture(autouse=True)
def in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No proxies, no credentials of this machine, and an end in time."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < LIMIT_S


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[LyingRegistry] = []

    def make(script: Script, certificate: tuple[Path, Path] | None = None) -> LyingRegistry:
        servers.append(LyingRegistry(script, certificate))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def connect(certificate: tuple[Path, Path]) -> Iterator[Connect]:
    clients: list[RegistryClient] = []

    def make(server: LyingRegistry, **settings: Any) -> RegistryClient:
        settings = {
            "plain_http": server.certificate is None,
            "ca_file": certificate[0],
            "user_agent": "mlbundle/test",
            "policy": HASTY,
            **settings,
        }
        clients.append(RegistryClient(server.host, "lab/mini", **settings))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "data")


def sequence(*scripts: Script) -> Script:
    """Answer each request by the next script, the last one again and again."""
    left = list(scripts)

    def run(exchange: Exchange) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(exchange)

    return run


def status(code: int, **headers: Any) -> Script:
    return lambda exchange: exchange.answer(code, b"", {k.replace("_", "-"): v for k, v in headers.items()})


def honest(data: bytes = DATA) -> Script:
    return lambda exchange: exchange.serve(data)


def half_then(after: Callable[[Exchange], None], data: bytes = DATA) -> Script:
    """Announce all, send half, then misbehave."""

    def run(exchange: Exchange) -> None:
        exchange.head(200, {"Content-Length": len(data)})
        exchange.send(data[: len(data) // 2])
        after(exchange)

    return run


def refused(kind: type[MlbundleError], exit_code: int, action: Callable[[], object]) -> MlbundleError:
    """Check that an action ends with a typed error that says where, without a secret in it."""
    with pytest.raises(kind) as caught:
        action()
    error = caught.value
    assert error.exit_code == exit_code
    assert error.where
    assert SECRET not in json.dumps(error.to_document())
    return error


# Blobs


def test_other_bytes(serve: Serve, connect: Connect, store: BlobStore) -> None:
    client = connect(serve(honest(noise(len(DATA), seed=41))))
    refused(DigestMismatch, 5, lambda: fetch_blob(client, ORDER, store))
    assert store.size_of(ORDER.hex) is None


def test_other_bytes_after_a_cut(serve: Serve, connect: Connect, store: BlobStore) -> None:
    client = connect(serve(sequence(half_then(Exchange.cut), honest(noise(len(DATA), seed=41)))))
    refused(DigestMismatch, 5, lambda: fetch_blob(client, ORDER, store))
    assert store.size_of(ORDER.hex) is None


def test_one_wrong_part_is_fetched_again_alone(serve: Serve, connect: Connect, store: BlobStore) -> None:
    damaged = bytearray(DATA)
    damaged[(1 << 20) + 5] ^= 1
    server = serve(sequence(honest(bytes(damaged)), honest()))
    parts = tuple(hex_of(DATA[start : start + (1 << 20)]) for start in range(0, len(DATA), 1 << 20))
    fetch_blob(connect(server), replace(ORDER, chunks=parts), store, chunk_bytes=1 << 20)
    assert store.read_at(ORDER.hex, 0, len(DATA)) == DATA
    assert server.asked[1].headers["range"] == f"bytes={1 << 20}-{len(DATA) - 1}"
    assert len(server.asked) == 2


def test_a_cut_is_survived(serve: Serve, connect: Connect, store: BlobStore) -> None:
    server = serve(sequence(half_then(Exchange.cut), honest()))
    fetch_blob(connect(server), ORDER, store)
    assert store.read_at(ORDER.hex, 0, len(DATA)) == DATA
    assert server.asked[1].headers["range"].startswith("bytes=")


def test_a_server_that_ignores_ranges(serve: Serve, connect: Connect, store: BlobStore) -> None:
    server = serve(sequence(half_then(Exchange.cut), lambda exchange: exchange.serve(DATA, ranges=False)))
    fetch_blob(connect(server), ORDER, store)
    assert store.read_at(ORDER.hex, 0, len(DATA)) == DATA


def test_a_stall(serve: Serve, connect: Connect, store: BlobStore) -> None:
    client = connect(serve(half_then(Exchange.hang)), policy=replace(HASTY, stall_s=0.1))
    error = refused(RegistryUnavailable, 3, lambda: fetch_blob(client, ORDER, store))
    assert "0.1 s" in error.message
    assert store.size_of(ORDER.hex) is None


def test_no_answer_at_all(serve: Serve, connect: Connect) -> None:
    client = connect(serve(Exchange.hang), policy=replace(HASTY, stall_s=0.1))
    error = refused(RegistryUnavailable, 3, lambda: client.get_manifest("1"))
    assert "timed out" in error.message


@pytest.mark.parametrize(
    "said",
    ["bytes 0-99/3145728", "bytes 5-104/200", "bytes 5-105/3145728", "5-104/3145728", "bytes */3145728", ""],
)
def test_a_wrong_content_range(serve: Serve, connect: Connect, said: str) -> None:
    client = connect(serve(lambda exchange: exchange.answer(206, DATA[5:105], {"Content-Range": said})))
    refused(
        RegistryAnswerInvalid, 5, lambda: list(client.read_blob(ORDER.hex, 5, 100, total_bytes=len(DATA)))
    )


@pytest.mark.parametrize("size_bytes", [len(DATA) - 1, len(DATA) + 1])
def test_a_blob_of_another_size(serve: Serve, connect: Connect, store: BlobStore, size_bytes: int) -> None:
    client = connect(serve(honest((DATA + b"x")[:size_bytes])))
    refused(RegistryAnswerInvalid, 5, lambda: fetch_blob(client, ORDER, store))
    assert store.size_of(ORDER.hex) is None


def test_an_endless_blob(serve: Serve, connect: Connect, store: BlobStore) -> None:
    served: list[Exchange] = []

    def endless(exchange: Exchange) -> None:
        served.append(exchange)
        exchange.head(200, {"Connection": "close"})
        for _ in range(300):
            exchange.send(bytes(1 << 20))

    client = connect(serve(endless))
    refused(DigestMismatch, 5, lambda: fetch_blob(client, ORDER, store))
    assert served[0].sent_bytes < 50 << 20


def test_a_blob_that_is_not_there(serve: Serve, connect: Connect, store: BlobStore) -> None:
    refused(RegistryAnswerInvalid, 5, lambda: fetch_blob(connect(serve(status(404))), ORDER, store))


def test_the_first_error_stops_the_others(serve: Serve, connect: Connect, store: BlobStore) -> None:
    def script(exchange: Exchange) -> None:
        if ORDER.hex in exchange.path:
            time.sleep(0.1)
            exchange.answer(404)
        else:
            half_then(Exchange.hang)(exchange)

    orders = [ORDER, *(BlobOrder(f"{n:064x}", len(DATA)) for n in range(6))]
    client = connect(serve(script))
    refused(RegistryAnswerInvalid, 5, lambda: fetch_many(client, orders, store))
    assert client.transport.check_halt() is None


def test_an_interrupt_stops_all(serve: Serve, connect: Connect, store: BlobStore) -> None:
    client = connect(serve(half_then(Exchange.hang)))

    def interrupt(done_bytes: int, _total_bytes: int) -> None:
        if done_bytes:
            raise KeyboardInterrupt

    orders = [BlobOrder(f"{n:064x}", len(DATA)) for n in range(6)]
    with pytest.raises(KeyboardInterrupt):
        fetch_many(client, orders, store, interrupt)


# Redirects


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_credentials_stay_when_led_to_another_host(
    serve: Serve, connect: Connect, store: BlobStore, code: int
) -> None:
    other = serve(honest())

    def script(exchange: Exchange) -> None:
        if "authorization" not in exchange.headers:
            exchange.answer(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        else:
            exchange.answer(code, headers={"Location": f"{other.url}/elsewhere"})

    server = serve(script)
    fetch_blob(connect(server, credentials=LOGIN), ORDER, store)
    assert store.size_of(ORDER.hex) == len(DATA)
    assert server.saw(BASIC)
    assert "authorization" not in other.asked[0].headers


def test_credentials_do_not_come_back_on_a_detour(serve: Serve, connect: Connect) -> None:
    def script(exchange: Exchange) -> None:
        if exchange.path == "/final":
            exchange.serve(DATA)
        elif "authorization" not in exchange.headers:
            exchange.answer(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        else:
            exchange.answer(307, headers={"Location": f"{other.url}/"})

    server = serve(script)
    other = serve(lambda exchange: exchange.answer(307, headers={"Location": f"{server.url}/final"}))
    list(connect(server, credentials=LOGIN).read_blob(ORDER.hex, 0, 100))
    assert "authorization" not in server.asked[-1].headers


def test_a_challenge_of_another_host_gets_nothing(serve: Serve, connect: Connect) -> None:
    other = serve(lambda e: e.answer(401, headers={"WWW-Authenticate": 'Basic realm="gimme"'}))
    server = serve(lambda e: e.answer(307, headers={"Location": f"{other.url}/blob"}))
    client = connect(server, credentials=LOGIN)
    refused(RegistryDenied, 3, lambda: list(client.read_blob(ORDER.hex, 0, 100)))
    assert not other.saw(BASIC)
    assert len(other.asked) == 1


def test_never_from_https_to_http(
    serve: Serve, connect: Connect, store: BlobStore, certificate: tuple[Path, Path]
) -> None:
    other = serve(honest())
    server = serve(lambda e: e.answer(307, headers={"Location": f"{other.url}/"}), certificate)
    error = refused(RegistryAnswerInvalid, 5, lambda: fetch_blob(connect(server), ORDER, store))
    assert "http" in error.message
    assert other.asked == []


def test_https_with_a_known_ca_works_and_else_not(
    serve: Serve, connect: Connect, store: BlobStore, certificate: tuple[Path, Path]
) -> None:
    server = serve(honest(), certificate)
    # Trying again would not help: there is no pause.
    stranger = connect(server, ca_file=None, policy=replace(HASTY, backoff_s=600.0, max_backoff_s=600.0))
    error = refused(RegistryUnavailable, 3, lambda: fetch_blob(stranger, ORDER, store))
    assert "--ca-file" in str(error.hint)
    assert server.asked == []
    fetch_blob(connect(server), ORDER, store)
    assert store.size_of(ORDER.hex) == len(DATA)


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://host/", "http://user@host/", "http://[::1/", "http://h:99999/", ""],
)
def test_impossible_locations(serve: Serve, connect: Connect, location: str) -> None:
    client = connect(serve(status(307, Location=location)))
    refused(RegistryAnswerInvalid, 5, lambda: client.get_manifest("1"))


def test_redirects_in_a_circle(serve: Serve, connect: Connect) -> None:
    server = serve(lambda exchange: exchange.answer(307, headers={"Location": exchange.path}))
    refused(RegistryAnswerInvalid, 5, lambda: connect(server).get_manifest("1"))
    assert len(server.asked) == 6


def test_a_put_is_not_led_elsewhere(serve: Serve, connect: Connect) -> None:
    other = serve(status(201))
    client = connect(serve(lambda e: (e.read_body(), e.answer(307, headers={"Location": f"{other.url}/"}))))
    refused(RegistryAnswerInvalid, 5, lambda: client.put_manifest("1", MANIFEST_TYPE, b"{}"))
    assert other.asked == []


# Errors that pass, and those that do not


def test_errors_that_pass(serve: Serve, connect: Connect) -> None:
    server = serve(sequence(status(500), status(502), Exchange.cut, status(503), honest(b"{}")))
    assert connect(server).get_manifest("1").data == b"{}"


def test_errors_that_do_not_pass(serve: Serve, connect: Connect) -> None:
    server = serve(status(503))
    refused(RegistryUnavailable, 3, lambda: connect(server).get_manifest("1"))
    assert len(server.asked) == HASTY.tries


@pytest.mark.parametrize("asked", ["1", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_retry_after_is_honoured_up_to_the_cap(serve: Serve, connect: Connect, asked: str) -> None:
    server = serve(sequence(status(429, Retry_After=asked), honest(b"{}")))
    begun = time.monotonic()
    connect(server).get_manifest("1")
    assert time.monotonic() - begun >= HASTY.max_retry_after_s


def test_a_retry_after_that_is_none(serve: Serve, connect: Connect) -> None:
    server = serve(sequence(status(429, Retry_After="soon"), honest(b"{}")))
    assert connect(server).get_manifest("1").data == b"{}"


def test_the_proxy_of_the_environment(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, proxy = serve(honest(b"{}")), serve(honest(b"[1]"))
    monkeypatch.setenv("http_proxy", proxy.url.replace("//", f"//ada:{SECRET}@"))
    assert connect(server).get_manifest("1").data == b"[1]"
    assert proxy.asked[0].path == f"{server.url}/v2/lab/mini/manifests/1"
    assert proxy.asked[0].headers["proxy-authorization"] == BASIC
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert connect(server).get_manifest("1").data == b"{}"
    assert not server.saw("proxy-authorization")


def test_a_proxy_that_is_not_there(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(honest(b"{}"))
    monkeypatch.setenv("http_proxy", f"http://ada:{SECRET}@127.0.0.1:1")
    error = refused(RegistryUnavailable, 3, lambda: connect(server).get_manifest("1"))
    assert "HTTP_PROXY" in str(error.hint)
    assert server.asked == []


@pytest.mark.parametrize(
    ("code", "name", "kind", "exit_code"),
    [
        (403, "DENIED", RegistryDenied, 3),
        (400, "UNAUTHORIZED", RegistryDenied, 3),
        (404, "NAME_UNKNOWN", ReferenceNotFound, 2),
        (400, "MANIFEST_INVALID", RegistryDenied, 3),
        (413, "", RegistryDenied, 3),
        (507, "", RegistryUnavailable, 3),
        (200, "", RegistryAnswerInvalid, 5),
    ],
)
def test_a_registry_that_says_no_is_quoted(
    serve: Serve, connect: Connect, code: int, name: str, kind: type[MlbundleError], exit_code: int
) -> None:
    words = json.dumps({"errors": [{"code": name, "message": "because"}, 5]} if name else []).encode()
    client = connect(serve(lambda e: (e.read_body(), e.answer(code, words))))
    error = refused(kind, exit_code, lambda: client.put_manifest("1", MANIFEST_TYPE, b"{}"))
    assert error.context == ((f"{name}: because",) if name else ())


def test_connections_are_used_again(serve: Serve, connect: Connect) -> None:
    def script(exchange: Exchange) -> None:
        if "blobs" in exchange.path:
            exchange.serve(DATA)
        else:
            exchange.answer(404, b"no such thing")

    server = serve(script)
    client = connect(server)
    for _ in range(3):
        assert client.blob_size(ORDER.hex) == len(DATA)
        assert client.head_manifest("1") is None
        assert client.tags() == ()
        assert b"".join(client.read_blob(ORDER.hex, 5, 100)) == DATA[5:105]
        with pytest.raises(ReferenceNotFound):
            client.get_manifest("1")
    assert len({asked.port for asked in server.asked}) == 1


# Documents


def test_compressed_answers_are_refused(serve: Serve, connect: Connect) -> None:
    bomb = gzip.compress(bytes(20 << 20))
    client = connect(serve(lambda e: e.answer(200, bomb, {"Content-Encoding": "gzip"})))
    error = refused(RegistryAnswerInvalid, 5, lambda: client.get_manifest("1"))
    assert "gzip" in error.message


@pytest.mark.parametrize("announced", [None, 10 << 30])
def test_an_endless_manifest(serve: Serve, connect: Connect, announced: int | None) -> None:
    served: list[Exchange] = []

    def endless(exchange: Exchange) -> None:
        served.append(exchange)
        exchange.head(200, {"Connection": "close"} if announced is None else {"Content-Length": announced})
        for _ in range(300):
            exchange.send(bytes(1 << 20))

    client = connect(serve(endless))
    tracemalloc.start()
    try:
        refused(RegistryAnswerInvalid, 5, lambda: client.get_manifest("1"))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 32 << 20
    assert served[0].sent_bytes < 50 << 20


def test_a_manifest_that_drips(serve: Serve, connect: Connect) -> None:
    def drip(exchange: Exchange) -> None:
        exchange.head(200, {"Content-Length": 1000})
        for _ in range(1000):
            exchange.send(b" ")
            time.sleep(0.02)

    client = connect(serve(drip), policy=replace(HASTY, document_s=0.2))
    refused(RegistryUnavailable, 3, lambda: client.get_manifest("1"))


def test_a_manifest_with_another_digest(serve: Serve, connect: Connect) -> None:
    asked_for = f"sha256:{hex_of(b'{}')}"
    client = connect(serve(honest(b"{ }")))
    refused(DigestMismatch, 5, lambda: client.get_manifest(asked_for))
    lying = connect(serve(lambda e: e.answer(200, b"{ }", {"Docker-Content-Digest": asked_for})))
    refused(DigestMismatch, 5, lambda: lying.get_manifest("1"))
    refused(DigestMismatch, 5, lambda: lying.get_manifest(asked_for))
    other = connect(serve(lambda e: e.answer(200, b"", {"Docker-Content-Digest": "sha256:xyz"})))
    refused(RegistryAnswerInvalid, 5, lambda: other.head_manifest("1"))


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(1000)) + b"\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 9999 What\r\n\r\n",
    ],
    ids=["long", "many", "ssh", "status"],
)
def test_heads_that_are_none(serve: Serve, connect: Connect, raw: bytes) -> None:
    def script(exchange: Exchange) -> None:
        exchange.send(raw)
        exchange.cut()

    server = serve(script)
    refused(RegistryAnswerInvalid, 5, lambda: connect(server).get_manifest("1"))
    assert len(server.asked) == 1


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 30, "5, 6"])
def test_lengths_that_are_none(serve: Serve, connect: Connect, length: str) -> None:
    def script(exchange: Exchange) -> None:
        exchange.head(200, {"Content-Length": length})
        exchange.cut()

    client = connect(serve(script))
    refused(RegistryAnswerInvalid, 5, lambda: client.blob_size(ORDER.hex))


DOCUMENTS = {
    "no-json": b"<html>",
    "deep": b"[" * 100_000,
    "twice": b'{"manifests":[],"manifests":[]}',
    "list": b"[]",
    "no-list": b'{"manifests":{}}',
    "no-descriptor": b'{"manifests":[{"digest":"sha256:abc"}]}',
    "bad-digest": b'{"manifests":[{"mediaType":"x","digest":"sha256:../../x","size":1}]}',
    "bad-size": b'{"manifests":[{"mediaType":"x","digest":"sha256:%s","size":true}]}' % ORDER.hex.encode(),
    "bad-annotations": b'{"manifests":[{"mediaType":"x","digest":"sha256:%s","size":1,"annotations":{"a":1}}]}'
    % ORDER.hex.encode(),
}


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_lists_of_referrers_that_are_none(serve: Serve, connect: Connect, document: bytes) -> None:
    client = connect(serve(honest(document)))
    refused(RegistryAnswerInvalid, 5, lambda: client.referrers(f"sha256:{ORDER.hex}"))


def test_lists_come_in_pages_and_must_end(serve: Serve, connect: Connect) -> None:
    def pages(last: int) -> Script:
        def script(exchange: Exchange) -> None:
            page = int(exchange.path.partition("page=")[2] or 0)
            following = (
                {"Link": f'</v2/lab/mini/tags/list?page={page + 1}>; rel="next"'} if page < last else {}
            )
            exchange.answer(200, json.dumps({"tags": [f"v{page}"]}).encode(), following)

        return script

    assert connect(serve(pages(2))).tags() == ("v0", "v1", "v2")
    endless = serve(pages(10**9))
    refused(RegistryAnswerInvalid, 5, lambda: connect(endless).tags())
    assert len(endless.asked) <= 200
    astray = serve(lambda e: e.answer(200, b'{"tags":[]}', {"Link": f'<{endless.url}/x>; rel="next"'}))
    refused(RegistryAnswerInvalid, 5, lambda: connect(astray).tags())


def test_the_referrers_api_where_there_is_one(serve: Serve, connect: Connect) -> None:
    entry = {"mediaType": MANIFEST_TYPE, "digest": f"sha256:{ORDER.hex}", "size": 3, "unknown": 1}
    strange = {"mediaType": MANIFEST_TYPE, "digest": "sha512:" + "0" * 128, "size": 3}
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [strange, entry]}

    def script(exchange: Exchange) -> None:
        if exchange.method == "PUT":
            exchange.read_body()
            exchange.answer(201, headers={"OCI-Subject": f"sha256:{ORDER.hex}"})
        else:
            exchange.answer(200, json.dumps(index).encode())

    server = serve(script)
    client = connect(server)
    assert client.referrers(f"sha256:{ORDER.hex}") == (entry,)
    client.put_referrer(MANIFEST_TYPE, b"{}", f"sha256:{ORDER.hex}")
    assert server.methods() == ["GET", "PUT"], "no fallback tag is written"


# Tokens


class TokenRegistry:
    """A registry that wants bearer tokens, and its token endpoint."""

    def __init__(self, realm: str = "") -> None:
        self.realm = realm
        self.valid = "token-1"
        self.endpoint: Script = self._give

    def __call__(self, exchange: Exchange) -> None:
        if exchange.path.startswith("/token"):
            exchange.read_body()
            self.endpoint(exchange)
        elif exchange.headers.get("authorization") == f"Bearer {self.valid}":
            exchange.serve(b"{}")
        else:
            realm = self.realm or f"http://{exchange.headers['host']}/token"
            exchange.answer(401, headers={"WWW-Authenticate": f'Bearer realm="{realm}",service="reg,x"'})

    def _give(self, exchange: Exchange) -> None:
        exchange.answer(200, json.dumps({"token": self.valid, "expires_in": 60}).encode())


def test_a_token_is_fetched_once_and_anew_when_it_is_refused(serve: Serve, connect: Connect) -> None:
    registry = TokenRegistry()
    server = serve(registry)
    client = connect(server, credentials=LOGIN)
    client.get_manifest("1")
    client.get_manifest("2")
    assert [asked.path.partition("?")[0] for asked in server.asked].count("/token") == 1
    assert server.asked[1].path == "/token?service=reg%2Cx&scope=repository%3Alab%2Fmini%3Apull"
    assert server.asked[1].headers["authorization"] == BASIC
    registry.valid = "token-2"
    client.get_manifest("3")
    assert [asked.path.partition("?")[0] for asked in server.asked].count("/token") == 2


def test_an_identity_token_is_exchanged(serve: Serve, connect: Connect) -> None:
    server = serve(TokenRegistry())
    connect(server, credentials=Credentials("", "", SECRET)).get_manifest("1")
    exchanged = next(asked for asked in server.asked if asked.method == "POST")
    assert f"refresh_token={SECRET}".encode() in exchanged.body
    assert "authorization" not in exchanged.headers


def test_a_token_that_never_helps(serve: Serve, connect: Connect) -> None:
    registry = TokenRegistry()
    registry.endpoint = lambda exchange: exchange.answer(200, b'{"token":"other"}')
    server = serve(registry)
    error = refused(RegistryDenied, 3, lambda: connect(server).get_manifest("1"))
    assert "mlbundle login" in str(error.hint)
    assert len(server.asked) == 3


def test_a_token_endpoint_gets_no_more_than_the_registrys_own_credentials(
    serve: Serve, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint of a foreign registry is named: what is stored for that one stays unused."""
    foreign = serve(lambda exchange: exchange.answer(200, b'{"token":"x"}'))
    (tmp_path / "docker").mkdir()
    auths = {foreign.host: {"auth": BASIC.removeprefix("Basic ")}}
    (tmp_path / "docker/config.json").write_text(json.dumps({"auths": auths}))
    server = serve(TokenRegistry(f"{foreign.url}/token"))
    refused(RegistryDenied, 3, lambda: connect(server).get_manifest("1"))
    assert "authorization" not in foreign.asked[0].headers


def test_a_token_endpoint_that_leads_elsewhere(serve: Serve, connect: Connect) -> None:
    other = serve(lambda exchange: exchange.answer(401, headers={"WWW-Authenticate": "Basic"}))
    registry = TokenRegistry()
    registry.endpoint = lambda exchange: exchange.answer(307, headers={"Location": f"{other.url}/"})
    client = connect(serve(registry), credentials=LOGIN)
    refused(RegistryDenied, 3, lambda: client.get_manifest("1"))
    assert not other.saw(BASIC)


def test_no_credentials_to_a_token_endpoint_without_tls(
    serve: Serve, connect: Connect, certificate: tuple[Path, Path]
) -> None:
    other = serve(lambda exchange: exchange.answer(200, b'{"token":"x"}'))
    server = serve(TokenRegistry(f"{other.url}/token"), certificate)
    refused(RegistryAnswerInvalid, 5, lambda: connect(server, credentials=LOGIN).get_manifest("1"))
    assert other.asked == []


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b'{"token":5}',
        b'{"token":"a b"}',
        b'{"token":"a\\r\\nX: y"}',
        b"[]",
        b'{"token":"%s"}' % (b"x" * 100_000),
        b'{"token":"%s"}' % (b"x" * (2 << 20)),
    ],
)
def test_tokens_that_are_none(serve: Serve, connect: Connect, answer: bytes) -> None:
    registry = TokenRegistry()
    registry.endpoint = lambda exchange: exchange.answer(200, answer)
    refused(RegistryAnswerInvalid, 5, lambda: connect(serve(registry)).get_manifest("1"))


# Uploads


class Uploads:
    """A registry that takes uploads in pieces by the book, unless told otherwise."""

    def __init__(self) -> None:
        self.received = b""
        self.location = "/v2/lab/mini/blobs/uploads/1?state=x"
        self.cut_at: int | None = None
        self.patch: Script = self._patch

    def __call__(self, exchange: Exchange) -> None:
        if exchange.method == "HEAD":
            exchange.answer(404)
        elif exchange.method == "POST":
            self.received = b""
            exchange.answer(202, headers={"Location": self.location})
        elif exchange.method == "PATCH":
            self.patch(exchange)
        elif exchange.method == "GET":
            exchange.answer(204, headers=self._state())
        else:
            self.received += exchange.read_body()
            exchange.answer(201)

    def _patch(self, exchange: Exchange) -> None:
        if self.cut_at is not None and len(self.received) >= self.cut_at:
            self.cut_at = None
            self.received += exchange.read_body(1 << 20)
            exchange.cut()
            return
        assert exchange.headers["content-range"].startswith(f"{len(self.received)}-")
        self.received += exchange.read_body()
        exchange.answer(202, headers=self._state())

    def _state(self) -> dict[str, str]:
        return {"Location": self.location, "Range": f"0-{len(self.received) - 1}"}


BIG = noise(10 << 20, seed=43)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "CHUNK_BYTES", 3 << 20)


def send(client: RegistryClient, data: bytes = BIG) -> None:
    client.upload_blob(hex_of(data), len(data), Blobs(data))


def test_an_upload_goes_on_in_the_middle_of_a_piece(
    serve: Serve, connect: Connect, small_pieces: None
) -> None:
    uploads = Uploads()
    uploads.cut_at = 6 << 20
    server = serve(uploads)
    send(connect(server))
    assert uploads.received == BIG
    assert server.methods() == ["HEAD", "POST", *["PATCH"] * 3, "GET", "PATCH", "PUT"]
    assert server.asked[-1].path.startswith(f"{uploads.location}&digest=sha256%3A")


@pytest.mark.parametrize("code", [405, 416, 501])
def test_a_registry_without_pieces_gets_one(
    serve: Serve, connect: Connect, small_pieces: None, code: int
) -> None:
    uploads = Uploads()
    uploads.patch = lambda exchange: (exchange.read_body(), exchange.answer(code))  # type: ignore[assignment]
    server = serve(uploads)
    client = connect(server)
    send(client)
    assert uploads.received == BIG
    send(client)
    assert server.methods().count("PATCH") == 1, "the second blob does not try again"


def test_an_upload_on_another_host_gets_no_credentials(
    serve: Serve, connect: Connect, small_pieces: None
) -> None:
    elsewhere, uploads = Uploads(), Uploads()
    other = serve(elsewhere)
    uploads.location = elsewhere.location = f"{other.url}/up?signature=s"

    def script(exchange: Exchange) -> None:
        if "authorization" not in exchange.headers:
            exchange.answer(401, headers={"WWW-Authenticate": "Basic"})
        else:
            uploads(exchange)

    server = serve(script)
    send(connect(server, credentials=LOGIN))
    assert elsewhere.received == BIG
    assert server.saw(BASIC)
    assert not other.saw(BASIC)


def test_an_upload_is_not_led_from_https_to_http(
    serve: Serve, connect: Connect, certificate: tuple[Path, Path]
) -> None:
    other = serve(Uploads())
    uploads = Uploads()
    uploads.location = f"{other.url}/up"
    client = connect(serve(uploads, certificate))
    refused(RegistryAnswerInvalid, 5, lambda: send(client))
    assert other.asked == []


@pytest.mark.parametrize("said", ["0-99999999999", "5-10", "x", "0-4194304"])
def test_an_upload_that_is_said_to_be_elsewhere(
    serve: Serve, connect: Connect, small_pieces: None, said: str
) -> None:
    uploads = Uploads()
    uploads.patch = lambda e: (e.read_body(), e.answer(202, headers={"Location": "/x", "Range": said}))  # type: ignore[assignment]
    server = serve(uploads)
    refused(RegistryAnswerInvalid, 5, lambda: send(connect(server)))
    assert server.methods() == ["HEAD", "POST", "PATCH"]


def test_an_upload_that_never_goes_on(serve: Serve, connect: Connect, small_pieces: None) -> None:
    uploads = Uploads()
    uploads.patch = lambda e: (e.read_body(), e.answer(202, headers={"Location": "/x", "Range": "0-9"}))  # type: ignore[assignment]
    server = serve(uploads)
    refused(RegistryAnswerInvalid, 5, lambda: send(connect(server)))
    assert server.methods().count("PATCH") < 10


def test_an_upload_without_an_address(serve: Serve, connect: Connect) -> None:
    uploads = Uploads()
    uploads.location = ""
    refused(RegistryAnswerInvalid, 5, lambda: send(connect(serve(uploads)), b"small"))


def test_a_blob_that_is_stored_as_another(serve: Serve, connect: Connect) -> None:
    def script(exchange: Exchange) -> None:
        if exchange.method == "PUT":
            exchange.read_body()
            exchange.answer(201, headers={"Docker-Content-Digest": f"sha256:{ORDER.hex}"})
        else:
            Uploads()(exchange)

    refused(DigestMismatch, 5, lambda: send(connect(serve(script)), b"small"))


# Files on the web


def open_web(server: LyingRegistry, **settings: Any) -> WebFile:
    settings = {"plain_http": True, "user_agent": "mlbundle/test", "policy": HASTY, **settings}
    return WebFile(f"{server.url}/mini.mlb?signature={SECRET}", **settings)


def test_a_file_on_the_web_is_read_in_parts(serve: Serve) -> None:
    server = serve(lambda exchange: exchange.serve(DATA, headers={"ETag": '"1"'}))
    file = open_web(server)
    assert (file.size_bytes, file.read_at(0, 100), file.read_at(len(DATA), 5)) == (len(DATA), DATA[:100], b"")
    buffer = bytearray(1000)
    file.read_into(memoryview(buffer), 5000)
    assert buffer == DATA[5000:6000]
    assert len(server.asked) == 1, "the first MiB is there"
    assert file.read_at(HEAD_BYTES - 5, 10) == DATA[HEAD_BYTES - 5 : HEAD_BYTES + 5]
    file.read_into(memoryview(buffer), len(DATA) - 1000)
    assert buffer == DATA[-1000:]
    assert server.asked[1].headers["if-range"] == '"1"'
    with pytest.raises(BundleCorrupt):
        file.read_into(memoryview(buffer), len(DATA) - 999)
    file.close()
    assert SECRET not in file.name


def test_a_file_on_the_web_after_a_cut(serve: Serve) -> None:
    def cut(exchange: Exchange) -> None:
        first, last = exchange.wanted or (0, 0)
        exchange.head(
            206, {"Content-Range": f"bytes {first}-{last}/{len(DATA)}", "Content-Length": last - first + 1}
        )
        exchange.send(DATA[first : first + 1000])
        exchange.cut()

    file = open_web(serve(sequence(honest(), cut, honest())))
    assert file.read_at(2 << 20, 5000) == DATA[2 << 20 : (2 << 20) + 5000]


def test_a_small_file_without_ranges(serve: Serve) -> None:
    file = open_web(serve(lambda exchange: exchange.serve(DATA[:5000], ranges=False)))
    assert (file.size_bytes, file.read_at(4990, 100)) == (5000, DATA[4990:5000])


def test_a_large_file_without_ranges(serve: Serve) -> None:
    server = serve(lambda exchange: exchange.serve(DATA, ranges=False))
    error = refused(RegistryUnavailable, 3, lambda: open_web(server))
    assert "download" in str(error.hint)


CHANGES: dict[str, Script] = {
    "etag": lambda exchange: exchange.serve(DATA, headers={"ETag": '"2"'}),
    "date": lambda exchange: exchange.serve(DATA, headers={"ETag": '"1"', "Last-Modified": "now"}),
    "size": lambda exchange: exchange.serve(DATA + b"x", headers={"ETag": '"1"'}),
    "whole": lambda exchange: exchange.serve(DATA, headers={"ETag": '"1"'}, ranges=False),
    "part": lambda exchange: exchange.answer(
        206, DATA[:10], {"ETag": '"1"', "Content-Range": f"bytes 0-9/{len(DATA)}"}
    ),
    "gone-part": status(416),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_that_changes(serve: Serve, change: Script) -> None:
    first: Script = lambda exchange: exchange.serve(DATA, headers={"ETag": '"1"'})  # noqa: E731
    file = open_web(serve(sequence(first, change)))
    refused(RegistryAnswerInvalid, 5, lambda: file.read_at(2 << 20, 10))


def test_addresses_that_are_none(serve: Serve) -> None:
    refused(UsageError, 2, lambda: WebFile("ftp://host/x", user_agent="t"))
    refused(UsageError, 2, lambda: WebFile("http://host/x", user_agent="t"))
    refused(ReferenceNotFound, 2, lambda: open_web(serve(status(404))))
    refused(RegistryDenied, 3, lambda: open_web(serve(status(403))))
