"""A bundle that carries its image: packed here, run on a machine that has neither the image nor a network."""

from __future__ import annotations

import io
import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from registry_fixture import RealRegistry
from support import Outcome, command_line, make_bundle

from mlbundle.bundle.reader import open_bundle
from mlbundle.platforms import this_architecture
from mlbundle.signing.referrers import load_referrer, parse_referrer

pytestmark = pytest.mark.engine

FRAMEWORK = """\
name: onnxruntime
version: 1.31.1
containers:
  {architecture}:
    cpu: {{image: '{image}', digest: '{digest}'}}
"""
QUICK = ("--runtime", "docker", "--queries", "2000", "--trace", "none")
PLAIN = "--plain-http"


@dataclass(frozen=True)
class Variant:
    """An image that only this module knows: removing it takes nothing from anybody else."""

    engine: Any
    id: str
    name: str

    def remove(self) -> None:
        """Take the image out of the engine, under all its names."""
        from docker.errors import NotFound

        with suppress(NotFound):
            self.engine.api.remove_image(self.id, force=True, noprune=True)

    def is_there(self) -> bool:
        from docker.errors import NotFound

        try:
            self.engine.api.inspect_image(self.id)
        except NotFound:
            return False
        return True


@dataclass(frozen=True)
class Packed:
    """A bundle with the variant embedded, what `pack` said of it, and the folder that it was packed from."""

    file: Path
    document: dict[str, Any]
    folder: Path
    variant: Variant

    @property
    def pin(self) -> dict[str, Any]:
        """The entry of the framework table."""
        (pin,) = self.document["images"]
        return dict(pin)


def mlbundle(home: Path, *arguments: str | Path, offline: bool = False, **environment: str) -> Outcome:
    """Run the command in a home; `offline` leaves it no network at all but the engine's socket."""
    words = command_line(*arguments)
    done = subprocess.run(
        ["unshare", "--net", *words] if offline and can_unshare() else words,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "MLBUNDLE_HOME": str(home), **environment},
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def can_unshare() -> bool:
    try:
        return subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def ok(outcome: Outcome) -> dict[str, Any]:
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    return outcome.document()


@pytest.fixture(scope="module")
def variant(image_home: Path, engine: Any) -> Iterator[Variant]:
    lock = json.loads((image_home / "data" / "images.lock").read_text())
    (entry,) = (entry for key, entry in lock["images"].items() if key.startswith("onnxruntime/"))
    name = f"mlbundle-test/variant:{uuid.uuid4().hex}"
    dockerfile = f"FROM {entry['config_digest']}\nLABEL io.mlbundle.test={name}\n"
    image, _ = engine.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=name, rm=True)
    made = Variant(engine, image.id, name)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def packed(variant: Variant, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """A bundle with image, bill of materials, provenance and signature; the image is gone afterwards."""
    root = tmp_path_factory.mktemp("packed")
    folder = make_bundle(root / "mini")
    (folder / "framework.yml").write_text(
        FRAMEWORK.format(architecture=this_architecture(), image=variant.name, digest=variant.id)
    )
    ok(mlbundle(root / "home", "keygen", root / "key", "--json"))
    attached = ("--sbom", "--provenance", "--key", root / "key")
    done = mlbundle(
        root / "home",
        "pack",
        folder,
        "--with-image",
        "--frozen",
        *attached,
        "-o",
        root / "mini.mlb",
        "--json",
    )
    again = mlbundle(root / "other-home", "pack", folder, "--with-image", "--dry-run", "--json")
    assert ok(again)["manifest_digest"] == ok(done)["manifest_digest"], "an export that is not reproducible"
    variant.remove()
    return Packed(root / "mini.mlb", done.document(), folder, variant)


@pytest.fixture
def absent(packed: Packed) -> Iterator[None]:
    """The engine has not got the image, and has not got it from us afterwards."""
    assert not packed.variant.is_there()
    yield
    packed.variant.remove()


def test_the_bundle_says_what_it_carries(packed: Packed) -> None:
    home = packed.file.parent / "home"
    pin = packed.pin
    assert (pin["config"], pin["digest"], pin["image"]) == (
        packed.variant.id,
        packed.variant.id,
        packed.variant.name,
    )
    inspected = ok(mlbundle(home, "inspect", packed.file, "--json"))
    assert inspected["embedded"] == [{"accelerator": "cpu", "index": pin["index"]}]
    assert len(inspected["referrers"]) == 3
    assert "embedded" in mlbundle(home, "inspect", packed.file).stdout
    verified = ok(mlbundle(home, "verify", packed.file, "--key", packed.file.parent / "key.pub", "--json"))
    assert verified["images"] == [f"{this_architecture()}/cpu"]
    assert len(verified["trust"]["signers"]) == 1
    assert len(verified["trust"]["attestations"]) == 2


def statements(path: Path) -> dict[str, Any]:
    """The in-toto statements attached to a bundle, by the type of what they say."""
    import base64

    found = {}
    with open_bundle(path) as reader:
        for entry in reader.referrers:
            referrer = load_referrer(reader.source, entry.manifest.digest)
            for layer in parse_referrer(referrer.manifest).layers:
                envelope = json.loads(referrer.blobs[layer.hex])["dsseEnvelope"]
                statement = json.loads(base64.b64decode(envelope["payload"]))
                assert [s["digest"]["sha256"] for s in statement["subject"]] == [reader.manifest_hex]
                found[statement["predicateType"]] = statement["predicate"]
    return found


def test_what_is_attached_names_the_software_and_the_files(packed: Packed) -> None:
    found = statements(packed.file)
    assert len(found) == 3
    (sbom,) = (predicate for kind, predicate in found.items() if "cyclonedx" in kind.lower())
    names = {component["purl"].partition("@")[0] for component in sbom["components"]}
    assert "pkg:pypi/onnxruntime" in names
    assert "pkg:pypi/numpy" in names
    assert {"pkg:deb/debian/libc6", "pkg:deb/debian/python3"} <= names
    (provenance,) = (predicate for kind, predicate in found.items() if "provenance" in kind)
    digests = {
        dependency["digest"]["sha256"] for dependency in provenance["buildDefinition"]["resolvedDependencies"]
    }
    files = {file["sha256"] for file in packed.document["files"]}
    assert len(files) == 4
    assert files <= digests
    assert packed.variant.id.removeprefix("sha256:") in digests


def check_run(done: Outcome, packed: Packed) -> None:
    """It ran in the image of the bundle, with the answers that the bundle claims."""
    record = done.document()
    # A machine with other work to do may be too restless for a measurement that counts.
    assert done.status == (0 if record["validity"]["valid"] else 1), done.stderr
    assert (record["status"], record["runtime"]) == ("completed", "docker")
    assert record["accuracy"]["passed"] is True
    assert record["bundle"]["manifest_digest"] == packed.document["manifest_digest"]
    # An engine with the classic store knows an image by its config; what it does not know is not told.
    image = record["image"]
    assert (image["ref"], image["config_digest"]) == (packed.pin["image"], packed.pin["config"])
    for name in ("index", "manifest"):
        assert image[f"{name}_digest"] in {None, packed.pin[name]}


def test_it_runs_where_there_is_no_network_and_no_image(
    packed: Packed, absent: None, registry: RealRegistry, tmp_path: Path
) -> None:
    """Pushed, pulled into an empty home, run without a network; the next run loads nothing."""
    repository = f"{registry.host}/images/mini"
    pushed = ok(mlbundle(tmp_path / "there", "push", packed.file, repository, PLAIN, "--json"))
    assert (pushed["images"], pushed["referrers"]) == ([f"{this_architecture()}/cpu"], 3)
    home = tmp_path / "here"
    pulled = ok(mlbundle(home, "pull", repository, PLAIN, "--json"))
    assert pulled["manifest_digest"] == packed.document["manifest_digest"]
    first = mlbundle(home, "run", "mini", *QUICK, "--json", offline=True)
    check_run(first, packed)
    assert "loading the image" in first.stderr
    assert packed.variant.is_there()
    second = mlbundle(home, "run", "mini", *QUICK, "--json", offline=True)
    check_run(second, packed)
    assert "loading the image" not in second.stderr


def test_a_bundle_file_runs_likewise(packed: Packed, absent: None, tmp_path: Path) -> None:
    check_run(mlbundle(tmp_path, "run", packed.file, *QUICK, "--json", offline=True), packed)


def test_without_images_a_run_says_what_is_missing(
    packed: Packed, absent: None, registry: RealRegistry, tmp_path: Path
) -> None:
    repository = f"{registry.host}/images/without"
    ok(mlbundle(tmp_path, "push", packed.file, repository, PLAIN, "--json"))
    assert ok(mlbundle(tmp_path, "pull", repository, PLAIN, "-n", "--json"))["images"]
    ok(mlbundle(tmp_path, "pull", repository, "--images", "none", PLAIN, "--json"))
    inspected = ok(mlbundle(tmp_path, "inspect", "mini", "--json"))
    assert inspected["embedded"] == []
    assert inspected["manifest_digest"] == packed.document["manifest_digest"]
    error = mlbundle(tmp_path, "run", "mini", *QUICK, "--json").error(3, "image-missing")
    assert packed.variant.name in error["message"]
    assert not packed.variant.is_there()


def test_a_damaged_image_never_reaches_the_engine(packed: Packed, absent: None, tmp_path: Path) -> None:
    with open_bundle(packed.file) as reader:
        largest = max(reader.images[0].layers, key=lambda layer: layer.size_bytes)
        key = largest.hex.encode()
    data = bytearray(packed.file.read_bytes())
    # The member's header has its name, 512 bytes long; its data follow.
    place = data.rindex(b"blobs/sha256/" + key) + 512 + largest.size_bytes // 2
    data[place] ^= 1
    (tmp_path / "damaged.mlb").write_bytes(data)
    mlbundle(tmp_path, "run", tmp_path / "damaged.mlb", *QUICK, "--json").error(5, "digest-mismatch")
    assert not packed.variant.is_there()


def test_what_was_built_here_is_pinned_on_request(
    image_home: Path, in_image_home: Path, tmp_path: Path
) -> None:
    lock = json.loads((image_home / "data" / "images.lock").read_text())
    (entry,) = (entry for key, entry in lock["images"].items() if key.startswith("onnxruntime/"))
    document = ok(
        mlbundle(image_home, "pack", "digits-cnn", "--pin", "-o", tmp_path / "pinned.mlb", "--json")
    )
    # Images of further frameworks may have been built here as well.
    own = [pin["config"] for pin in document["images"] if "framework" not in pin]
    assert own == [entry["config_digest"]]
    assert entry["ref"] in {pin["image"] for pin in document["images"]}
    for options in ((), ("--pin",)):
        # The built-in manifest names images of two architectures, and one machine builds for one.
        target = tmp_path / "frozen.mlb"
        refused = mlbundle(image_home, "pack", "digits-cnn", "--frozen", *options, "-o", target, "--json")
        assert "not pinned" in refused.error(2, "usage")["message"]
        assert not target.exists()


def test_what_can_not_be_packed_is_said_before_anything_is_written(packed: Packed, tmp_path: Path) -> None:
    target = tmp_path / "t.mlb"
    for options, status, reference in (
        (("--sbom",), 2, "usage"),
        (("--platform", "amd64/cpu"), 2, "usage"),
        (("--with-image", "--platform", "cpu"), 2, "usage"),
        (("--with-image",), 3, "image-missing"),
    ):
        mlbundle(tmp_path, "pack", packed.folder, *options, "-o", target, "--json").error(status, reference)
        assert not target.exists()
