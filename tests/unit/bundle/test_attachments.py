"""Images and referrers of a bundle: what holds is read, and every lie about them is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from image_samples import IMAGE_CONFIG_TYPE, LAYER_TYPE, MANIFEST_TYPE, Image, Note, hex_of

from mlbundle.bundle.attachments import MAX_REFERRER_BYTES, EmbeddedImage, Referrer, read_image, read_referrer
from mlbundle.bundle.document import ImagePin
from mlbundle.bundle.oci import Descriptor
from mlbundle.bundle.overlay import MemoryBlobs
from mlbundle.errors import BundleCorrupt, DigestMismatch, IntegrityError

MODEL = b"the model manifest"
SUBJECT = (f"sha256:{hex_of(MODEL)}", len(MODEL))


def read(image: Image, pins: list[ImagePin] | None = None, *, whole: bool = True) -> EmbeddedImage:
    return read_image(
        MemoryBlobs(image.blobs), image.entry, image.pins if pins is None else pins, whole=whole
    )


def refer(note: Note, *, lacks: bytes = b"", whole: bool = True) -> Referrer:
    blobs = {**note.blobs, hex_of(note.manifest): note.manifest}
    blobs.pop(hex_of(lacks), None)
    subject = Descriptor(MANIFEST_TYPE, hex_of(MODEL), len(MODEL))
    return read_referrer(MemoryBlobs(blobs), note.entry, subject, whole=whole)


def test_a_sound_image_is_read() -> None:
    image = Image("cuda", ("amd64", "arm64"))
    found = read(image)
    assert found.accelerator == "cuda"
    assert [(p.architecture, p.os) for p in found.platforms] == [("amd64", "linux"), ("arm64", "linux")]
    assert [d.hex for d in found.documents] == [
        hex_of(data) for data in (image.index, *image.manifests, *image.configs)
    ]
    assert len(found.layers) == 4
    assert {layer.hex for layer in found.layers} == {hex_of(layer) for layer in image.layers}


def with_entry(**values: Any) -> Image:
    return Image(edit_index=lambda document: document["manifests"][0].update(values))


def with_manifest(**values: Any) -> Image:
    return Image(edit_manifest=lambda document: document.update(values))


def with_layer(**values: Any) -> Image:
    return Image(edit_manifest=lambda document: document["layers"][1].update(values))


LYING_IMAGES = {
    "an index of another type": Image(edit_index=lambda d: d.update(mediaType=MANIFEST_TYPE)),
    "an index of another version": Image(edit_index=lambda d: d.update(schemaVersion=1)),
    "an index with a key we do not know": Image(edit_index=lambda d: d.update(annotations={})),
    "no platform": Image(edit_index=lambda d: d.update(manifests=[])),
    "a platform twice": Image(architectures=("amd64", "amd64")),
    "platforms out of order": Image(architectures=("arm64", "amd64")),
    "too many platforms": Image(architectures=tuple(f"a{n:02}" for n in range(17))),
    "a platform with a variant": with_entry(
        platform={"architecture": "arm64", "os": "linux", "variant": "v8"}
    ),
    "an architecture that is not pinned": with_entry(platform={"architecture": "riscv64", "os": "linux"}),
    "a manifest of another type": with_manifest(
        mediaType="application/vnd.docker.distribution.manifest.v2+json"
    ),
    "a manifest with a subject": with_manifest(subject={}),
    "a config of another type": with_manifest(
        config={"mediaType": "application/json", "digest": f"sha256:{hex_of(b'{}')}", "size": 2}
    ),
    "a config that is not pinned": with_manifest(
        config={"mediaType": IMAGE_CONFIG_TYPE, "digest": f"sha256:{hex_of(b'base')}", "size": 4}
    ),
    "a layer that browsers fetch": with_layer(urls=["https://example.com/layer"]),
    "a layer of an unknown type": with_layer(mediaType="application/vnd.oci.image.layer.v1.tar+gzip"),
    "a layer of another size": with_layer(size=3),
    "a layer that is missing": with_layer(digest=f"sha256:{hex_of(b'nowhere')}"),
    "a layer with another algorithm": with_layer(digest="sha512:" + "0" * 128),
    "a layer without an end": with_layer(size=-1),
}


@pytest.mark.parametrize("image", LYING_IMAGES.values(), ids=LYING_IMAGES)
def test_lies_about_images_are_refused(image: Image) -> None:
    with pytest.raises(BundleCorrupt) as caught:
        read(image)
    assert caught.value.where


@pytest.mark.parametrize("name", ["index", "manifest", "config"])
def test_an_image_must_be_the_one_of_the_framework_table(name: str) -> None:

    image = Image()
    for value in (f"sha256:{'0' * 64}", None):
        changed: dict[str, Any] = {name: value}
        with pytest.raises(BundleCorrupt, match="not the one of the framework table"):
            read(image, [replace(image.pins[0], **changed)])


def test_an_image_without_a_pin_or_with_that_of_another_is_refused() -> None:
    image, other = Image("cpu"), Image("cuda")
    for pins in ([], other.pins):
        with pytest.raises(BundleCorrupt, match="not the one of the framework table"):
            read(image, list(pins))


def test_other_bytes_under_a_digest_are_refused() -> None:
    image = Image()
    for key in (hex_of(image.index), hex_of(image.manifests[0])):
        blobs = {**image.blobs, key: image.blobs[key].replace(b'"schemaVersion":2', b'"schemaVersion":3')}
        with pytest.raises(DigestMismatch):
            read_image(MemoryBlobs(blobs), image.entry, image.pins, whole=True)


def test_a_look_needs_the_documents_alone() -> None:
    image = Image()
    for data in (*image.layers, *image.configs):
        del image.blobs[hex_of(data)]
    assert read(image, whole=False).layers[0].media_type == LAYER_TYPE
    with pytest.raises(BundleCorrupt, match="missing"):
        read(image)
    del image.blobs[hex_of(image.manifests[0])]
    with pytest.raises(BundleCorrupt, match="missing"):
        read(image, whole=False)


def test_a_sound_referrer_is_read() -> None:
    note = Note(SUBJECT)
    found = refer(note)
    assert (found.artifact_type, found.predicate_type) == ("application/vnd.example.note", None)
    assert [layer.hex for layer in found.layers] == [hex_of(note.text)]
    predicate = {"dev.sigstore.bundle.predicateType": "https://example.com/said"}
    said = Note(SUBJECT, edit=lambda document: document.update(annotations=predicate))
    assert refer(said).predicate_type == "https://example.com/said"


LYING_REFERRERS = {
    "another subject": Note((f"sha256:{hex_of(b'other')}", len(MODEL))),
    "a subject of another size": Note((SUBJECT[0], len(MODEL) + 1)),
    "a subject of another type": Note(
        SUBJECT, edit=lambda d: d["subject"].update(mediaType="application/vnd.oci.image.index.v1+json")
    ),
    "no subject": Note(SUBJECT, edit=lambda d: d.pop("subject")),
    "another artifact type than the index says": Note(SUBJECT, edit=lambda d: d.update(artifactType="a/b")),
    "no artifact type": Note(SUBJECT, edit=lambda d: d.pop("artifactType")),
    "a key we do not know": Note(SUBJECT, edit=lambda d: d.update(blobs=[])),
    "no config": Note(SUBJECT, edit=lambda d: d.pop("config")),
    "too many layers": Note(SUBJECT, edit=lambda d: d.update(layers=d["layers"] * 65)),
    "a layer elsewhere": Note(SUBJECT, edit=lambda d: d["layers"][0].update(urls=["https://example.com"])),
    "a layer of another size": Note(SUBJECT, edit=lambda d: d["layers"][0].update(size=7)),
    "an annotation that is no text": Note(
        SUBJECT, edit=lambda d: d.update(annotations={"dev.sigstore.bundle.predicateType": 7})
    ),
}


@pytest.mark.parametrize("note", LYING_REFERRERS.values(), ids=LYING_REFERRERS)
def test_lies_about_referrers_are_refused(note: Note) -> None:
    with pytest.raises(IntegrityError) as caught:
        refer(note)
    assert caught.value.where


def test_the_blobs_of_a_referrer_must_be_there() -> None:
    note = Note(SUBJECT)
    for data in (note.text, note.config):
        with pytest.raises(BundleCorrupt, match="missing"):
            refer(note, lacks=data)
        refer(note, lacks=data, whole=False)
    with pytest.raises(BundleCorrupt, match="missing"):
        refer(note, lacks=note.manifest, whole=False)


def test_a_referrer_has_a_cap() -> None:
    refer(Note(SUBJECT, text=bytes(MAX_REFERRER_BYTES)))
    with pytest.raises(BundleCorrupt, match="cap"):
        refer(Note(SUBJECT, text=bytes(MAX_REFERRER_BYTES + 1)))
