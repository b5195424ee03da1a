"""A bundle with images of several frameworks, to a real registry and back, as strangers write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attack_cases import run
from bundle_forge import INDEX_TYPE, Forge, images, sha256
from registry_fixture import RealRegistry

from mlbundle.platforms import this_architecture
from mlbundle.registry.client import RegistryClient

PLAIN = "--plain-http"
HERE = this_architecture()


@pytest.fixture(scope="module")
def forged() -> tuple[Forge, bytes]:
    """A bundle with images of its first framework and of another one, which are not the same."""
    forge = Forge(
        images=images("cpu"),
        further=[("Torch", "2.0", b"name: Torch\n")],
        further_images={"torch": {"cpu": images("other")["other"]}},
    )
    return forge, forge.build()


@pytest.fixture
def target(registry: RealRegistry, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.lower()).strip("-")
    return f"{registry.host}/frameworks/{name}"


def ok(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status, document = run(capsys, *arguments)
    assert status == 0, document
    return document


def test_every_image_goes_and_comes_under_its_own_tag(
    forged: tuple[Forge, bytes], target: str, box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge, data = forged
    (box / "two.mlb").write_bytes(data)
    pushed = ok(capsys, "push", "two.mlb", target, PLAIN)
    every = ["amd64/cpu", "arm64/cpu", "torch/amd64/cpu", "torch/arm64/cpu"]
    assert pushed["images"] == every
    indexes = {pin.get("framework"): pin["index"] for pin in forge.table_of_images}
    assert len(set(indexes.values())) == 2
    host, _, name = target.partition("/")
    with RegistryClient(host, name, plain_http=True, user_agent="test") as client:
        assert sorted(client.tags()) == ["1.0.0", "fw.cpu-torch--1.0.0", "fw.cpu.1.0.0"]
        assert client.head_manifest("fw.cpu.1.0.0", (INDEX_TYPE,)) == indexes[None]
        assert client.head_manifest("fw.cpu-torch--1.0.0", (INDEX_TYPE,)) == indexes["torch"]

    looked = ok(capsys, "inspect", f"oci://{target}", PLAIN)
    assert looked["frameworks"] == [{"name": "Torch", "version": "2.0"}]
    assert [(found.get("framework"), found["index"]) for found in looked["embedded"]] == [*indexes.items()]

    ok(capsys, "pull", target, "--images", "all", PLAIN, "-o", "back.mlb")
    assert sha256((box / "back.mlb").read_bytes()) == sha256(data)


def test_what_is_pulled_is_chosen_for_all_frameworks_alike(
    forged: tuple[Forge, bytes], target: str, box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, data = forged
    (box / "two.mlb").write_bytes(data)
    digest = ok(capsys, "push", "two.mlb", target, PLAIN)["manifest_digest"]
    auto = [f"{HERE}/cpu", f"torch/{HERE}/cpu"] if HERE in {"amd64", "arm64"} else []
    for choice, expected in (("none", []), ("auto", auto)):
        assert ok(capsys, "pull", target, "--images", choice, "-n", PLAIN)["images"] == expected
        assert ok(capsys, "pull", target, "--images", choice, PLAIN)["manifest_digest"] == digest
        assert ok(capsys, "verify", "tiny")["manifest_digest"] == digest
        # Of no index are all platforms here.
        assert ok(capsys, "inspect", "tiny")["embedded"] == []
    ok(capsys, "pull", target, "--images", "all", PLAIN)
    assert [found.get("framework") for found in ok(capsys, "inspect", "tiny")["embedded"]] == [None, "torch"]


def test_without_images_only_the_model_goes(
    forged: tuple[Forge, bytes], target: str, box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (box / "two.mlb").write_bytes(forged[1])
    assert ok(capsys, "push", "two.mlb", target, "--without-images", PLAIN)["images"] == []
    assert ok(capsys, "pull", target, "--images", "all", "-n", PLAIN)["images"] == []
    ok(capsys, "pull", target, "--images", "all", PLAIN)
    assert ok(capsys, "verify", "tiny")["images"] == []


def test_a_tag_that_is_too_long_for_an_image_is_refused_before_anything_is_sent(
    forged: tuple[Forge, bytes], target: str, box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (box / "two.mlb").write_bytes(forged[1])
    room = 128 - len("fw.cpu-torch--")
    status, document = run(capsys, "push", "two.mlb", f"{target}:{'x' * (room + 1)}", PLAIN)
    assert (status, document["reference"]) == (2, "usage")
    assert document["where"].startswith("fw.cpu-torch--x")
    assert ok(capsys, "push", "two.mlb", f"{target}:{'x' * room}", PLAIN)["images"]
