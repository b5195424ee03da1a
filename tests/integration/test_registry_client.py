"""The registry client against a real registry."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from registry_fixture import HASTY, PASSWORD, USER, Blobs, RealRegistry, hex_of, noise, running_registry

from mlbundle.bundle.oci import INDEX_TYPE, MANIFEST_TYPE
from mlbundle.errors import DigestMismatch, ReferenceNotFound, RegistryDenied, RegistryUnavailable
from mlbundle.registry import upload
from mlbundle.registry.blobs import RegistryBlobs
from mlbundle.registry.client import RegistryClient, check_login
from mlbundle.registry.credentials import Credentials
from mlbundle.registry.transfer import BlobOrder, fetch_blob, fetch_many, upload_many
from mlbundle.store.blobs import BlobStore

Connect = Callable[..., RegistryClient]
EMPTY = b"{}"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def connect(registry: RealRegistry, request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Make clients of a repository of this test alone."""
    clients: list[RegistryClient] = []
    own = "test/" + "".join(c if c.isalnum() else "-" for c in request.node.name.lower()).strip("-")

    def make(repository: str = own, host: str = registry.host, **settings: Any) -> RegistryClient:
        settings = {"plain_http": True, "user_agent": "mlbundle/test", "policy": HASTY, **settings}
        client = RegistryClient(host, repository, **settings)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "data")


def manifest(client: RegistryClient, *, subject: str | None = None, **keys: Any) -> bytes:
    """A manifest that the registry takes: its config is pushed."""
    config = hex_of(EMPTY)
    client.upload_blob(config, len(EMPTY), Blobs(EMPTY))
    document: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": f"sha256:{config}", "size": 2},
        "layers": [],
        **keys,
    }
    if subject is not None:
        document["subject"] = {"mediaType": MANIFEST_TYPE, "digest": subject, "size": 2}
    return json.dumps(document).encode()


def test_what_was_pushed_comes_back(connect: Connect, store: BlobStore) -> None:
    client, data = connect(), noise(100_000)
    assert client.blob_size(hex_of(data)) is None
    assert client.upload_blob(hex_of(data), len(data), Blobs(data))
    assert client.blob_size(hex_of(data)) == len(data)
    assert fetch_blob(client, BlobOrder(hex_of(data), len(data)), store)
    assert store.read_at(hex_of(data), 0, len(data)) == data


def test_what_is_there_is_not_sent_again(connect: Connect) -> None:
    client, data = connect(), noise(1000)
    client.upload_blob(hex_of(data), len(data), Blobs(data))
    source, heard = Blobs(data), []
    assert not client.upload_blob(hex_of(data), len(data), source, lambda *told: heard.append(told))
    assert source.read_bytes == 0
    assert heard[-1] == (1000, 1000)


def test_an_empty_blob(connect: Connect, store: BlobStore) -> None:
    client = connect()
    client.upload_blob(hex_of(b""), 0, Blobs(b""))
    fetch_blob(client, BlobOrder(hex_of(b""), 0), store)
    assert store.size_of(hex_of(b"")) == 0


@pytest.mark.parametrize("in_one_piece", [False, True])
def test_a_large_blob_goes_in_pieces_or_in_one(
    connect: Connect, registry: RealRegistry, monkeypatch: pytest.MonkeyPatch, in_one_piece: bool
) -> None:
    monkeypatch.setattr(upload, "CHUNK_BYTES", 3 << 20)
    client, data = connect(), noise(8_000_001, seed=int(in_one_piece))
    client.monolithic = in_one_piece
    asked = _methods(client)
    client.upload_blob(hex_of(data), len(data), Blobs(data))
    assert registry.blob_path(hex_of(data)).read_bytes() == data
    assert asked.count("PATCH") == (0 if in_one_piece else 3)


def _methods(client: RegistryClient) -> list[str]:
    """The methods of the requests that will be sent."""
    asked: list[str] = []
    send = client.transport.send

    def listen(request: Any) -> Any:
        asked.append(request.method)
        return send(request)

    client.transport.send = listen  # type: ignore[method-assign]
    return asked


def test_wrong_bytes_are_refused_by_the_registry(connect: Connect) -> None:
    client, data = connect(), noise(5000)

    class Damaged(Blobs):
        def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
            super().read_into(hexadecimal, view, offset)
            view[0] ^= 1

    with pytest.raises(DigestMismatch, match="other bytes"):
        client.upload_blob(hex_of(data), len(data), Damaged(data))
    assert client.blob_size(hex_of(data)) is None


def test_parts_of_a_blob(connect: Connect) -> None:
    client, data = connect(), noise(5 << 20)
    client.upload_blob(hex_of(data), len(data), Blobs(data))
    blobs = RegistryBlobs(client)
    assert blobs.size_of(hex_of(data)) == len(data)
    assert blobs.size_of("0" * 64) is None
    assert blobs.read_at(hex_of(data), 7, 100) == data[7:107]
    assert blobs.read_at(hex_of(data), len(data) - 5, 100) == data[-5:]
    buffer = bytearray(3 << 20)
    blobs.read_into(hex_of(data), memoryview(buffer), 12345)
    assert buffer == data[12345 : 12345 + len(buffer)]


def test_a_document_is_fetched_once(connect: Connect) -> None:
    client, data = connect(), noise(3000)
    client.upload_blob(hex_of(data), len(data), Blobs(data))
    blobs = RegistryBlobs(client)
    assert blobs.read_at(hex_of(data), 0, 10) == data[:10]
    asked = _methods(client)
    assert blobs.read_at(hex_of(data), 10, 3000) == data[10:]
    assert blobs.read_at(blobs.add_document(b"a manifest"), 2, 100) == b"manifest"
    assert asked == []


def test_a_blob_of_another_repository_is_mounted(connect: Connect) -> None:
    one, two, data = connect(), connect("test/mounted"), noise(2000, seed=2)
    one.upload_blob(hex_of(data), len(data), Blobs(data))
    assert two.blob_size(hex_of(data)) is None
    assert not two.mount_blob("0" * 64, one.reference.repository)
    assert two.mount_blob(hex_of(data), one.reference.repository)
    assert two.blob_size(hex_of(data)) == len(data)


def test_manifests_by_tag_and_digest(connect: Connect) -> None:
    client = connect()
    data = manifest(client)
    assert client.tags() == ()
    assert client.head_manifest("1.0.0") is None
    digest = client.put_manifest("1.0.0", MANIFEST_TYPE, data)
    for reference in ("1.0.0", digest):
        found = client.get_manifest(reference)
        assert (found.media_type, found.digest, found.data) == (MANIFEST_TYPE, digest, data)
        assert client.head_manifest(reference) == digest
    assert client.tags() == ("1.0.0",)
    with pytest.raises(ReferenceNotFound, match="no manifest v2"):
        client.get_manifest("v2")


def test_referrers_by_the_tag_where_the_registry_has_no_api(connect: Connect) -> None:
    client = connect()
    subject = client.put_manifest("1", MANIFEST_TYPE, manifest(client))
    assert client.referrers(subject) == ()
    annotations = {"b": "2", "a": "1"}
    first = manifest(client, subject=subject, artifactType="application/x.sig", annotations=annotations)
    second = manifest(client, subject=subject)
    for data in (first, second, first):
        client.put_referrer(MANIFEST_TYPE, data, subject)
    one, two = client.referrers(subject)
    assert one == {
        "mediaType": MANIFEST_TYPE,
        "digest": f"sha256:{hex_of(first)}",
        "size": len(first),
        "artifactType": "application/x.sig",
        "annotations": annotations,
    }
    assert two["artifactType"] == "application/vnd.oci.empty.v1+json"
    assert client.get_manifest(subject.replace(":", "-"), (INDEX_TYPE,)).media_type == INDEX_TYPE


def test_clients_at_once_lose_no_referrer_of_one_client(connect: Connect) -> None:
    client = connect()
    subject = client.put_manifest("1", MANIFEST_TYPE, manifest(client))
    found = [manifest(client, subject=subject, annotations={"n": str(n)}) for n in range(4)]
    threads = [
        threading.Thread(target=client.put_referrer, args=(MANIFEST_TYPE, data, subject)) for data in found
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {entry["digest"] for entry in client.referrers(subject)} == {f"sha256:{hex_of(d)}" for d in found}


def test_many_blobs_both_ways(connect: Connect, store: BlobStore) -> None:
    client = connect()
    blobs = [noise(200_000 + n, seed=n) for n in range(9)]
    orders = [BlobOrder(hex_of(blob), len(blob)) for blob in blobs]
    heard: list[tuple[int, int]] = []
    upload_many(client, [*orders, orders[0]], Blobs(*blobs))
    fetch_many(client, orders, store, lambda *told: heard.append(told))
    assert [store.read_at(order.hex, 0, order.size_bytes) for order in orders] == blobs
    total = sum(map(len, blobs))
    assert heard[-1] == (total, total)
    assert sorted(heard) == heard


def test_blobs_are_mounted_where_another_repository_has_them(connect: Connect) -> None:
    one, two = connect(), connect("test/mounted-many")
    blobs = [noise(2000, seed=20), noise(2000, seed=21)]
    one.upload_blob(hex_of(blobs[0]), 2000, Blobs(*blobs))
    source = Blobs(*blobs)
    orders = [BlobOrder(hex_of(blob), 2000) for blob in blobs]
    upload_many(two, orders, source, from_repository=one.reference.repository)
    assert [two.blob_size(order.hex) for order in orders] == [2000, 2000]
    assert source.read_bytes == 2000


def leave_behind(store: BlobStore, data: bytes, part: bytes) -> None:
    """What a download that was stopped leaves in the store."""
    with contextlib.suppress(KeyboardInterrupt), store.receive(hex_of(data), len(data)) as partial:
        assert partial is not None
        partial.write(memoryview(part))
        raise KeyboardInterrupt


def test_a_download_goes_on_where_it_was(connect: Connect, store: BlobStore) -> None:
    client, data = connect(), noise(3 << 20)
    client.upload_blob(hex_of(data), len(data), Blobs(data))
    leave_behind(store, data, data[: 2 << 20])
    heard: list[int] = []
    fetch_blob(client, BlobOrder(hex_of(data), len(data)), store, lambda done, _: heard.append(done))
    assert min(heard) > 2 << 20
    assert store.read_at(hex_of(data), 0, len(data)) == data


def test_a_wrong_leftover_does_not_stand_in_the_way(connect: Connect, store: BlobStore) -> None:
    client, data = connect(), noise(3000)
    client.upload_blob(hex_of(data), len(data), Blobs(data))
    leave_behind(store, data, b"wrong")
    fetch_blob(client, BlobOrder(hex_of(data), len(data)), store)
    assert store.read_at(hex_of(data), 0, len(data)) == data


def test_damage_in_the_registry_is_found_by_its_part(
    connect: Connect, registry: RealRegistry, store: BlobStore
) -> None:
    client, data = connect(), noise(50_000, seed=77)
    client.upload_blob(hex_of(data), len(data), Blobs(data))
    path = registry.blob_path(hex_of(data))
    path.write_bytes(data[:25_000] + b"\0" + data[25_001:])
    parts = tuple(hex_of(data[start : start + 10_000]) for start in range(0, 50_000, 10_000))
    order = BlobOrder(hex_of(data), len(data), parts)
    with pytest.raises(DigestMismatch, match="3 times") as caught:
        fetch_blob(client, order, store, chunk_bytes=10_000)
    assert "byte 20000" in str(caught.value.where)
    assert store.size_of(order.hex) is None
    # Mended, it goes on behind the parts that were right.
    path.write_bytes(data)
    heard: list[int] = []
    fetch_blob(client, order, store, lambda done, _: heard.append(done), chunk_bytes=10_000)
    assert store.read_at(order.hex, 0, len(data)) == data
    assert min(heard) > 20_000


class CuttingProxy:
    """Passes connections on; `cut` is asked about the bytes of clients and cuts the connection before they pass."""

    def __init__(self, target: str, cut: Callable[[bytes], bool]) -> None:
        host, _, port = target.partition(":")
        self._target, self._cut = (host, int(port)), cut
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                threading.Thread(target=self._copy, args=(client, server, self._cut), daemon=True).start()
                threading.Thread(
                    target=self._copy, args=(server, client, lambda _: False), daemon=True
                ).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, cut: Callable[[bytes], bool]) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and not cut(data):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class After:
    """Says to cut after so many bytes, the first `cuts` times."""

    def __init__(self, after_bytes: int, cuts: int) -> None:
        self._after_bytes, self._cuts, self._passed = after_bytes, cuts, 0

    def __call__(self, data: bytes) -> bool:
        self._passed += len(data)
        if self._passed <= self._after_bytes or not self._cuts:
            return False
        self._passed, self._cuts = 0, self._cuts - 1
        return True


class Before:
    """Says to cut once, before the request number `number` of a method."""

    def __init__(self, method: bytes, number: int) -> None:
        self._method, self._left = method, number

    def __call__(self, data: bytes) -> bool:
        self._left -= data.startswith(self._method)
        return self._left == 0 and data.startswith(self._method)


@pytest.fixture
def cutting(registry: RealRegistry) -> Iterator[Callable[[Callable[[bytes], bool]], str]]:
    """Make a host that is the registry behind a connection that is cut."""
    made: list[CuttingProxy] = []

    def make(cut: Callable[[bytes], bool]) -> str:
        made.append(CuttingProxy(registry.host, cut))
        return made[-1].host

    yield make
    for proxy in made:
        proxy.close()


def test_an_upload_goes_on_after_a_cut(
    connect: Connect, registry: RealRegistry, cutting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "CHUNK_BYTES", 4 << 20)
    data = noise(16 << 20, seed=5)
    client, source = connect(host=cutting(Before(b"PATCH ", 3))), Blobs(data)
    asked = _methods(client)
    client.upload_blob(hex_of(data), len(data), source)
    assert registry.blob_path(hex_of(data)).read_bytes() == data
    assert (asked.count("POST"), asked.count("PATCH")) == (1, 5)


def test_an_upload_that_the_registry_lost_begins_anew(
    connect: Connect, registry: RealRegistry, cutting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This registry gives an upload up when a piece was cut in its middle.
    monkeypatch.setattr(upload, "CHUNK_BYTES", 4 << 20)
    data = noise(16 << 20, seed=9)
    client = connect(host=cutting(After(10 << 20, 1)))
    asked = _methods(client)
    client.upload_blob(hex_of(data), len(data), Blobs(data))
    assert registry.blob_path(hex_of(data)).read_bytes() == data
    assert asked.count("POST") == 2


def test_an_upload_in_one_piece_begins_anew_after_a_cut(
    connect: Connect, registry: RealRegistry, cutting: Any
) -> None:
    data = noise(2 << 20, seed=6)
    client = connect(host=cutting(After(1 << 20, 2)))
    client.upload_blob(hex_of(data), len(data), Blobs(data))
    assert registry.blob_path(hex_of(data)).read_bytes() == data


def test_a_connection_that_always_breaks_ends_with_an_error(connect: Connect, cutting: Any) -> None:
    data = noise(1 << 20, seed=7)
    client = connect(host=cutting(After(1 << 19, 1000)))
    with pytest.raises(RegistryUnavailable) as caught:
        client.upload_blob(hex_of(data), len(data), Blobs(data))
    assert caught.value.hint


def test_nobody_there(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RegistryUnavailable, match="does not answer: Connection refused") as caught:
        connect(host=f"127.0.0.1:{port}").get_manifest("1")
    assert caught.value.exit_code == 3


def test_https_to_a_registry_without_tls_says_so(connect: Connect) -> None:
    with pytest.raises(RegistryUnavailable) as caught:
        connect(plain_http=False).get_manifest("1")
    assert "--plain-http" in str(caught.value.hint)


@pytest.fixture(scope="module")
def locked_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRegistry]:
    with running_registry(tmp_path_factory.mktemp("locked"), with_password=True) as running:
        yield running


def test_a_password_is_needed_and_enough(
    connect: Connect, locked_registry: RealRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    host, data = locked_registry.host, noise(1000)
    with pytest.raises(RegistryDenied) as caught:
        connect("mini", host=host).blob_size(hex_of(data))
    assert f"mlbundle login {host}" in str(caught.value.hint)
    with pytest.raises(RegistryDenied):
        connect("mini", host=host, credentials=Credentials(USER, "wrong")).tags()
    client = connect("mini", host=host, credentials=Credentials(USER, PASSWORD))
    client.upload_blob(hex_of(data), len(data), Blobs(data))
    assert client.blob_size(hex_of(data)) == 1000


def test_credentials_are_checked_before_they_are_kept(
    registry: RealRegistry, locked_registry: RealRegistry
) -> None:
    settings: dict[str, Any] = {"plain_http": True, "user_agent": "mlbundle/test", "policy": HASTY}
    assert check_login(locked_registry.host, Credentials(USER, PASSWORD), **settings)
    assert not check_login(registry.host, Credentials(USER, PASSWORD), **settings)
    with pytest.raises(RegistryDenied, match="does not accept"):
        check_login(locked_registry.host, Credentials(USER, "wrong"), **settings)
