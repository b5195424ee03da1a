"""`mlbundle images list` without an engine, what engines say about registries, and digests for people."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from mlbundle.cli.image_options import shown_digest
from mlbundle.errors import (
    ImageMismatch,
    ImageMissing,
    RegistryDenied,
    RegistryUnavailable,
    StorageFailed,
    UsageError,
)
from mlbundle.platforms import this_architecture
from mlbundle.resources import load_schema
from mlbundle.runtime.image_names import usual_name
from mlbundle.runtime.image_registry import _failure, _follow, engine_name_of, parse_image, parse_place
from mlbundle.runtime.lock import ImageKey, LockedImage, RegistryName, record_image

DIGEST = "sha256:" + "a" * 64
NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
HOST = "registry.example:5000"


def test_the_list_is_what_its_schema_says_and_can_be_filtered(cli, home: Path, tmp_path: Path) -> None:
    known = RegistryName(f"{HOST}/lab/tiny:1", DIGEST)
    entry = LockedImage("lab/tiny:1", DIGEST, source="pulled", registry=(known,))
    record_image(home / "data" / "images.lock", ImageKey("tiny", "1.0", "arm64", "gpu"), entry)
    manifest = tmp_path / "mine.yml"
    manifest.write_text(
        "name: mine\nversion: '3'\ncontainers:\n"
        f"  amd64:\n    cpu: {{image: 'lab/mine:3', digest: '{DIGEST}'}}\n"
        "  arm64:\n    cpu: {image: 'lab/mine:3'}\n"
    )

    def found(*arguments: str | Path) -> list[tuple[str, str, str, str]]:
        document = cli("images", "list", *arguments, "--json", env=NO_ENGINE).document()
        assert list(Draft202012Validator(load_schema("images")).iter_errors(document)) == []
        names = ("framework", "architecture", "accelerator", "state")
        return [tuple(image[name] for name in names) for image in document["images"]]

    assert ("tiny", "arm64", "gpu", "unknown") in found()
    assert ("onnxruntime", "amd64", "cpu", "not built") in found()
    assert found("tiny") == [("tiny", "arm64", "gpu", "unknown")]
    assert found("tiny", "--arch", "amd64") == []
    assert found("tiny", "--accelerator", "cpu") == []
    mine = ("mine", "--framework-manifest", manifest)
    assert found(*mine) == [("mine", "amd64", "cpu", "unknown"), ("mine", "arm64", "cpu", "not pulled")]
    here = this_architecture()
    assert found(*mine, "--here") == []
    assert found(*mine, "--this-machine") == [image for image in found(*mine) if image[1] == here]
    error = cli("images", "list", "nothing", "--json", env=NO_ENGINE).error(2, "reference-not-found")
    assert "onnxruntime" in error["hint"]
    assert "tiny" in error["hint"]


def test_digests_are_whole_for_programs_and_short_for_people(cli, home: Path, monkeypatch) -> None:
    entry = LockedImage("lab/tiny:1", DIGEST)
    record_image(home / "data" / "images.lock", ImageKey("tiny", "1.0", "arm64", "gpu"), entry)
    assert DIGEST in cli("images", "list", "tiny", env=NO_ENGINE).stdout
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert shown_digest(DIGEST) == "sha256:aaaaaaaaaaaa"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("denied: requested access to the resource is denied", RegistryDenied),
        ("unauthorized: authentication required", RegistryDenied),
        ("manifest for a/b:1 not found: manifest unknown", ImageMissing),
        ("image with reference a was found but does not match the specified platform", ImageMismatch),
        ("no matching manifest for linux/arm64 in the manifest list entries", ImageMismatch),
        ("write /var/lib/docker/tmp/x: no space left on device", StorageFailed),
        ("dial tcp 192.0.2.1:443: i/o timeout", RegistryUnavailable),
        ("http: server gave HTTP response to HTTPS client", RegistryUnavailable),
    ],
)
def test_what_an_engine_says_of_a_registry_becomes_a_typed_error(said, expected) -> None:
    reference = parse_image(f"{HOST}/lab/tiny:1")
    with pytest.raises(expected) as failure:
        _follow(
            [{"status": "Waiting"}, {"errorDetail": {"message": said}, "error": said}],
            reference,
            "pull",
            None,
        )
    assert failure.type is type(_failure(said, reference, "pull"))
    assert said in f"{failure.value.message} {failure.value.where}"


def test_layers_are_counted_together_while_they_come() -> None:
    seen: list[tuple[int, int]] = []
    lines = [
        {"status": "Pulling fs layer", "progressDetail": {}, "id": "a"},
        {"status": "Downloading", "progressDetail": {"current": 1, "total": 4}, "id": "a"},
        {"status": "Downloading", "progressDetail": {"current": 2, "total": 6}, "id": "b"},
        {"status": "Downloading", "progressDetail": {"current": 4, "total": 4}, "id": "a"},
        {"status": "Extracting", "progressDetail": {"current": 1, "total": 4}, "id": "a"},
        {"status": "Downloading", "progressDetail": {"current": 9, "total": 6}, "id": "b"},
        {"progressDetail": {}, "aux": {"Tag": "1", "Digest": DIGEST, "Size": 5}},
    ]
    digest = _follow(lines, parse_image("a/b:1"), "push", lambda done, total: seen.append((done, total)))
    assert digest == DIGEST
    # Engines tell more bytes than they announce.
    assert seen == [(1, 4), (3, 10), (6, 10), (10, 10)]


@pytest.mark.parametrize("text", ["127.0.0.1:5474", "lab/tiny", "tiny:1", "", "localhost/", "docker.io"])
def test_a_place_without_host_or_name_is_a_slip_and_never_docker_hub(text: str) -> None:
    with pytest.raises(UsageError, match="no host and repository") as failure:
        parse_place(text)
    assert "HOST/NAME" in (failure.value.hint or "")


def test_a_place_is_what_was_written() -> None:
    assert str(parse_place("localhost/tiny:1")) == "oci://localhost/tiny:1"
    assert parse_place("docker.io/lab/tiny").host == "docker.io"
    with pytest.raises(UsageError):
        parse_place("host.example/UPPER")


def test_names_are_those_that_engines_write() -> None:
    assert engine_name_of(parse_image("debian:12")) == "debian"
    assert engine_name_of(parse_image("lab/tiny:1")) == "lab/tiny"
    assert engine_name_of(parse_image(f"{HOST}/lab/tiny:1")) == f"{HOST}/lab/tiny"
    key = ImageKey("My Framework+", "2.1+cpu", "amd64", "gpu")
    assert usual_name(key) == "mlbundle/my-framework:2.1_cpu-gpu-amd64"
