"""Images of two frameworks: from a real engine into one bundle, and each alone from there into the engine."""

from __future__ import annotations

import io
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlbundle.bundle.content import BundleContent, Role, SourceFile
from mlbundle.bundle.document import ImagePin
from mlbundle.bundle.layout import further_framework_path
from mlbundle.bundle.pack import pack
from mlbundle.bundle.reader import open_bundle
from mlbundle.bundle.verify import verify
from mlbundle.config import Settings
from mlbundle.errors import ImageMissing
from mlbundle.platforms import this_architecture
from mlbundle.runs.embedded import Platform, check_frozen, load_embedded, with_images
from mlbundle.runs.packing import framework_manifests
from mlbundle.runtime.images import resolve_image

pytestmark = pytest.mark.engine

HERE = this_architecture()


def tar_of(text: str) -> bytes:
    """A file system of one file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        found = tarfile.TarInfo("framework")
        found.size = len(text)
        archive.addfile(found, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def ids(engine: Any) -> Iterator[dict[str, str]]:
    """Two images of a few bytes that only this test knows, by the names of their frameworks."""
    names = {name: f"mlbundle-test/{name}:{uuid.uuid4().hex}" for name in ("none", "torch")}
    for name, reference in names.items():
        repository, _, tag = reference.partition(":")
        engine.api.import_image_from_data(tar_of(reference), repository=repository, tag=tag)
        names[name] = engine.api.inspect_image(reference)["Id"]
    yield names
    for image_id in names.values():
        remove(engine, image_id)


def remove(engine: Any, image_id: str) -> None:
    from docker.errors import NotFound

    with suppress(NotFound):
        engine.api.remove_image(image_id, force=True, noprune=True)


def has(engine: Any, image_id: str) -> bool:
    return any(image["Id"] == image_id for image in engine.api.images(all=True))


def manifest(name: str, image_id: str) -> bytes:
    image = f"{{image: 'mlbundle-test/{name}', digest: '{image_id}'}}"
    return f"name: {name}\nversion: '1.0'\ncontainers: {{{HERE}: {{cpu: {image}}}}}\n".encode()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path / "config", tmp_path / "data", tmp_path / "cache")


@pytest.fixture
def content(ids: dict[str, str]) -> BundleContent:
    """A bundle of both frameworks, whose manifests pin the images."""
    files = (
        SourceFile("mlbundle/model.yml", Role.MODEL, b"name: tiny\n"),
        SourceFile("mlbundle/framework.yml", Role.FRAMEWORK, manifest("none", ids["none"])),
        SourceFile(further_framework_path("torch"), Role.FRAMEWORK, manifest("torch", ids["torch"])),
    )
    pins = (
        ImagePin(HERE, "cpu", "mlbundle-test/none", ids["none"]),
        ImagePin(HERE, "cpu", "mlbundle-test/torch", ids["torch"], framework="torch"),
    )
    return BundleContent("tiny", "1.0.0", "none", "1.0", files, images=pins, frameworks=(("torch", "1.0"),))


def test_the_image_of_each_framework_is_loaded_alone(
    content: BundleContent, ids: dict[str, str], settings: Settings, engine: Any, tmp_path: Path
) -> None:
    none, torch = framework_manifests(content)
    told: list[str] = []
    with ExitStack() as stack:
        whole = with_images(content, none, [Platform.here()], settings, stack=stack, report=told.append)
        check_frozen(whole, none)
        bundle = pack(whole, tmp_path / "two.mlb").path
    assert [line.rpartition(" ")[2] for line in told] == [f"({HERE}/cpu)", f"(torch/{HERE}/cpu)"]
    assert verify(bundle).images == (f"{HERE}/cpu", f"torch/{HERE}/cpu")
    with open_bundle(bundle) as reader:
        pins = reader.document.images
    assert {pin.framework: pin.config for pin in pins} == {None: ids["none"], "torch": ids["torch"]}

    for image_id in ids.values():
        remove(engine, image_id)
    # Another machine: its store is empty.
    elsewhere = replace(settings, data_dir=tmp_path / "elsewhere")
    for key, framework, other in (("torch", torch, none), (None, none, torch)):
        own = [pin for pin in pins if pin.framework == key]
        loaded = load_embedded(str(bundle), pins, "cpu", elsewhere, engine, framework=key)
        assert loaded == ids[framework.name]
        assert resolve_image(framework, HERE, "cpu", elsewhere, engine, pins=own).image_id == loaded
        assert not has(engine, ids[other.name])
        # It is there now, so nothing is loaded again.
        assert load_embedded(str(bundle), pins, "cpu", elsewhere, engine, framework=key) is None
        remove(engine, loaded)


def test_an_image_that_is_not_here_is_named(
    content: BundleContent, ids: dict[str, str], settings: Settings, engine: Any
) -> None:
    remove(engine, ids["torch"])
    with ExitStack() as stack, pytest.raises(ImageMissing, match="mlbundle-test/torch"):
        with_images(content, framework_manifests(content)[0], [Platform.here()], settings, stack=stack)
