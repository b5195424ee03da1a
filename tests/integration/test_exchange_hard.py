"""What goes wrong between bundles and registries: strangers' attachments, taken tags, slips of the pen, leftovers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from inprocess import InProcess
from registry_fixture import RealRegistry, running_registry
from support import Cli, Outcome

from mlbundle.bundle.content import BundleContent, EmbeddedSource, Role, SourceFile
from mlbundle.bundle.digests import digest_of, sha256_hex
from mlbundle.bundle.document import ImagePin
from mlbundle.bundle.oci import INDEX_TYPE, MANIFEST_TYPE
from mlbundle.bundle.overlay import MemoryBlobs
from mlbundle.bundle.pack import pack
from mlbundle.platforms import this_architecture
from mlbundle.registry.client import RegistryClient

PLAIN = "--plain-http"
LAYER = b"a layer of an image"


def described(media_type: str, data: bytes, **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data), **more}


@dataclass(frozen=True)
class Images:
    """Images for this machine and for others, with a layer that all have: manifests by architecture."""

    manifests: dict[str, bytes]
    index: bytes
    pins: tuple[ImagePin, ...]
    source: EmbeddedSource


def images_of(*architectures: str) -> Images:
    configs, manifests = {}, {}
    for name in sorted(architectures):
        configs[name] = json.dumps({"architecture": name}).encode()
        manifests[name] = json.dumps({
            "schemaVersion": 2, "mediaType": MANIFEST_TYPE,
            "config": described("application/vnd.oci.image.config.v1+json", configs[name]),
            "layers": [described("application/vnd.oci.image.layer.v1.tar", LAYER)],
        }).encode()  # fmt: skip
    entries = [
        described(MANIFEST_TYPE, data, platform={"architecture": name, "os": "linux"})
        for name, data in manifests.items()
    ]
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries}).encode()
    pins = tuple(
        ImagePin(
            name, "cpu", "example/none:1",
            index=digest_of(index), manifest=digest_of(data), config=digest_of(configs[name]),
        )
        for name, data in manifests.items()
    )  # fmt: skip
    layer = sha256_hex(LAYER)
    documents = tuple(manifests.values()), tuple(configs.values())
    source = EmbeddedSource("cpu", index, *documents, ((layer, len(LAYER)),), MemoryBlobs({layer: LAYER}))
    return Images(manifests, index, pins, source)


def make(path: Path, *files: SourceFile, **values: Any) -> str:
    """Write a bundle and return the digest of its manifest."""
    framework = SourceFile("mlbundle/framework.yml", Role.FRAMEWORK, b"name: none\n")
    model = SourceFile("mlbundle/model.yml", Role.MODEL, b"name: tiny\n")
    content = BundleContent(
        "tiny", values.pop("version", "1.0.0"), "none", "1.0", (model, framework, *files), **values
    )
    return pack(content, path).manifest_digest


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return InProcess(capsys)


@pytest.fixture
def repository(registry: RealRegistry, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.lower()).strip("-")
    return f"{registry.host}/hard/{name}"


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """The digest of `tiny.mlb`."""
    return make(tmp_path / "tiny.mlb", SourceFile("net.bin", Role.WEIGHT, b"weights" * 99))


def client_of(repository: str) -> RegistryClient:
    host, _, name = repository.partition("/")
    return RegistryClient(host, name, plain_http=True, user_agent="test")


def ok(outcome: Outcome) -> dict[str, Any]:
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    return outcome.document()


def attach(client: RegistryClient, digest: str, kind: str, data: bytes) -> str:
    """Attach a referrer with one layer, as anybody can; returns its digest."""
    for blob in (b"{}", data):
        client.upload_blob(sha256_hex(blob), len(blob), MemoryBlobs({sha256_hex(blob): blob}))
    subject = {"mediaType": MANIFEST_TYPE, "digest": digest, "size": len(client.get_manifest(digest).data)}
    manifest = {
        "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "artifactType": kind,
        "config": described("application/vnd.oci.empty.v1+json", b"{}"),
        "layers": [described("application/octet-stream", data)], "subject": subject,
    }  # fmt: skip
    return client.put_referrer(MANIFEST_TYPE, json.dumps(manifest).encode(), digest)


def test_referrers_of_strangers_do_not_stand_in_the_way(
    tiny: str, repository: str, registry: RealRegistry, cli: Cli
) -> None:
    ok(cli("push", "tiny.mlb", repository, PLAIN, "--json"))
    note = "application/vnd.example.note"
    with client_of(repository) as client:
        good = attach(client, tiny, note, b"good")
        odd = {
            attach(client, tiny, "application/vnd.example.SBOM+json", b"{}"),
            attach(client, tiny, note, bytes((32 << 20) + 1)),
            attach(client, tiny, note, b"gone"),
        }
    registry.blob_path(sha256_hex(b"gone")).unlink()
    for command in ("verify", "inspect"):
        ok(cli(command, f"oci://{repository}", PLAIN, "--json"))
    plan = ok(cli("pull", repository, PLAIN, "-n", "--json"))
    assert plan["referrers"] == 1
    pulled = cli("pull", repository, PLAIN, "-o", "back.mlb", "--json")
    assert {text.partition(": ")[0] for text in ok(pulled)["passed_over"]} == odd
    assert pulled.stderr.count("not taken: ") == 3
    assert ok(cli("verify", "tiny", "--json"))["manifest_digest"] == tiny
    assert good.removeprefix("sha256:").encode() in Path("back.mlb").read_bytes()


def test_a_tag_that_names_something_else_stays(tiny: str, repository: str, cli: Cli, tmp_path: Path) -> None:
    ok(cli("push", "tiny.mlb", repository, PLAIN, "--json"))
    ok(cli("push", "tiny.mlb", repository, PLAIN, "--json"))
    other = make(tmp_path / "other.mlb", SourceFile("net.bin", Role.WEIGHT, b"other"))
    error = cli("push", "other.mlb", repository, PLAIN, "--json").error(2, "usage")
    assert tiny in error["message"]
    assert other in error["message"]
    assert "--force" in error["hint"]
    with client_of(repository) as client:
        assert client.head_manifest("1.0.0") == tiny
        ok(cli("push", "other.mlb", repository, PLAIN, "--force", "--json"))
        assert client.head_manifest("1.0.0") == other
        # Whatever it is that stands there.
        index = json.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []}).encode()
        client.put_manifest("2.0.0", INDEX_TYPE, index)
        cli("push", "other.mlb", f"{repository}:2.0.0", PLAIN, "--json").error(2, "usage")


def test_tags_that_are_taken_are_refused_before_anything_is_sent(
    tiny: str, repository: str, cli: Cli
) -> None:
    for tag in (tiny.replace(":", "-"), "fw.cpu.1.0.0"):
        error = cli("push", "tiny.mlb", f"{repository}:{tag}", PLAIN, "--json").error(2, "usage")
        assert error["hint"]
    with client_of(repository) as client:
        assert client.tags() == ()


def test_what_was_sent_and_what_was_there(tiny: str, repository: str, cli: Cli, tmp_path: Path) -> None:
    first = ok(cli("push", "tiny.mlb", repository, PLAIN, "--json"))
    assert (first["sent_blobs"], first["sent_bytes"]) == (first["blobs"], first["size"])
    again = ok(cli("push", "tiny.mlb", repository, PLAIN, "--json"))
    assert (again["sent_blobs"], again["sent_bytes"]) == (0, 0)
    assert (again["blobs"], again["size"]) == (first["blobs"], first["size"])
    assert "0 sent, 0 B" in cli("push", "tiny.mlb", repository, PLAIN).stdout
    pulled = ok(cli("pull", repository, PLAIN, "--json"))
    assert (pulled["fetched_bytes"], pulled["already_here"]) == (first["size"], 0)
    pulled = ok(cli("pull", repository, PLAIN, "--json"))
    assert (pulled["fetched_bytes"], pulled["already_here"]) == (0, first["size"])
    assert "already here" in cli("pull", repository, PLAIN).stdout


def test_pull_of_what_is_no_repository(tiny: str, repository: str, cli: Cli) -> None:
    for text in ("tiny.mlb", "https://example.org/tiny.mlb"):
        assert f"mlbundle add {text}" in cli("pull", text, "--json").error(2, "usage")["hint"]
    ok(cli("add", "tiny.mlb", "--json"))
    for text in ("tiny", "tiny:1.0.0"):
        assert "already" in cli("pull", text, "--json").error(2, "usage")["message"]
    cli("pull", "nothing", "--json").error(2, "usage")


def test_an_unknown_tag_brings_up_the_known_ones(tiny: str, repository: str, cli: Cli) -> None:
    for number in range(12):
        ok(cli("push", "tiny.mlb", f"{repository}:9.{number:02}", PLAIN, "--json"))
    with client_of(repository) as client:
        attach(client, tiny, "application/vnd.example.note", b"note")
    hint = cli("pull", f"{repository}:1.0.0", PLAIN, "--json").error(2, "reference-not-found")["hint"]
    assert hint.endswith("9.10, 9.11")
    assert hint.count("9.") == 10
    assert "sha256-" not in hint


def test_a_registry_that_wants_a_password_is_named_in_the_words_of_the_command(
    tiny: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with running_registry(tmp_path, with_password=True) as guarded:
        for command in (("push", "tiny.mlb"), ("pull",)):
            error = cli(*command, f"{guarded.host}/a/b:1", PLAIN, "--json").error(3, "registry-denied")
            assert f"let you {command[0]}" in error["message"]


def test_what_a_power_cut_spoilt_is_fetched_again(tiny: str, repository: str, cli: Cli, home: Path) -> None:
    ok(cli("push", "tiny.mlb", repository, PLAIN, "--json"))
    partial = home / "data" / "blobs" / "partial"
    partial.mkdir(parents=True)
    (partial / tiny.removeprefix("sha256:")).write_bytes(bytes(100))
    assert ok(cli("pull", repository, PLAIN, "--json"))["manifest_digest"] == tiny


def test_an_interrupted_pull_says_how_to_go_on(
    tiny: str, repository: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlbundle.runs.exchange import Pull

    ok(cli("push", "tiny.mlb", repository, PLAIN, "--json"))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Pull, "fetch", stop)
        stopped = cli("pull", repository, PLAIN)
    assert stopped.status == 130
    assert "goes on where it stopped" in stopped.stderr
    ok(cli("pull", repository, PLAIN, "--json"))


def test_manifests_of_images_that_are_not_wanted_are_not_kept(
    repository: str, cli: Cli, tmp_path: Path, home: Path
) -> None:
    here, other = this_architecture(), "riscv64"
    images = images_of(here, other)
    make(tmp_path / "two.mlb", images=images.pins, embedded=(images.source,))
    ok(cli("push", "two.mlb", repository, PLAIN, "--json"))
    store = home / "data" / "blobs" / "sha256"

    def kept() -> list[bool]:
        return [
            (store / sha256_hex(data)).exists()
            for data in (images.index, *(images.manifests[name] for name in (here, other)))
        ]

    ok(cli("pull", repository, "--images", "none", PLAIN, "--json"))
    assert kept() == [False, False, False]
    ok(cli("pull", repository, PLAIN, "--json"))
    assert kept() == [True, True, False]
    ok(cli("pull", repository, "--images", "all", PLAIN, "--json"))
    assert kept() == [True, True, True]


def test_a_tag_must_leave_room_for_the_tags_of_images(repository: str, cli: Cli, tmp_path: Path) -> None:
    images = images_of(this_architecture())
    make(tmp_path / "one.mlb", images=images.pins, embedded=(images.source,))
    tag = "t" * (129 - len("fw.cpu."))
    error = cli("push", "one.mlb", f"{repository}:{tag}", PLAIN, "--json").error(2, "usage")
    assert "--without-images" in error["hint"]
    with client_of(repository) as client:
        assert client.tags() == ()
    ok(cli("push", "one.mlb", f"{repository}:{tag[1:]}", PLAIN, "--json"))
    ok(cli("push", "one.mlb", f"{repository}:{tag}", "--without-images", PLAIN, "--json"))
