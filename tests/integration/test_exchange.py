"""A bundle to a registry and back, and from a web server, as users meet it and as other programs do."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import random
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from inprocess import InProcess
from registry_fixture import PASSWORD, USER, RealRegistry, running_registry
from support import TINY_NET, Cli, Outcome, command_line, lacking

from mlbundle.bundle.content import BundleContent, EmbeddedSource, Role, SourceFile
from mlbundle.bundle.document import ImagePin
from mlbundle.bundle.oci import INDEX_TYPE, MANIFEST_TYPE
from mlbundle.bundle.overlay import MemoryBlobs
from mlbundle.bundle.pack import pack
from mlbundle.bundle.reader import open_bundle
from mlbundle.bundle.unpack import unpack
from mlbundle.platforms import this_architecture
from mlbundle.registry.client import RegistryClient
from mlbundle.runs.packing import pack_manifest

TAG = "1.0.0_cu12"
WEIGHT_BYTES, DATA_BYTES = 20_000_000, 2_000_000
PLAIN = "--plain-http"


class Net(NamedTuple):
    """A bundle file, the folder that it was packed from, and its digest."""

    file: Path
    folder: Path
    digest: str


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Net:
    folder = tmp_path_factory.mktemp("net") / "net"
    (folder / "data").mkdir(parents=True)
    (folder / "model.yml").write_text(TINY_NET)
    (folder / "net.onnx").write_bytes(random.Random(1).randbytes(WEIGHT_BYTES))
    (folder / "data" / "index.txt").write_text("a.bin 0\nb.bin 1\n")
    (folder / "data" / "a.bin").write_bytes(random.Random(2).randbytes(DATA_BYTES))
    (folder / "data" / "b.bin").write_bytes(b"b" * 600)
    packed = pack_manifest(folder, folder.parent / "net.mlb")
    return Net(packed.path, folder, packed.manifest_digest)


@pytest.fixture(autouse=True)
def no_proxies_and_own_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture
def repository(registry: RealRegistry, request: pytest.FixtureRequest) -> str:
    """A repository of this test alone."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.lower()).strip("-")
    return f"{registry.host}/exchange/{name}"


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def client_of(repository: str) -> RegistryClient:
    host, _, name = repository.partition("/")
    return RegistryClient(host, name, plain_http=True, user_agent="test")


def put(client: RegistryClient, data: bytes) -> dict[str, Any]:
    """Upload a blob and return its descriptor, without a media type."""
    key = hashlib.sha256(data).hexdigest()
    client.upload_blob(key, len(data), MemoryBlobs({key: data}))
    return {"digest": f"sha256:{key}", "size": len(data)}


def skopeo(*arguments: str) -> None:
    if shutil.which("skopeo") is None:
        lacking("skopeo is not installed (Debian's package of that name)")
    done = subprocess.run(["skopeo", "copy", "--quiet", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@dataclass
class Tap:
    """Forwards connections to a server and counts what passes; the server sees the address of the tap."""

    target: tuple[str, int]
    received_bytes: int = 0
    _sent: list[bytearray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def sent_bytes(self) -> int:
        return sum(map(len, self._sent))

    @property
    def requests(self) -> list[str]:
        """Methods and paths in order of connections; what is uploaded here never looks like a request."""
        found = re.findall(rb"([A-Z]+ /v2/[^ \r\n]*) HTTP/1.1\r\n", b"".join(self._sent))
        return [line.decode() for line in found]

    def reset(self) -> None:
        self.received_bytes = 0
        self._sent.clear()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.target)
            for pair in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, upwards: bool) -> None:
        log = bytearray()
        try:
            while data := source.recv(1 << 18):
                if upwards:
                    # A new list means a new measurement, also on a connection that goes on.
                    if not any(known is log for known in self._sent):
                        log = bytearray()
                        self._sent.append(log)
                    log += data
                else:
                    self.received_bytes += len(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            # One direction that ends ends the other, whose thread waits in `recv`.
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def tap(registry: RealRegistry) -> Iterator[Tap]:
    host, _, port = registry.host.partition(":")
    made = Tap((host, int(port)))
    yield made
    made.close()


@pytest.fixture
def pushed(net: Net, repository: str, cli: Cli) -> str:
    """The bundle, in a repository of its own."""
    done = cli("push", net.file, repository, PLAIN, "--json")
    assert done.status == 0, done.stderr
    return repository


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run commands with the test's folder as working folder."""
    monkeypatch.chdir(tmp_path)
    return InProcess(capsys)


def ok(outcome: Outcome) -> dict[str, Any]:
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    return outcome.document()


def test_push_and_pull_keep_the_digest_and_every_byte(
    net: Net, repository: str, cli: Cli, tmp_path: Path
) -> None:
    pushed = ok(cli("push", net.file, repository, PLAIN, "--json"))
    assert pushed["manifest_digest"] == net.digest
    assert pushed["reference"].endswith(f":{TAG}@{net.digest}")
    assert (pushed["images"], pushed["referrers"], pushed["mirrored"]) == ([], 0, [])
    pulled = ok(cli("pull", f"{repository}:{TAG}", PLAIN, "-o", "again.mlb", "--json"))
    assert (pulled["manifest_digest"], pulled["version"]) == (net.digest, "1.0.0+cu12")
    assert sha256(tmp_path / "again.mlb") == sha256(net.file)
    verified = ok(cli("verify", "Tiny Net:1.0.0+cu12", "--json"))
    assert (verified["verified"], verified["manifest_digest"]) == (True, net.digest)


def test_what_is_there_is_neither_sent_nor_fetched_again(
    net: Net, repository: str, tap: Tap, cli: Cli
) -> None:
    through = tap.host + "/" + repository.partition("/")[2]
    ok(cli("push", net.file, through, PLAIN, "--json"))
    assert tap.sent_bytes > WEIGHT_BYTES + DATA_BYTES
    tap.reset()
    ok(cli("push", net.file, through, PLAIN, "--json"))
    assert {line.partition(" ")[0] for line in tap.requests} <= {"HEAD", "GET", "PUT"}
    assert [line for line in tap.requests if "/blobs/uploads" in line] == []
    assert tap.sent_bytes < 20_000

    tap.reset()
    ok(cli("pull", through, PLAIN, "--json"))
    assert tap.received_bytes > WEIGHT_BYTES + DATA_BYTES
    tap.reset()
    plan = ok(cli("pull", through, PLAIN, "--dry-run", "--json"))
    assert plan["already_here"] == plan["size"] > WEIGHT_BYTES
    ok(cli("pull", through, PLAIN, "--json"))
    assert tap.received_bytes < 50_000


def test_of_a_part_only_its_layers_are_read(
    net: Net, pushed: str, tap: Tap, cli: Cli, tmp_path: Path
) -> None:
    name = "oci://" + tap.host + "/" + pushed.partition("/")[2]
    document = ok(cli("unpack", name, "--filter", "data/b.bin", "-o", "part", PLAIN, "--json"))
    assert [file["path"] for file in document["files"]] == ["data/b.bin"]
    assert document["of"] == 6
    assert [p.name for p in (tmp_path / "part").rglob("*") if p.is_file()] == ["b.bin"]
    assert (tmp_path / "part" / "data" / "b.bin").read_bytes() == b"b" * 600
    assert tap.received_bytes < 50_000
    tap.reset()
    ok(cli("unpack", name, "--filter", "data", "-o", "data", PLAIN, "--json"))
    assert DATA_BYTES < tap.received_bytes < DATA_BYTES + 100_000
    tap.reset()
    inspected = ok(cli("inspect", name, PLAIN, "--json"))
    assert inspected["manifest_digest"] == net.digest
    assert tap.received_bytes < 50_000
    refused = cli("unpack", name, "--filter", "nothing*", "-o", "none", PLAIN, "--json")
    refused.error(2, "usage")
    assert not (tmp_path / "none").exists()


def test_verify_reads_every_byte_far_away(
    net: Net, pushed: str, registry: RealRegistry, cli: Cli, tmp_path: Path
) -> None:
    assert ok(cli("verify", f"oci://{pushed}", PLAIN, "--json"))["manifest_digest"] == net.digest
    blob = registry.blob_path(sha256(net.folder / "net.onnx"))
    healthy = blob.read_bytes()
    try:
        damaged = bytearray(healthy)
        damaged[12_345_678] ^= 1
        blob.write_bytes(damaged)
        for arguments in (("verify", f"oci://{pushed}"), ("pull", pushed)):
            cli(*arguments, PLAIN, "--json").error(5, "digest-mismatch")
        assert "Tiny Net" not in cli("list", "--json").stdout
    finally:
        blob.write_bytes(healthy)
    assert ok(cli("pull", pushed, PLAIN, "--json"))["manifest_digest"] == net.digest


def test_skopeo_brings_what_we_pull_and_takes_what_we_push(
    net: Net, repository: str, registry: RealRegistry, cli: Cli, tmp_path: Path
) -> None:
    skopeo("--dest-tls-verify=false", f"oci-archive:{net.file}:{TAG}", f"docker://{repository}:theirs")
    pulled = ok(cli("pull", f"{repository}:theirs", PLAIN, "-o", "pulled.mlb", "--json"))
    assert pulled["manifest_digest"] == net.digest
    assert sha256(tmp_path / "pulled.mlb") == sha256(net.file)

    ours = f"{registry.host}/exchange/ours"
    ok(cli("push", net.file, f"{ours}:v1", PLAIN, "--json"))
    layout = tmp_path / "layout"
    skopeo("--src-tls-verify=false", f"docker://{ours}:v1", f"oci:{layout}:v1")
    index = json.loads((layout / "index.json").read_bytes())
    assert [entry["digest"] for entry in index["manifests"]] == [net.digest]
    with open_bundle(net.file) as reader:
        for key, size_bytes in reader.structure.blobs().items():
            blob = layout / "blobs" / "sha256" / key
            assert (blob.stat().st_size, sha256(blob)) == (size_bytes, key)
    skopeo("--src-tls-verify=false", f"docker://{ours}:v1", f"oci-archive:{tmp_path / 'theirs.tar'}:v1")
    skopeo("--dest-tls-verify=false", f"oci-archive:{tmp_path / 'theirs.tar'}:v1", f"docker://{ours}:back")
    with client_of(ours) as client:
        assert client.head_manifest("back") == net.digest


@pytest.mark.skipif(shutil.which("oras") is None, reason="oras is not installed")
def test_oras_pulls_what_we_push(net: Net, pushed: str, tmp_path: Path) -> None:
    subprocess.run(
        ["oras", "pull", "--plain-http", "-o", str(tmp_path / "oras"), f"{pushed}:{TAG}"], check=True
    )
    assert (tmp_path / "oras" / "net.onnx").read_bytes() == (net.folder / "net.onnx").read_bytes()


def test_signatures_travel_and_what_is_foreign_is_passed_over(
    net: Net, repository: str, cli: Cli, tmp_path: Path
) -> None:
    ok(cli("keygen", "key", "--json"))
    assert (
        ok(cli("sign", net.file, "--key", "key", "-o", "signed.mlb", "--json"))["manifest_digest"]
        == net.digest
    )
    assert ok(cli("push", "signed.mlb", repository, PLAIN, "--json"))["referrers"] == 1
    with client_of(repository) as client:
        subject = {"mediaType": MANIFEST_TYPE, "digest": net.digest, "size": 1}
        config = {"mediaType": "application/vnd.oci.empty.v1+json", **put(client, b"{}")}
        foreign = {
            "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "artifactType": "application/vnd.example",
            "config": config, "layers": [], "subject": subject, "x-unknown": True,
        }  # fmt: skip
        client.put_referrer(MANIFEST_TYPE, json.dumps(foreign).encode(), net.digest)
    pulled = cli("pull", repository, PLAIN, "-o", "back.mlb", "--json")
    assert ok(pulled)["manifest_digest"] == net.digest
    assert pulled.stderr.count("not taken: sha256:") == 1
    assert sha256(tmp_path / "back.mlb") == sha256(tmp_path / "signed.mlb")
    for name in ("back.mlb", "Tiny Net", f"oci://{repository}"):
        trust = ok(cli("verify", name, "--key", "key.pub", PLAIN, "--json"))["trust"]
        assert len(trust["signers"]) == 1, name
    cli("verify", net.file, "--key", "key.pub", "--json").error(1, "signature-missing")


def test_a_bundle_is_signed_in_its_registry(net: Net, pushed: str, cli: Cli) -> None:
    name = f"oci://{pushed}:{TAG}"
    ok(cli("keygen", "key", "--json"))
    ok(cli("keygen", "other", "--json"))
    cli("verify", name, "--key", "key.pub", PLAIN, "--json").error(1, "signature-missing")
    signed = ok(cli("sign", name, "--key", "key", PLAIN, "--json"))
    assert (signed["manifest_digest"], signed["where"]) == (net.digest, name)
    assert ok(cli("verify", name, "--key", "key.pub", PLAIN, "--json"))["trust"]["signers"]
    cli("verify", name, "--key", "other.pub", PLAIN, "--json").error(1, "signature-missing")


@dataclass(frozen=True)
class Platforms:
    """A bundle with an image for this machine and one for another, each with a layer of its own."""

    file: Path
    digest: str
    here: str
    other: str


@pytest.fixture
def platforms(tmp_path: Path) -> Platforms:
    blobs: dict[str, bytes] = {}

    def described(media_type: str, data: bytes, **more: Any) -> dict[str, Any]:
        key = hashlib.sha256(data).hexdigest()
        blobs[key] = data
        return {"mediaType": media_type, "digest": f"sha256:{key}", "size": len(data), **more}

    entries, manifests, configs, layers = [], [], [], {}
    names = {this_architecture(), "amd64", "arm64"}
    for name in sorted(names):
        layers[name] = described("application/vnd.oci.image.layer.v1.tar", f"layer of {name}".encode())
        configs.append(json.dumps({"architecture": name}).encode())
        config = described("application/vnd.oci.image.config.v1+json", configs[-1])
        image = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": [layers[name]]}
        manifests.append(json.dumps(image).encode())
        platform = {"architecture": name, "os": "linux"}
        entries.append(described(MANIFEST_TYPE, manifests[-1], platform=platform))
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries}).encode()
    pins = tuple(
        ImagePin(
            name,
            "cpu",
            "example/none:1",
            index=described(INDEX_TYPE, index)["digest"],
            manifest=described(MANIFEST_TYPE, manifest)["digest"],
            config=described("", config)["digest"],
        )
        for name, manifest, config in zip(sorted(names), manifests, configs, strict=True)
    )
    parts = tuple((layer["digest"].removeprefix("sha256:"), layer["size"]) for layer in layers.values())
    embedded = EmbeddedSource("cpu", index, tuple(manifests), tuple(configs), parts, MemoryBlobs(blobs))
    files = (
        SourceFile("mlbundle/model.yml", Role.MODEL, b"name: many\n"),
        SourceFile("mlbundle/framework.yml", Role.FRAMEWORK, b"name: none\n"),
    )
    content = BundleContent("many", "1.0.0", "none", "1.0", files, images=pins, embedded=(embedded,))
    packed = pack(content, tmp_path / "many.mlb")
    hexes = {name: layer["digest"].removeprefix("sha256:") for name, layer in layers.items()}
    other = next(name for name in sorted(names) if name != this_architecture())
    return Platforms(packed.path, packed.manifest_digest, hexes[this_architecture()], hexes[other])


def test_only_the_image_of_this_machine_is_pulled(
    platforms: Platforms, repository: str, cli: Cli, home: Path, tmp_path: Path
) -> None:
    store = home / "data" / "blobs" / "sha256"
    here = f"{this_architecture()}/cpu"
    pushed = ok(cli("push", platforms.file, repository, PLAIN, "--json"))
    assert here in pushed["images"]
    assert len(pushed["images"]) > 1
    assert ok(cli("pull", repository, "-n", PLAIN, "--json"))["images"] == [here]
    assert ok(cli("pull", repository, PLAIN, "--json"))["manifest_digest"] == platforms.digest
    assert (store / platforms.here).is_file()
    assert not (store / platforms.other).exists()
    # An index of which a part is missing is none that a file could hold.
    assert ok(cli("inspect", "many", "--json"))["embedded"] == []
    assert ok(cli("verify", "many", "--json"))["manifest_digest"] == platforms.digest
    # Neither a signature nor cleaning up takes the image from a run.
    ok(cli("keygen", "key", "--json"))
    ok(cli("sign", "many", "--key", "key", "--json"))
    ok(cli("gc", "--json"))
    assert (store / platforms.here).is_file()

    ok(cli("rm", "many", "--json"))
    ok(cli("gc", "--json"))
    assert not (store / platforms.here).exists()
    ok(cli("pull", repository, "--images", "all", PLAIN, "-o", "all.mlb", "--json"))
    assert sha256(tmp_path / "all.mlb") == sha256(platforms.file)


def foreign_model(client: RegistryClient) -> bytes:
    """A model as other ModelPack tools push it."""
    layer = {
        "mediaType": "application/vnd.cncf.model.weight.v1.tar",
        **put(client, bytes(10240)),
        "annotations": {
            "org.cncf.model.filepath": "model.safetensors",
            "org.cncf.model.file.metadata+json": '{"name":"model.safetensors","mode":420}',
        },
    }
    config = {
        "descriptor": {"createdAt": "2025-01-01T00:00:00Z", "family": "other", "name": "theirs"},
        "modelfs": {"type": "layers", "diffIds": [layer["digest"]]},
        "config": {"architecture": "transformer", "format": "safetensors"},
    }
    described = {
        "mediaType": "application/vnd.cncf.model.config.v1+json",
        **put(client, json.dumps(config).encode()),
    }
    return json.dumps({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": "application/vnd.cncf.model.manifest.v1+json",
        "config": described,
        "layers": [layer],
        "annotations": {"org.opencontainers.image.created": "2025-01-01T00:00:00Z"},
    }).encode()  # fmt: skip


def image(client: RegistryClient) -> bytes:
    config = {"mediaType": "application/vnd.oci.image.config.v1+json", **put(client, b'{"os":"linux"}')}
    return json.dumps(
        {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": []}
    ).encode()


@pytest.mark.parametrize("make", [foreign_model, image])
def test_what_is_no_bundle_is_called_so(make: Any, repository: str, cli: Cli) -> None:
    with client_of(repository) as client:
        client.put_manifest("v1", MANIFEST_TYPE, make(client))
    for command in (("pull", f"{repository}:v1"), ("inspect", f"oci://{repository}:v1")):
        error = cli(*command, PLAIN, "--json").error(5, "not-a-bundle")
        assert repository in error["where"]
        assert error["hint"]


def test_an_index_is_no_bundle(repository: str, cli: Cli) -> None:
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []}
    with client_of(repository) as client:
        client.put_manifest("v1", INDEX_TYPE, json.dumps(index).encode())
    cli("pull", f"{repository}:v1", PLAIN, "--json").error(5, "not-a-bundle")


def test_what_is_not_there(pushed: str, registry: RealRegistry, cli: Cli) -> None:
    for name in (f"{pushed}:2.0.0", f"{registry.host}/exchange/nobody:1", f"{registry.host}/exchange/nobody"):
        cli("pull", name, PLAIN, "--json").error(2, "reference-not-found")


def test_without_a_tag_there_must_be_one_version(net: Net, pushed: str, cli: Cli) -> None:
    assert ok(cli("pull", pushed, PLAIN, "--json"))["manifest_digest"] == net.digest
    ok(cli("push", net.file, f"{pushed}:stable", PLAIN, "--json"))
    error = cli("pull", pushed, PLAIN, "--json").error(2, "usage")
    assert "stable" in error["hint"]
    assert TAG in error["hint"]
    assert ok(cli("pull", f"{pushed}@{net.digest}", PLAIN, "--json"))["manifest_digest"] == net.digest


def test_the_name_of_the_model_is_the_repository(net: Net, registry: RealRegistry, cli: Cli) -> None:
    plan = ok(cli("push", net.file, f"{registry.host}/", PLAIN, "--dry-run", "--json"))
    assert plan["reference"] == f"oci://{registry.host}/tiny-net:{TAG}"
    cli("pull", f"{registry.host}/tiny-net", PLAIN, "--json").error(2, "reference-not-found")
    cli("push", net.file, f"{registry.host}/x@{net.digest}", PLAIN, "--json").error(2, "usage")


def test_a_registry_with_passwords(net: Net, cli: Cli, tmp_path: Path) -> None:
    with running_registry(tmp_path, with_password=True) as guarded:
        target = f"{guarded.host}/own/net"
        error = cli("push", net.file, target, PLAIN, "--json").error(3, "registry-denied")
        assert f"mlbundle login {guarded.host}" in error["hint"]
        login = subprocess.run(
            command_line("login", guarded.host, "-u", USER, "--password-stdin", PLAIN),
            input=PASSWORD + "\n",
            capture_output=True,
            text=True,
        )
        assert login.returncode == 0, login.stderr
        ok(cli("push", net.file, target, PLAIN, "--json"))
        assert ok(cli("pull", target, PLAIN, "--json"))["manifest_digest"] == net.digest
        assert cli("logout", guarded.host).status == 0
        cli("inspect", f"oci://{target}:{TAG}", PLAIN, "--json").error(3, "registry-denied")


class Ranges(http.server.SimpleHTTPRequestHandler):
    """A web server that can serve parts of files."""

    protocol_version = "HTTP/1.1"
    whole_only = False

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        size_bytes = path.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(wanted[1]), min(int(wanted[2]), size_bytes - 1)) if wanted else (0, size_bytes - 1)
        if wanted is None or self.server.whole_only:  # type: ignore[attr-defined]
            self.send_response(200)
            first, last = 0, size_bytes - 1
        else:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size_bytes}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.server.answers.append(last + 1 - first)  # type: ignore[attr-defined]
        with path.open("rb") as stream:
            stream.seek(first)
            try:
                self.wfile.write(stream.read(last + 1 - first))
            except OSError:
                self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def web(net: Net) -> Iterator[Any]:
    """A web server with the folder of the bundle; `answers` are the sizes of what it served."""
    handler = functools.partial(Ranges, directory=str(net.file.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.answers, server.whole_only = [], False  # type: ignore[attr-defined]
        server.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_look_at_a_web_address_costs_little(net: Net, web: Any, cli: Cli) -> None:
    inspected = ok(cli("inspect", f"{web.url}/net.mlb", PLAIN, "--json"))
    assert inspected["manifest_digest"] == net.digest
    assert inspected["size"] == net.file.stat().st_size
    assert len(web.answers) <= 2
    assert sum(web.answers) <= 1_100_000


def test_a_bundle_from_a_web_address(net: Net, web: Any, cli: Cli, tmp_path: Path) -> None:
    address = f"{web.url}/net.mlb"
    ok(cli("unpack", address, "--filter", "data/b.bin", "-o", "part", PLAIN, "--json"))
    assert (tmp_path / "part" / "data" / "b.bin").read_bytes() == b"b" * 600
    assert sum(web.answers) < 3_000_000
    assert ok(cli("verify", address, PLAIN, "--json"))["manifest_digest"] == net.digest
    added = ok(cli("add", address, PLAIN, "--json"))
    assert (added["manifest_digest"], added["source"]) == (net.digest, address)
    ok(cli("unpack", "Tiny Net", "-o", "all", "--json"))
    unpack(net.file, tmp_path / "expected")
    assert contents(tmp_path / "all") == contents(tmp_path / "expected")


def contents(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): sha256(p) for p in folder.rglob("*") if p.is_file()}


def test_web_addresses_that_give_no_bundle(net: Net, web: Any, cli: Cli) -> None:
    cli("inspect", f"{web.url}/nothing.mlb", PLAIN, "--json").error(2, "reference-not-found")
    cli("inspect", f"{web.url}/net/net.onnx", PLAIN, "--json").error(5, "not-a-bundle")
    cli("inspect", f"{web.url}/net.mlb", "--json").error(2, "usage")
    web.whole_only = True
    cli("inspect", f"{web.url}/net.mlb", PLAIN, "--json").error(3, "registry-unavailable")
