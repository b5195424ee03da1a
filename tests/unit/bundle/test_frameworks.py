"""A bundle of several frameworks: their manifests, their pins, the names of their images."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_samples import content
from hypothesis import given
from hypothesis import strategies as st
from image_samples import Image

from mlbundle.bundle import oci
from mlbundle.bundle.assemble import with_images
from mlbundle.bundle.content import BundleContent, Role, SourceFile
from mlbundle.bundle.diff import diff
from mlbundle.bundle.digests import sha256_hex
from mlbundle.bundle.document import ImagePin, Place, encode_bundle, parse_bundle
from mlbundle.bundle.inspect import inspect
from mlbundle.bundle.layout import further_framework_path, is_further_name
from mlbundle.bundle.pack import pack
from mlbundle.bundle.reader import open_bundle
from mlbundle.bundle.verify import verify
from mlbundle.config import Settings
from mlbundle.errors import BundleCorrupt, ImageMissing, UnsafePath, UsageError
from mlbundle.resources import load_schema
from mlbundle.runs.embedded import Platform, _wanted, check_frozen, load_embedded, with_pins
from mlbundle.runs.packing import framework_manifests
from mlbundle.runtime.lock import ImageKey, LockedImage, record_image

DIGEST = "sha256:" + "ab" * 32
names = st.text(st.sampled_from("abT09._-é \u212a\n"), min_size=0, max_size=66) | st.from_regex(
    r"[A-Za-z0-9]{1,8}([._-][A-Za-z0-9]{1,8}){0,8}", fullmatch=True
)


def framework(name: str, version: str = "2.0", containers: str = "") -> SourceFile:
    """The manifest of a further framework."""
    text = f"name: {name}\nversion: '{version}'\n{containers}"
    return SourceFile(further_framework_path(name), Role.FRAMEWORK, text.encode())


def several(*further: str, **values: Any) -> BundleContent:
    """A bundle of `none` and further frameworks, all of version 2.0."""
    return content(
        *(framework(name) for name in further), frameworks=tuple((name, "2.0") for name in further), **values
    )


@given(names)
def test_a_name_is_what_the_schema_says(name: str) -> None:
    pattern = load_schema("bundle")["properties"]["frameworks"]["items"]["properties"]["name"]
    fits = re.search(pattern["pattern"].replace("$", r"\Z"), name) and len(name) <= pattern["maxLength"]
    assert is_further_name(name) == bool(fits)
    if fits:
        assert further_framework_path(name) == f"mlbundle/frameworks/{name.lower()}.yml"
    else:
        with pytest.raises(UsageError):
            further_framework_path(name)


further_names = names.filter(is_further_name).map(str.lower)
tags = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}", fullmatch=True)
images = st.tuples(
    st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True),
    tags,
    st.none() | further_names.filter(lambda n: len(n) < 20),
)


@given(images, images)
def test_the_tag_of_an_image_is_that_of_no_other(one: Any, other: Any) -> None:
    assert (oci.image_ref(*one) == oci.image_ref(*other)) == (one == other)
    assert oci.is_tag(oci.image_ref(*one))


def test_names_that_could_be_read_in_two_ways_are_not() -> None:
    """What a plain sequence with dots would mix up."""
    assert oci.image_ref("cpu", "gpu.1.0") != oci.image_ref("gpu", "1.0", "cpu")
    assert oci.image_ref("cpu", "1.0", "a.b") != oci.image_ref("cpu", "b.1.0", "a")
    assert oci.image_ref("cpu", "1.0", "torch") == "fw.cpu-torch--1.0"


@given(st.lists(images.map(lambda image: (image[0], image[2])), unique=True, max_size=5), tags)
def test_an_index_is_read_as_it_was_written(found: Any, tag: str) -> None:
    entries = tuple(
        oci.ImageEntry(accelerator, oci.Descriptor(oci.INDEX_TYPE, f"{number:064x}", 5), name)
        for number, (accelerator, name) in enumerate(found)
    )
    model = oci.Descriptor(oci.MANIFEST_TYPE, "f" * 64, 9)
    data = oci.encode_index(oci.Index(model, tag, entries))
    parsed = oci.parse_index(json.loads(data), "x")
    assert set(parsed.images) == set(entries)
    assert oci.encode_index(parsed) == data
    # Of images that two copies of a bundle have, the newer ones stay; none pushes out that of another framework.
    older = oci.Index(model, tag, entries[:3])
    assert oci.merge_indexes(oci.encode_index(older), data) == data


def test_the_manifests_come_right_after_the_first_layers(tmp_path: Path) -> None:
    made = several("torch", "TF", images=(ImagePin("amd64", "cpu", "x:1", DIGEST, framework="tf"),))
    packed = pack(made, tmp_path / "t.mlb")
    assert [layer.path for layer in packed.layers][:4] == [
        *("mlbundle/model.yml", "mlbundle/framework.yml", "mlbundle/frameworks/tf.yml"),
        "mlbundle/frameworks/torch.yml",
    ]
    with open_bundle(tmp_path / "t.mlb") as reader:
        assert list(reader.further_frameworks) == ["tf", "torch"]
        assert reader.further_frameworks["tf"] == b"name: TF\nversion: '2.0'\n"
        document = reader.document
    assert list(document.to_document())[2:4] == ["framework", "frameworks"]
    assert next(iter(document.to_document()["images"][0])) == "framework"
    assert parse_bundle(json.loads(encode_bundle(document)), "x") == document
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(document.to_document(), load_schema("bundle"))
    empty = {**document.to_document(), "frameworks": []}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(empty, load_schema("bundle"))


def test_a_bundle_of_one_framework_says_nothing_of_others(tmp_path: Path) -> None:
    pack(several(), tmp_path / "t.mlb")
    with open_bundle(tmp_path / "t.mlb") as reader:
        assert "frameworks" not in reader.document.to_document()
        assert reader.further_frameworks == {}


def test_the_set_digest_covers_the_further_manifests(tmp_path: Path) -> None:
    one = pack(several("torch"), tmp_path / "1.mlb")
    changed = replace(
        several("torch"),
        files=(
            *content().files,
            replace(framework("torch"), source=b"name: torch\nversion: '2.0' # as well\n"),
        ),
    )
    other = pack(changed, tmp_path / "2.mlb")
    assert one.set_digest != other.set_digest
    assert "mlbundle/frameworks/torch.yml" in {entry.path for entry in one.files}


def pin(**values: Any) -> ImagePin:
    return ImagePin(
        **{"architecture": "amd64", "accelerator": "cpu", "image": "x:1", "digest": DIGEST, **values}
    )


REFUSED: dict[str, tuple[BundleContent, str]] = {
    "top_level_again": (several("NONE"), "one manifest of a framework"),
    "twice": (
        replace(several("tf"), frameworks=(("tf", "2.0"), ("TF", "2.0"))),
        "one manifest of a framework",
    ),
    "seventeen": (several(*(f"f{number}" for number in range(17))), "more than the 16"),
    "no_manifest": (replace(several("tf"), files=content().files), "exactly one each"),
    "no_name": (replace(several("tf"), frameworks=()), "exactly one each"),
    "a_file": (
        replace(
            several("tf"), files=(*content().files, replace(framework("tf"), source=Path("/etc/hostname")))
        ),
        "given as bytes",
    ),
    "bad_name": (replace(several("tf"), frameworks=(("t/f", "2.0"),)), "can't be that of a further"),
    "empty_version": (replace(several("tf"), frameworks=(("tf", ""),)), "version of tf"),
    "pin_of_another": (several("tf", images=(pin(framework="torch"),)), "no manifest"),
    "pin_of_the_top_level": (several("tf", images=(pin(framework="none"),)), "no manifest"),
    "pin_twice": (several("tf", images=(pin(framework="tf"), pin(framework="tf"))), "tf/amd64/cpu"),
    "too_many_pins": (
        several(images=tuple(pin(architecture=f"a{n}") for n in range(65))),
        "more than the 64",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_be_packed_is_said(case: str, tmp_path: Path) -> None:
    made, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        pack(made, tmp_path / "t.mlb")
    assert list(tmp_path.iterdir()) == []


def test_an_asset_can_not_lie_among_the_manifests(tmp_path: Path) -> None:
    asset = SourceFile("mlbundle/frameworks/torch.yml", Role.CODE, b"x")
    with pytest.raises(UnsafePath, match="taken by the bundle"):
        pack(content(asset), tmp_path / "t.mlb")


def test_names_are_held_against_the_manifests(tmp_path: Path) -> None:
    made = replace(several("torch"), frameworks=(("Torch", "2.0"),))
    pack(made, tmp_path / "t.mlb")
    with pytest.raises(BundleCorrupt, match="'Torch'") as refused:
        verify(tmp_path / "t.mlb")
    assert (refused.value.where or "").endswith("!mlbundle/frameworks/torch.yml#/name")


def test_the_differences_of_further_frameworks(tmp_path: Path) -> None:
    one = several("torch", "tf", images=(pin(framework="tf"),))
    two = replace(
        content(framework("torch", "2.1"), framework("jax")), frameworks=(("torch", "2.1"), ("jax", "2.0"))
    )
    pack(one, tmp_path / "1.mlb")
    pack(two, tmp_path / "2.mlb")
    with open_bundle(tmp_path / "1.mlb") as left, open_bundle(tmp_path / "2.mlb") as right:
        found = [(c.section, c.kind, c.place, c.left, c.right) for c in diff(left, right).changes]
        assert diff(left, left).changes == ()
    assert found == [
        ("framework", "removed", "tf", "tf 2.0", None),
        ("framework", "added", "jax", None, "jax 2.0"),
        ("framework", "changed", "torch#/version", "2.0", "2.1"),
        ("images", "removed", "tf/amd64/cpu", {"image": "x:1", "digest": DIGEST}, None),
    ]


def embedded(*frameworks: str | None) -> BundleContent:
    """A bundle with images for the frameworks, whose bytes are the same."""
    image = Image()
    further = [name for name in frameworks if name]
    return several(
        *further,
        images=tuple(replace(found, framework=name) for name in frameworks for found in image.pins),
        embedded=tuple(replace(image.source, framework=name) for name in frameworks),
    )


def test_images_of_several_frameworks_lie_side_by_side(tmp_path: Path) -> None:
    """Also where two of them are one image: its blobs are there once."""
    pack(embedded("torch", None), tmp_path / "t.mlb")
    assert verify(tmp_path / "t.mlb").images == ("amd64/cpu", "torch/amd64/cpu")
    found = inspect(tmp_path / "t.mlb").to_document()
    assert found["frameworks"] == [{"name": "torch", "version": "2.0"}]
    assert [entry.get("framework") for entry in found["embedded"]] == [None, "torch"]
    with open_bundle(tmp_path / "t.mlb") as reader, with_images(reader, []) as lean:
        assert lean.images == ()
        assert lean.manifest_digest == reader.manifest_digest


def test_the_image_of_one_framework_is_not_taken_for_another(tmp_path: Path) -> None:
    made = embedded("torch", None)
    only_torch = tuple(found for found in made.images if found.framework == "torch")
    pack(replace(made, images=only_torch), tmp_path / "t.mlb")
    with pytest.raises(BundleCorrupt, match="amd64/cpu is not the one of the framework table"):
        open_bundle(tmp_path / "t.mlb")


CONTAINERS = "containers: {{amd64: {{cpu: {{image: '{0}:cpu', build: containers/{0}}}, gpu: '{0}:gpu'}}}}\n"


@pytest.fixture
def two() -> BundleContent:
    """A bundle of `none` and `torch`, both with an image for amd64/cpu that can be built, and one that can't."""
    top = SourceFile(
        "mlbundle/framework.yml",
        Role.FRAMEWORK,
        f"name: none\nversion: '1.0'\n{CONTAINERS.format('none')}".encode(),
    )
    model = SourceFile("mlbundle/model.yml", Role.MODEL, b"name: tiny\n")
    files = (model, top, framework("torch", containers=CONTAINERS.format("torch")))
    return BundleContent("tiny", "1.0.0", "none", "1.0", files, frameworks=(("torch", "2.0"),))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path / "config", tmp_path / "data", tmp_path / "cache")


def built(settings: Settings, name: str, version: str) -> str:
    """Note an image as one that was built here; return its digest."""
    digest = "sha256:" + sha256_hex(name.encode())
    locked = LockedImage(ref=f"{name}:cpu", config_digest=digest)
    record_image(settings.images_lock, ImageKey(name, version, "amd64", "cpu"), locked)
    return digest


def test_images_that_were_built_are_pinned_for_each_framework(two: BundleContent, settings: Settings) -> None:
    first, _ = framework_manifests(two)
    with pytest.raises(ImageMissing, match=r"none 1\.0 or torch 2\.0"):
        with_pins(two, first, settings)
    torch = built(settings, "torch", "2.0")
    built(settings, "torch", "1.9")
    assert with_pins(two, first, settings).images == (
        ImagePin("amd64", "cpu", "torch:cpu", config=torch, framework="torch"),
    )
    none = built(settings, "none", "1.0")
    assert set(with_pins(two, first, settings).images) == {
        ImagePin("amd64", "cpu", "none:cpu", config=none),
        ImagePin("amd64", "cpu", "torch:cpu", config=torch, framework="torch"),
    }


def test_frozen_asks_for_the_images_of_all_frameworks(two: BundleContent) -> None:
    first, _ = framework_manifests(two)
    every = [
        pin(accelerator=accelerator, framework=name)
        for name in (None, "torch")
        for accelerator in ("cpu", "gpu")
    ]
    check_frozen(replace(two, images=tuple(every)), first)
    with pytest.raises(UsageError, match="the image for torch/amd64/gpu is not pinned"):
        check_frozen(replace(two, images=tuple(every[:3])), first)
    with pytest.raises(UsageError, match="the image for amd64/cpu is not pinned"):
        check_frozen(replace(two, images=tuple(every[1:])), first)


def test_a_platform_that_a_further_framework_has_not_is_passed_over(two: BundleContent) -> None:
    first, torch = framework_manifests(two)
    told: list[str] = []
    platforms = [Platform("amd64", "cpu"), Platform("arm64", "cpu")]
    wanted = list(_wanted([(None, first), ("torch", torch)], platforms, told.append))
    assert [(found.key, found.accelerator, found.architectures) for found in wanted] == [
        # Of the top level's it is an error later, with what there is.
        (None, "cpu", ("amd64", "arm64")),
        ("torch", "cpu", ("amd64",)),
    ]
    assert told == ["not embedded: torch has no image for arm64/cpu"]


def test_only_the_image_of_the_framework_is_loaded(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for is looked up by framework, architecture and accelerator; anything else is not there."""
    asked: list[Place] = []

    def has_image(found: ImagePin, _client: Any) -> bool:
        asked.append(found.place)
        return True

    monkeypatch.setattr("mlbundle.runtime.images.has_image", has_image)
    pins = [
        pin(manifest=DIGEST, framework=name, architecture=arch) for name in (None, "torch") for arch in "ab"
    ]

    def load(**wanted: Any) -> None:
        assert load_embedded("x", pins, "cpu", settings, None, **wanted) is None

    load(architecture="b", framework="torch")
    load(architecture="a")
    load(architecture="a", framework="tf")
    load(architecture="c", framework="torch")
    assert asked == [Place("torch", "b", "cpu"), Place(None, "a", "cpu")]
