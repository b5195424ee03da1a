"""`mlbundle images` on a real engine and a real registry: out and back by every way, and the same image is run."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from inprocess import InProcess
from registry_fixture import RealRegistry
from support import Cli, lacking

from mlbundle.runtime.image_facts import inspect_image, names_of
from mlbundle.runtime.image_list import entry_of
from mlbundle.runtime.lock import ImageKey, LockedImage, read_images_lock, record_image

pytestmark = pytest.mark.engine

QUICK = ("--runtime", "docker", "--duration", "300ms", "--warmup", "10ms", "--json")
SMALL = ImageKey("tiny", "1.0", "amd64", "cpu")


def remove_all(engine: Any, identifier: str) -> None:
    facts = inspect_image(engine, identifier)
    for name in names_of(facts) if facts else ():
        engine.api.remove_image(name)
    if inspect_image(engine, identifier):
        engine.api.remove_image(identifier, force=True)


def make(engine: Any, key: ImageKey | None, *changes: str) -> str:
    """Make an image of one file, which shares its id with no other, with the labels of its use; returns the id."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        member = tarfile.TarInfo("file")
        member.size = 4096
        archive.addfile(member, io.BytesIO(os.urandom(4096)))
    labels = [f"LABEL io.mlbundle.{name}={value}" for name, value in asdict(key).items()] if key else []
    said = engine.api.import_image_from_data(stream.getvalue(), changes=[*labels, *changes])
    return str(json.loads(said.splitlines()[-1])["status"])


def lock_of(home: Path) -> dict[ImageKey, LockedImage]:
    return read_images_lock(home / "data" / "images.lock")


@pytest.fixture
def copied(engine: Any, image_home: Path, home: Path) -> Iterator[tuple[ImageKey, str]]:
    """A copy of the session's image with an id of its own, pinned in the lock of this test's home."""
    key, built = next(item for item in lock_of(image_home).items() if item[0].framework == "onnxruntime")
    dockerfile = f"FROM {built.config_digest}\nLABEL test={uuid.uuid4().hex}\n".encode()
    lines = list(engine.api.build(fileobj=io.BytesIO(dockerfile), rm=True, forcerm=True, decode=True))
    identifier = next(line["aux"]["ID"] for line in lines if "aux" in line)
    name = f"mlbundle-test/copy-{uuid.uuid4().hex[:8]}:1"
    engine.api.tag(identifier, *name.split(":"))
    facts = inspect_image(engine, identifier)
    assert facts is not None
    (home / "data").mkdir()
    record_image(home / "data" / "images.lock", key, entry_of(facts, name, source="built"))
    yield key, identifier
    remove_all(engine, identifier)


def run(cli: Cli) -> dict[str, Any]:
    record = cli("run", "digits-cnn", *QUICK).document()
    assert record["accuracy"]["passed"] is True
    return dict(record["image"])


def listed(cli: Cli, key: ImageKey) -> dict[str, Any]:
    images = cli("images", "list", key.framework, "--json").document()["images"]
    (found,) = [
        i for i in images if (i["architecture"], i["accelerator"]) == (key.architecture, key.accelerator)
    ]
    return dict(found)


def test_an_image_goes_to_a_file_and_to_a_registry_and_comes_back_the_same(
    cli, engine, copied, registry: RealRegistry, home: Path, tmp_path: Path
) -> None:
    key, identifier = copied
    archive, repository = tmp_path / "image.tar", f"{registry.host}/{uuid.uuid4().hex}/onnxruntime"

    exported = cli("images", "export", key.framework, "-o", archive, "--json").document()
    pushed = cli("images", "push", key.framework, repository, "--json").document()
    assert (exported["framework"], exported["accelerator"]) == (key.framework, key.accelerator)
    assert exported["config_digest"] == pushed["config_digest"] == identifier
    manifest_digest = pushed["from_registry"]["manifest_digest"]

    def remove() -> None:
        removed = cli("images", "rm", key.framework, "--yes", "--json").document()
        assert removed["removed"] is True
        assert inspect_image(engine, identifier) is None
        assert listed(cli, key)["state"] == "gone"
        error = cli("run", "digits-cnn", *QUICK).error(3, "image-missing")
        assert f"mlbundle images pull {key.framework}" in error["hint"]

    remove()
    cli("images", "load", archive, "--json").document()
    assert run(cli)["config_digest"] == identifier
    remove()
    # The command that the error names: no address, the lock knows it.
    cli("images", "pull", key.framework, "--json").document()
    image = run(cli)
    assert (image["config_digest"], image["manifest_digest"]) == (identifier, manifest_digest)

    tag = f"{key.version}-{key.accelerator}-{key.architecture}"
    wanted = {"ref": f"{repository}:{tag}", "manifest_digest": manifest_digest}
    found = listed(cli, key)
    assert (found["state"], found["source"], found["config_digest"]) == ("ready", "built", identifier)
    assert found["registry"] == [{**wanted, "index_digest": None}]
    entry = json.loads((home / "data" / "images.lock").read_text())["images"][str(key)]
    assert (entry["config_digest"], entry["registry"]) == (identifier, [wanted])
    # The session's own image has kept its name.
    assert found["ref"].startswith("mlbundle/onnxruntime:")
    assert cli("images", "lock", "--check").status == 0


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> InProcess:
    """The command line of the short commands."""
    return InProcess(capsys)


def tiny_manifest(tmp_path: Path, image: str) -> Path:
    path = tmp_path / "framework.yml"
    path.write_text(f"name: tiny\nversion: '1.0'\ncontainers:\n  amd64:\n    cpu: {{image: '{image}'}}\n")
    return path


@pytest.fixture
def tiny(engine: Any) -> Iterator[str]:
    """An image whose labels say what it is for."""
    identifier = make(engine, SMALL)
    yield identifier
    remove_all(engine, identifier)


@pytest.fixture
def other(engine: Any) -> Iterator[str]:
    """Another one for the same use."""
    identifier = make(engine, SMALL)
    yield identifier
    remove_all(engine, identifier)


def upload(engine: Any, identifier: str, ref: str) -> None:
    """Push by the engine alone, and leave no trace of it there."""
    repository, _, tag = ref.rpartition(":")
    engine.api.tag(identifier, repository, tag, force=True)
    for line in engine.api.push(repository, tag=tag, stream=True, decode=True):
        assert "error" not in line, line
    # The image itself must stay when its only name goes.
    engine.api.tag(identifier, "mlbundle-test/kept", identifier[7:19])
    engine.api.remove_image(ref)


@pytest.fixture
def kept(engine: Any) -> Iterator[None]:
    yield
    for image in engine.api.images(name="mlbundle-test/kept"):
        remove_all(engine, image["Id"])


@pytest.mark.usefixtures("kept")
def test_a_tag_that_moved_is_refused_until_it_is_wanted(
    here, engine, tiny, other, registry: RealRegistry, home: Path, tmp_path: Path
) -> None:
    ref = f"{registry.host}/{uuid.uuid4().hex}/tiny:1"
    manifest = ("--framework-manifest", tiny_manifest(tmp_path, ref))
    upload(engine, tiny, ref)
    first = here("images", "pull", "tiny", *manifest, "--json").document()
    assert first["config_digest"] == tiny
    upload(engine, other, ref)
    error = here("images", "pull", "tiny", "--from", ref, "--json").error(5, "image-mismatch")
    assert "moved" in error["message"]
    assert first["from_registry"]["manifest_digest"] in error["where"]
    assert lock_of(home)[SMALL].config_digest == tiny
    newer = here("images", "pull", ref, "--update", "--json").document()
    assert newer["config_digest"] == other
    assert lock_of(home)[SMALL].config_digest == other
    # By its digest the first one is still to be had, and is not what is pinned now.
    digest = f"{ref.rpartition(':')[0]}@{first['from_registry']['manifest_digest']}"
    here("images", "pull", digest, "--json").error(5, "image-mismatch")


@pytest.mark.usefixtures("kept")
def test_what_is_pulled_must_be_what_it_is_wanted_for(
    here, engine, tiny, registry: RealRegistry, home: Path
) -> None:
    ref = f"{registry.host}/{uuid.uuid4().hex}/tiny:1"
    upload(engine, tiny, ref)
    error = here("images", "pull", "onnxruntime", "--from", ref, "--json").error(5, "image-mismatch")
    assert "framework tiny, wanted onnxruntime" in error["message"]
    here("images", "pull", f"{registry.host}/no/such:1", "--json").error(3, "image-missing")
    here("images", "pull", "127.0.0.1:1/no/such:1", "--json").error(3, "registry-unavailable")
    error = here("images", "pull", "onnxruntime", "--json").error(3, "image-missing")
    assert "mlbundle images build onnxruntime" in error["hint"]
    assert lock_of(home) == {}


def pin(home: Path, engine: Any, identifier: str, ref: str = "mlbundle-test/gone:1") -> None:
    facts = inspect_image(engine, identifier)
    assert facts is not None
    record_image(home / "data" / "images.lock", SMALL, entry_of(facts, ref, source="built"))


def test_a_push_moves_no_tag_unless_it_is_told_to(here, engine, tiny, other, registry, home) -> None:
    ref = f"{registry.host}/{uuid.uuid4().hex}/tiny:1"
    pin(home, engine, tiny)
    digest = here("images", "push", "tiny", ref, "--json").document()["from_registry"]["manifest_digest"]
    pin(home, engine, other)
    engine.api.remove_image(ref, noprune=True)
    assert digest in here("images", "push", "tiny", ref, "--json").error(2, "usage")["where"]
    forced = here("images", "push", "tiny", ref, "--force", "--json").document()
    assert forced["from_registry"]["manifest_digest"] != digest


def test_an_archive_is_the_same_twice_and_replaces_nothing_unasked(here, engine, tiny, tmp_path) -> None:
    name = "mlbundle-test/archived:1"
    engine.api.tag(tiny, *name.split(":"))
    one, two = tmp_path / "one.tar", tmp_path / "two.tar"
    for target in (one, two):
        here("images", "export", name, "-o", target, "--json").document()
    assert one.read_bytes() == two.read_bytes()
    here("images", "export", name, "-o", one, "--json").error(2, "usage")
    assert here("images", "export", name, "-o", one, "--force").status == 0
    here("images", "export", "no/such:1", "-o", tmp_path / "three.tar", "--json").error(3, "image-missing")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.tar", "two.tar"]


def skopeo_copy(source: str, target: str) -> None:
    if shutil.which("skopeo") is None:
        lacking("skopeo is not installed")
    subprocess.run(["skopeo", "copy", "-q", source, target], check=True)


def test_skopeo_reads_what_we_write_and_the_image_stays_the_same(here, engine, tiny, home, tmp_path) -> None:
    here("images", "export", tiny, "-o", tmp_path / "ours.tar", "--json").document()
    skopeo_copy(f"oci-archive:{tmp_path}/ours.tar", f"oci-archive:{tmp_path}/theirs.tar:x")
    remove_all(engine, tiny)
    loaded = here("images", "load", tmp_path / "theirs.tar", "--json").document()
    assert loaded["config_digest"] == tiny
    assert inspect_image(engine, tiny) is not None
    assert lock_of(home)[SMALL].source == "loaded"


def test_an_archive_that_skopeo_made_is_loaded_whatever_compresses_it(
    here, engine, tiny, home, tmp_path
) -> None:
    engine.api.tag(tiny, "mlbundle-test/for-skopeo", "1")
    skopeo_copy("docker-daemon:mlbundle-test/for-skopeo:1", f"oci-archive:{tmp_path}/theirs.tar:x")
    with tarfile.open(tmp_path / "theirs.tar") as archive:
        documents = [archive.extractfile(member) for member in archive if member.isreg()]
        assert any(b"tar+gzip" in stream.read() for stream in documents if stream)
    loaded = here("images", "load", tmp_path / "theirs.tar", "--name", "x", "--json").document()
    try:
        # That program writes a config of its own, and so it is another image with the same use.
        assert lock_of(home)[SMALL].config_digest == loaded["config_digest"] != tiny
        assert inspect_image(engine, loaded["config_digest"]) is not None
        here("images", "load", tmp_path / "theirs.tar", "--name", "y", "--json").error(3, "image-missing")
    finally:
        remove_all(engine, loaded["config_digest"])


def test_an_archive_of_another_image_is_not_taken_for_the_pinned_one(
    here, engine, tiny, other, home, tmp_path
) -> None:
    pin(home, engine, tiny)
    here("images", "export", other, "-o", tmp_path / "other.tar", "--json").document()
    error = here("images", "load", tmp_path / "other.tar", "--json").error(5, "image-mismatch")
    assert tiny in error["where"]
    here("images", "load", tmp_path / "other.tar", "--update", "--json").document()
    assert lock_of(home)[SMALL].config_digest == other


def test_an_image_without_labels_needs_to_be_told_what_it_is_for(here, engine, home, tmp_path) -> None:
    identifier = make(engine, None)
    try:
        here("images", "export", identifier, "-o", tmp_path / "plain.tar", "--json").document()
        error = here("images", "load", tmp_path / "plain.tar", "--json").error(2, "usage")
        assert "--as" in error["hint"]
        wrong = ("--as", "tiny/1.0/arm64/cpu")
        here("images", "load", tmp_path / "plain.tar", *wrong, "--json").error(5, "image-mismatch")
        here("images", "load", tmp_path / "plain.tar", "--as", str(SMALL), "--json").document()
        assert lock_of(home)[SMALL].config_digest == identifier
    finally:
        remove_all(engine, identifier)


def test_rm_asks_keeps_the_pin_and_spares_what_is_in_use(here, engine, tiny, home) -> None:
    pin(home, engine, tiny)
    engine.api.tag(tiny, "mlbundle-test/in-use", "1")
    assert "--yes" in here("images", "rm", "tiny", "--json").error(2, "usage")["hint"]
    planned = here("images", "rm", "tiny", "--dry-run", "--json").document()
    assert (planned["removed"], planned["names"]) == (False, ["mlbundle-test/in-use:1"])
    container = engine.api.create_container(tiny, command=["/none"])["Id"]
    try:
        error = here("images", "rm", "tiny", "--yes", "--json").error(2, "usage")
        assert container[:12] in error["context"][0]
    finally:
        engine.api.remove_container(container, v=True)
    assert inspect_image(engine, "mlbundle-test/in-use:1") is not None
    here("images", "rm", "tiny", "--yes", "--json").document()
    assert inspect_image(engine, tiny) is None
    assert lock_of(home)[SMALL].config_digest == tiny
    check = here("images", "lock", "tiny", "--check", "--json")
    assert check.status == 1
    assert [image["state"] for image in check.document()["images"]] == ["gone"]
    here("images", "rm", "tiny", "--yes", "--json").error(3, "image-missing")


def test_lock_pins_what_has_the_right_name_and_labels_alone(here, engine, tiny, home, tmp_path) -> None:
    name = f"mlbundle-test/{uuid.uuid4().hex}:1"
    manifest = ("--framework-manifest", tiny_manifest(tmp_path, name))
    engine.api.tag(tiny, *name.split(":"))
    looked = here("images", "lock", "tiny", *manifest, "--check", "--json").document()
    assert [image["state"] for image in looked["images"]] == ["new"]
    assert lock_of(home) == {}
    here("images", "lock", "tiny", *manifest, "--json").document()
    assert lock_of(home)[SMALL].config_digest == tiny
    plain = tiny_manifest(tmp_path, os.environ.get("MLBUNDLE_TEST_BASE_IMAGE", name))
    plain.write_text(plain.read_text().replace("1.0", "2.0"))
    found = here("images", "lock", "tiny", "--framework-manifest", plain, "--json").document()["images"]
    assert [image["version"] for image in found] == ["1.0"]
    here("images", "lock", "no-such-framework", "--json").error(2, "reference-not-found")


def states(here: InProcess, *arguments: str | Path) -> tuple[int, list[tuple[str, str | None]], str]:
    """Status, states with the other image, and the first hint of `images lock --check` and, the same, of the list."""
    checked = here("images", "lock", "tiny", "--check", *arguments, "--json")
    pins = checked.document()["images"]
    images = here("images", "list", "tiny", *arguments, "--json").document()["images"]
    assert [image["state"] for image in images] == [pin["state"] for pin in pins]
    assert [image["hint"] for image in images] == [pin["hint"] for pin in pins]
    return checked.status, [(pin["state"], pin["found"]) for pin in pins], str(pins[0]["hint"])


def test_list_and_lock_call_the_same_thing_the_same_and_say_what_to_do(
    here, engine, tiny, other, home, tmp_path
) -> None:
    name = f"mlbundle-test/{uuid.uuid4().hex}:1"
    manifest = ("--framework-manifest", tiny_manifest(tmp_path, name))
    engine.api.tag(tiny, *name.split(":"))
    assert states(here, *manifest)[:2] == (0, [("new", None)])
    said = here("images", "lock", "tiny", *manifest, "--check").stderr
    assert "pinned" in said
    assert "kept in" not in said
    assert "pinned 1 in" in here("images", "lock", "tiny", *manifest).stderr
    assert states(here, *manifest)[:2] == (0, [("ready", None)])

    engine.api.tag(tiny, "mlbundle-test/kept", tiny[7:19])
    engine.api.tag(other, *name.split(":"), force=True)
    status, found, hint = states(here, *manifest)
    assert (status, found) == (0, [("moved", other)])
    assert "runs still take the pinned one" in hint
    assert (
        here("images", "list", "tiny", *manifest, "--here", "--json").document()["images"][0]["size_bytes"]
        > 0
    )

    remove_all(engine, tiny)
    status, found, hint = states(here, *manifest)
    assert (status, found) == (1, [("differs", other)])
    assert name in hint
    assert here("images", "list", "tiny", *manifest, "--here", "--json").document()["images"] == []

    # What the hint of one that moved says: the pin goes, and the other one is pinned.
    forgotten = here("images", "rm", "tiny", *manifest, "--forget", "--yes", "--json").document()
    assert (forgotten["removed"], forgotten["forgotten"]) == (False, True)
    here("images", "lock", "tiny", *manifest, "--json").document()
    assert lock_of(home)[SMALL].config_digest == other


def test_a_push_without_a_name_goes_nowhere(here, engine, tiny, home) -> None:
    pin(home, engine, tiny)
    error = here("images", "push", "tiny", "127.0.0.1:5474", "--json").error(2, "usage")
    assert "HOST/NAME" in error["hint"]
    assert names_of(inspect_image(engine, tiny) or {}) == []
