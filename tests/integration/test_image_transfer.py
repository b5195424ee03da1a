"""Images out of a real engine and back: the same image, or a typed error and nothing in the engine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import resource
import tarfile
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mlbundle.bundle.zstdio import Compressor
from mlbundle.errors import (
    BundleCorrupt,
    DigestMismatch,
    EngineUnavailable,
    ImageMismatch,
    ImageMissing,
    IntegrityError,
    MlbundleError,
    StorageFailed,
    UsageError,
)
from mlbundle.runtime.image_export import ExportedImage, export_image, make_index
from mlbundle.runtime.image_layers import TAR_TYPE, ZSTD_TYPE
from mlbundle.runtime.image_load import load_image, read_image
from mlbundle.store.blobs import BlobStore

pytestmark = pytest.mark.engine

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def hex_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tar_of(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return stream.getvalue()


def zstd(data: bytes) -> bytes:
    compressor = Compressor()
    return compressor.compress(data) + compressor.finish()


def config_of(layers: list[bytes], **more: Any) -> bytes:
    """A config as an engine would write it, unique so that no other image shares it."""
    return json.dumps({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["A=b"], "Cmd": ["/x"], "Labels": {"test": uuid.uuid4().hex}},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hex_of(layer) for layer in layers]},
        **more,
    }).encode()  # fmt: skip


class Blobs:
    """Blobs in memory under names that need not be right."""

    name = "blobs of a test"

    def __init__(self) -> None:
        self.by_hex: dict[str, bytes] = {}
        self.reads = 0

    def add(self, data: bytes, hexadecimal: str | None = None) -> str:
        key = hexadecimal or hex_of(data)
        self.by_hex[key] = data
        return key

    def size_of(self, hexadecimal: str) -> int | None:
        return len(self.by_hex[hexadecimal]) if hexadecimal in self.by_hex else None

    def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
        self.reads += 1
        return self.by_hex[hexadecimal][offset : offset + size_bytes]

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        view[:] = self.read_at(hexadecimal, offset, len(view))

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        return f"{hexadecimal[:12]}, byte {offset}"

    def close(self) -> None:
        pass


def manifest_of(blobs: Blobs, config: bytes, layers: list[tuple[str, bytes]], **more: Any) -> bytes:
    """Put the parts into `blobs` and return the manifest that joins them."""

    def descriptor(media_type: str, data: bytes) -> dict[str, Any]:
        return {"mediaType": media_type, "digest": "sha256:" + blobs.add(data), "size": len(data)}

    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor(CONFIG_TYPE, config),
        "layers": [descriptor(*layer) for layer in layers],
        **more,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def has(engine: Any, name: str) -> bool:
    from docker.errors import NotFound

    try:
        engine.api.inspect_image(name)
    except NotFound:
        return False
    return True


def content_of(engine: Any, image: str, path: str) -> bytes:
    """A file of an image, by way of a container that is never started."""
    container = engine.api.create_container(image, command=["/none"])["Id"]
    try:
        chunks, _ = engine.api.get_archive(container, path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            stream = archive.extractfile(archive.getmembers()[0])
            assert stream is not None
            return stream.read()
    finally:
        engine.api.remove_container(container, v=True)


@pytest.fixture
def tag(engine: Any) -> Iterator[str]:
    """A name that no image has; whatever has it afterwards is removed."""
    name = f"mlbundle/test-{uuid.uuid4().hex}:1.0"
    yield name
    with suppress(Exception):
        engine.api.remove_image(name, force=True)


@pytest.fixture
def built(engine: Any) -> Iterator[str]:
    """An image of two layers: one imported, one built on it; shares nothing with any other."""
    unique = uuid.uuid4().hex
    base, name = f"mlbundle-test/base-{unique}:1", f"mlbundle-test/built-{unique}:1"
    try:
        repository, _, version = base.rpartition(":")
        engine.api.import_image_from_data(
            tar_of({"first.txt": unique.encode()}), repository=repository, tag=version
        )
        context = tar_of({
            "Dockerfile": f"FROM {base}\nCOPY second.txt /second.txt\n".encode(),
            "second.txt": unique[::-1].encode(),
        })  # fmt: skip
        for item in engine.api.build(
            fileobj=io.BytesIO(context), custom_context=True, tag=name, rm=True, decode=True
        ):
            assert "error" not in item, item
        yield name
    finally:
        for image in (name, base):
            with suppress(Exception):
                engine.api.remove_image(image, force=True)


@pytest.fixture
def made(engine: Any) -> Iterator[Callable[..., str]]:
    """Puts an image of given layers into the engine, as `docker load` takes it."""
    names = []

    def make(layers: list[bytes]) -> str:
        name = f"mlbundle-test/made-{uuid.uuid4().hex}:1"
        names.append(name)
        paths = [f"{hex_of(layer)}.tar" for layer in layers]
        listing = [{"Config": "c.json", "RepoTags": [name], "Layers": paths}]
        files = {"c.json": config_of(layers), "manifest.json": json.dumps(listing).encode()}
        engine.images.load(tar_of({**files, **dict(zip(paths, layers, strict=True))}))
        return name

    yield make
    for name in names:
        with suppress(Exception):
            engine.api.remove_image(name, force=True)


def test_an_image_goes_out_and_comes_back(engine, built, tag, tmp_path) -> None:
    identifier = engine.api.inspect_image(built)["Id"]
    unique = content_of(engine, built, "/first.txt")
    store, seen = BlobStore(tmp_path), []
    image = export_image(engine, built, store, progress=lambda done, total: seen.append((done, total)))
    assert "sha256:" + image.config_hex == identifier
    assert (image.ref, image.architecture, image.os) == (built, "amd64", "linux")
    assert [layer.media_type for layer in image.layers] == [ZSTD_TYPE] * 2
    assert image.unpacked_bytes == sum(layer.unpacked_bytes for layer in image.layers) > 2048
    assert all(0 < done <= total for done, total in seen)

    document = json.loads(image.manifest_bytes)
    assert list(document) == ["schemaVersion", "mediaType", "config", "layers"]
    assert store.read_at(image.manifest_hex, 0, 1 << 20) == image.manifest_bytes
    blobs = [image.config_hex, image.manifest_hex, *(layer.hex for layer in image.layers)]
    for hexadecimal in blobs:
        assert hex_of(store.read_at(hexadecimal, 0, 1 << 20)) == hexadecimal

    again = export_image(engine, identifier, BlobStore(tmp_path / "again"))
    assert again.manifest_bytes == image.manifest_bytes

    engine.api.remove_image(built)
    assert not has(engine, identifier)
    seen.clear()
    loaded = load_image(
        engine, image.manifest_bytes, store, tag=tag, progress=lambda done, total: seen.append((done, total))
    )
    assert loaded == identifier == engine.api.inspect_image(tag)["Id"]
    assert seen[-1][0] == seen[-1][1] > 0
    assert content_of(engine, tag, "/first.txt") == unique
    assert content_of(engine, tag, "/second.txt") == unique[::-1]
    assert export_image(engine, tag, BlobStore(tmp_path / "third")).manifest_bytes == image.manifest_bytes


def test_layers_may_stay_plain_and_equal_ones_are_links_in_the_archive(engine, made, tag, tmp_path) -> None:
    # An engine before 25 writes the second of two equal layers as a symbolic link to the first.
    first, second = (tar_of({f"{n}.txt": uuid.uuid4().bytes}) for n in "ab")
    name = made([first, second, first])
    store = BlobStore(tmp_path)
    image = export_image(engine, name, store, compress=False)
    assert [layer.media_type for layer in image.layers] == [TAR_TYPE] * 3
    assert [layer.hex for layer in image.layers] == [hex_of(first), hex_of(second), hex_of(first)]
    engine.api.remove_image(name)
    assert load_image(engine, image.manifest_bytes, store, tag=tag) == "sha256:" + image.config_hex


def test_an_image_that_is_there_is_not_loaded_again(engine, built, tag, tmp_path) -> None:
    store = BlobStore(tmp_path)
    image = export_image(engine, built, store)
    assert load_image(engine, image.manifest_bytes, store, tag=tag) == "sha256:" + image.config_hex
    assert not has(engine, tag)


def test_the_usual_encodings_of_other_builders_are_read(engine, tag) -> None:
    layers = [tar_of({f"{n}.txt": uuid.uuid4().bytes * 2000}) for n in range(4)]
    blobs = Blobs()
    half = len(layers[1]) // 2
    encoded = [
        (TAR_TYPE, layers[0]),
        (TAR_TYPE + "+gzip", gzip.compress(layers[1][:half]) + gzip.compress(layers[1][half:])),
        (DOCKER_LAYER, gzip.compress(layers[2])),
        (ZSTD_TYPE, zstd(layers[3])),
    ]
    config = config_of(layers)
    identifier = load_image(engine, manifest_of(blobs, config, encoded), blobs, tag=tag)
    assert identifier == "sha256:" + hex_of(config)
    for number in range(4):
        with tarfile.open(fileobj=io.BytesIO(layers[number])) as archive:
            expected = archive.extractfile(f"{number}.txt").read()  # type: ignore[union-attr]
        assert content_of(engine, tag, f"/{number}.txt") == expected


def test_a_big_layer_needs_little_memory(engine, made, tag, tmp_path) -> None:
    name = made([tar_of({"noise": random.Random(uuid.uuid4().hex).randbytes(40 << 20)})])
    store = BlobStore(tmp_path)
    tracemalloc.start()
    try:
        image = export_image(engine, name, store)
        engine.api.remove_image(name)
        load_image(engine, image.manifest_bytes, store, tag=tag)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 << 20


def test_a_layer_cannot_name_images(engine, tag) -> None:
    evil = f"mlbundle-test/evil-{uuid.uuid4().hex}:1"
    listing = json.dumps([{"Config": "config.json", "RepoTags": [evil], "Layers": []}]).encode()
    files = {"manifest.json": listing, "config.json": b"{}", "repositories": b"{}"}
    layer, blobs = tar_of(files), Blobs()
    manifest = manifest_of(blobs, config_of([layer]), [(ZSTD_TYPE, zstd(layer))])
    load_image(engine, manifest, blobs, tag=tag)
    assert content_of(engine, tag, "/manifest.json") == listing
    assert not has(engine, evil)
    assert engine.api.inspect_image(tag)["RepoTags"] == [tag]


def refused(
    engine: Any,
    tag: str,
    manifest: bytes,
    blobs: Blobs,
    kind: type[MlbundleError],
    words: str,
    **options: Any,
) -> MlbundleError:
    """Loading fails with this error, and the engine has neither the image nor the name."""
    config = json.loads(manifest)["config"]["digest"]
    assert not has(engine, config)
    with pytest.raises(kind, match=words) as caught:
        load_image(engine, manifest, blobs, tag=tag, **options)
    assert type(caught.value) is kind
    assert not has(engine, tag)
    assert not has(engine, config)
    return caught.value


def two_layers() -> tuple[Blobs, bytes, list[bytes], list[tuple[str, bytes]]]:
    layers = [tar_of({f"{n}.txt": uuid.uuid4().bytes * 100}) for n in range(2)]
    return Blobs(), config_of(layers), layers, [(ZSTD_TYPE, zstd(layer)) for layer in layers]


@pytest.mark.parametrize("encode", [zstd, gzip.compress, bytes], ids=["zstd", "gzip", "tar"])
def test_a_flipped_bit_of_a_layer_is_its_digest(engine, tag, encode) -> None:
    layer = tar_of({"a.txt": uuid.uuid4().bytes * 100})
    blob = encode(layer)
    kind = {zstd: ZSTD_TYPE, gzip.compress: TAR_TYPE + "+gzip", bytes: TAR_TYPE}[encode]
    blobs = Blobs()
    manifest = manifest_of(blobs, config_of([layer]), [(kind, blob)])
    for position in (0, 4, len(blob) // 2, len(blob) - 1):
        flipped = bytearray(blob)
        flipped[position] ^= 1
        blobs.add(bytes(flipped), hex_of(blob))
        refused(engine, tag, manifest, blobs, DigestMismatch, "the blob has the digest")


def test_a_flipped_bit_of_the_config_is_its_digest(engine, tag) -> None:
    blobs, config, _, encoded = two_layers()
    manifest = manifest_of(blobs, config, encoded)
    blobs.add(config.replace(b"amd64", b"amd65"), hex_of(config))
    refused(engine, tag, manifest, blobs, DigestMismatch, "the image config has the digest")


def test_no_flipped_bit_of_the_manifest_names_another_image() -> None:
    blobs, config, _, encoded = two_layers()
    manifest = manifest_of(blobs, config, encoded)
    right = read_image(manifest, blobs)
    for position in range(len(manifest)):
        flipped = bytearray(manifest)
        flipped[position] ^= 1
        with suppress(IntegrityError, ImageMissing):
            assert read_image(bytes(flipped), blobs) == right


def test_layers_in_another_order_and_lying_diff_ids_are_refused(engine, tag) -> None:
    blobs, config, layers, encoded = two_layers()
    swapped = manifest_of(blobs, config, encoded[::-1])
    refused(engine, tag, swapped, blobs, DigestMismatch, "the unpacked layer has the digest")
    lying = config.replace(hex_of(layers[1]).encode(), hex_of(b"other").encode())
    refused(engine, tag, manifest_of(blobs, lying, encoded), blobs, DigestMismatch, "the unpacked layer")
    fewer = manifest_of(blobs, config, encoded[:1])
    refused(engine, tag, fewer, blobs, BundleCorrupt, "1 layers and 2 diff ids")


def test_bytes_that_change_after_the_check_are_never_an_image(engine, tag) -> None:
    blobs, config, _, encoded = two_layers()
    manifest = manifest_of(blobs, config, encoded)

    class Changing(Blobs):
        def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
            data = super().read_at(hexadecimal, offset, size_bytes)
            # The config, two layers to check; the fifth read is that of the second layer to send.
            return data[:-1] + bytes([data[-1] ^ 1]) if self.reads == 5 else data

    changing = Changing()
    changing.by_hex = blobs.by_hex
    refused(engine, tag, manifest, changing, DigestMismatch, "has the digest")
    assert changing.reads == 5
    assert load_image(engine, manifest, changing, tag=tag) == "sha256:" + hex_of(config)


@pytest.mark.parametrize("encode", [zstd, gzip.compress], ids=["zstd", "gzip"])
def test_a_bomb_is_refused_unless_its_size_is_stated(engine, tag, encode) -> None:
    layer = tar_of({"zeros": bytes(8 << 20), "unique": uuid.uuid4().bytes})
    kind = ZSTD_TYPE if encode is zstd else TAR_TYPE + "+gzip"
    blobs, blob = Blobs(), encode(layer)
    assert len(blob) * 200 < len(layer)
    config = config_of([layer])
    manifest = manifest_of(blobs, config, [(kind, blob)])
    refused(engine, tag, manifest, blobs, BundleCorrupt, "holds more")
    refused(engine, tag, manifest, blobs, BundleCorrupt, "holds more", unpacked_bytes=len(layer) - 1)
    caps = {"unpacked_bytes": len(layer), "max_unpacked_bytes": len(layer) - 1}
    refused(engine, tag, manifest, blobs, BundleCorrupt, "holds more", **caps)
    assert load_image(engine, manifest, blobs, tag=tag, unpacked_bytes=len(layer)) == "sha256:" + hex_of(
        config
    )


def test_the_limit_is_for_all_layers_together(engine, tag) -> None:
    blobs, config, layers, encoded = two_layers()
    plain = [(TAR_TYPE, layer) for layer in layers]
    whole = sum(map(len, layers))
    for parts, words in ((encoded, "holds more"), (plain, "larger than allowed")):
        manifest = manifest_of(blobs, config, parts)
        refused(engine, tag, manifest, blobs, BundleCorrupt, words, max_unpacked_bytes=whole - 1)


def test_what_is_no_image_is_refused(engine, tag) -> None:
    blobs, config, _, encoded = two_layers()
    good = manifest_of(blobs, config, encoded)

    def changed(pattern: bytes, other: bytes) -> bytes:
        assert pattern in good
        return good.replace(pattern, other, 1)

    size = b'"size":%d' % len(encoded[0][1])
    cases = [
        (
            changed(MANIFEST_TYPE.encode(), b"application/vnd.oci.image.index.v1+json"),
            "nothing that a container",
        ),
        (
            changed(CONFIG_TYPE.encode(), b"application/vnd.cncf.model.config.v1+json"),
            "nothing that a container",
        ),
        (
            changed(ZSTD_TYPE.encode(), b"application/vnd.oci.image.layer.nondistributable.v1.tar"),
            "nothing that",
        ),
        (changed(b'"schemaVersion":2', b'"schemaVersion":1'), "2 is expected"),
        (changed(b'"schemaVersion":2', b'"schemaVersion":2,"schemaVersion":2'), "stands twice"),
        (changed(size, size + b"0"), "are stated"),
        (changed(size, b'"size":-1'), "a whole number"),
    ]
    for manifest, words in cases:
        refused(engine, tag, manifest, blobs, BundleCorrupt, words)
    for bad in (
        b'{"rootfs":{}}',
        b"[]",
        b"{",
        config.replace(b'"layers"', b'"other"'),
        config.replace(b'"os"', b'"so"'),
    ):
        with pytest.raises(BundleCorrupt):
            read_image(manifest_of(blobs, bad, encoded), blobs)
    del blobs.by_hex[hex_of(encoded[1][1])]
    refused(engine, tag, good, blobs, ImageMissing, "is not in blobs of a test")


@pytest.mark.parametrize(
    "name",
    ["", "debian:12", "mlbundle:1", "mlbundle/a", "mlbundle/A:1", "mlbundle/../a:1", "mlbundle/a:", "mlbundle/a:b c",
     "mlbundle//a:1", "evil.example/mlbundle/a:1", "mlbundle/a@sha256:" + "0" * 64, "mlbundle/a:1\n",
     "mlbundle/" + "a" * 260 + ":1"],
)  # fmt: skip
def test_only_names_of_ours_are_given(engine, name) -> None:
    blobs, config, _, encoded = two_layers()
    with pytest.raises(UsageError, match="is no name for a loaded image"):
        load_image(engine, manifest_of(blobs, config, encoded), blobs, tag=name)
    assert not has(engine, "sha256:" + hex_of(config))


def test_what_the_engine_refuses_is_said_in_its_words(engine, tag) -> None:
    layer, blobs = b"this is no tar " * 100, Blobs()
    manifest = manifest_of(blobs, config_of([layer]), [(ZSTD_TYPE, zstd(layer))])
    error = refused(
        engine, tag, manifest, blobs, EngineUnavailable, "could not load the image mlbundle/test-"
    )
    assert "tar" in error.message
    assert engine.api.timeout == 120


def test_another_image_that_has_our_name_is_not_taken_for_ours(engine, tag) -> None:
    blobs, _, layers, encoded = two_layers()
    # They differ in a label alone.
    first, second = config_of(layers), config_of(layers)
    try:
        for config in (first, second):
            identifier = load_image(engine, manifest_of(blobs, config, encoded), blobs, tag=tag)
            assert identifier == "sha256:" + hex_of(config) == engine.api.inspect_image(tag)["Id"]
    finally:
        engine.api.remove_image("sha256:" + hex_of(first))


class OtherEngine:
    """The engine of this machine, with some answers of another: what can't be had here (versions 25 to 29)."""

    def __init__(self, engine: Any, **answers: Any) -> None:
        self.api = SimpleNamespace(
            timeout=30, load_image=engine.api.load_image, remove_image=engine.api.remove_image
        )
        self.api.__dict__.update(answers)


def containerd_engine(engine: Any, loads: list[int], **facts: Any) -> OtherEngine:
    """An engine with containerd's store: an image has the digest of a manifest as its id, and none by its config."""
    from docker.errors import ImageNotFound

    def inspect(name: str) -> dict[str, Any]:
        if name.startswith("sha256:"):
            raise ImageNotFound("no such image")
        return {**engine.api.inspect_image(name), "Id": "sha256:" + "5" * 64, **facts}

    def load(*arguments: Any, **options: Any) -> Any:
        loads.append(1)
        return engine.api.load_image(*arguments, **options)

    status = [["driver-type", "io.containerd.snapshotter.v1"]]
    return OtherEngine(
        engine,
        inspect_image=inspect,
        load_image=load,
        info=lambda: {"Driver": "overlayfs", "DriverStatus": status},
    )


def test_with_containerds_store_the_image_is_known_by_what_is_in_it(engine, tag) -> None:
    blobs, config, _, encoded = two_layers()
    manifest, loads = manifest_of(blobs, config, encoded), []
    other = containerd_engine(engine, loads)
    for _ in range(2):
        assert load_image(other, manifest, blobs, tag=tag) == "sha256:" + "5" * 64
    assert len(loads) == 1


def test_a_full_disk_of_the_engine_is_one(engine, tag) -> None:
    from docker.errors import ImageNotFound

    def inspect(name: str) -> dict[str, Any]:
        raise ImageNotFound("no such image")

    def load(data: Iterator[bytes], quiet: bool) -> Iterator[dict[str, Any]]:
        b"".join(data)
        return iter([{"stream": "x"}, {"error": "write /layer.tar: no space left on device"}])

    blobs, config, _, encoded = two_layers()
    with pytest.raises(StorageFailed, match="no space left on device"):
        load_image(
            OtherEngine(engine, inspect_image=inspect, load_image=load),
            manifest_of(blobs, config, encoded),
            blobs,
            tag=tag,
        )


@pytest.mark.parametrize(
    "facts",
    [{"RootFS": {"Layers": ["sha256:" + "1" * 64]}}, {"Architecture": "arm64"}, {"Config": {"Env": ["A=c"], "Cmd": ["/x"]}}],
    ids=["layers", "architecture", "settings"],
)  # fmt: skip
def test_another_image_under_our_name_is_removed(engine, tag, facts) -> None:
    blobs, config, _, encoded = two_layers()
    other = containerd_engine(engine, [], **facts)
    with pytest.raises(ImageMismatch, match="another image"):
        load_image(other, manifest_of(blobs, config, encoded), blobs, tag=tag)
    assert not has(engine, tag)


def archive_engine(engine: Any, archive: bytes, **facts: Any) -> OtherEngine:
    """An engine that exports this archive."""

    def get_image(name: str, chunk_size: int) -> Iterator[bytes]:
        return (archive[i : i + 1000] for i in range(0, len(archive), 1000))

    answer = {"Architecture": "amd64", "Os": "linux", "Size": 100, "RepoTags": None, **facts}
    return OtherEngine(engine, inspect_image=lambda name: answer, get_image=get_image)


def layout_of(config: bytes, layers: list[bytes], extra: dict[str, bytes]) -> bytes:
    """An archive as engines from 25 on write it: an OCI layout, and manifest.json beside."""
    listing = [{"Config": f"blobs/sha256/{hex_of(config)}", "RepoTags": None,
                "Layers": [f"blobs/sha256/{hex_of(layer)}" for layer in layers]}]  # fmt: skip
    blobs = {f"blobs/sha256/{hex_of(data)}": data for data in [config, *layers]}
    last = {"index.json": b"{}", "manifest.json": json.dumps(listing).encode(), "oci-layout": b"{}"}
    return tar_of({**extra, **blobs, **last})


def test_archives_of_newer_engines_are_read(engine, tmp_path) -> None:
    layers = [tar_of({f"{n}.txt": b"x" * 5000}) for n in range(2)] + [tar_of({"{odd": b"a name like JSON"})]
    config = config_of(layers)
    classic = archive_engine(engine, layout_of(config, layers, {}), Id="sha256:" + hex_of(config))
    image = export_image(classic, "x", BlobStore(tmp_path))
    assert (image.ref, image.config_hex) == ("sha256:" + hex_of(config), hex_of(config))
    assert [layer.diff_hex for layer in image.layers] == [hex_of(layer) for layer in layers]

    # Containerd keeps layers as they came, and the image's id is that of its manifest.
    encoded = [gzip.compress(layers[0]), zstd(layers[1]), layers[2]]
    manifest = json.dumps({"schemaVersion": 2, "config": hex_of(config)}).encode()
    extra = {f"blobs/sha256/{hex_of(manifest)}": manifest}
    archive = layout_of(config, encoded, extra)
    containerd = archive_engine(engine, archive, Id="sha256:" + hex_of(manifest), RepoTags=["b:1", "a:1"])
    other = export_image(containerd, "x", BlobStore(tmp_path))
    assert other == replace(image, ref="a:1")

    stranger = archive_engine(engine, archive, Id="sha256:" + "7" * 64)
    with pytest.raises(ImageMismatch, match="exports another image"):
        export_image(stranger, "x", BlobStore(tmp_path))
    arm = archive_engine(engine, archive, Id="sha256:" + hex_of(manifest), Architecture="arm64")
    with pytest.raises(ImageMismatch, match="exports 0 images for linux/arm64"):
        export_image(arm, "x", BlobStore(tmp_path))


def test_a_broken_export_is_an_error_and_no_manifest(engine, tmp_path) -> None:
    layer = tar_of({"a": b"x" * 5000})
    config = config_of([layer])
    good, store = layout_of(config, [layer], {}), BlobStore(tmp_path)
    facts = {"Id": "sha256:" + hex_of(config)}
    changed = good.replace(b"xxxxx", b"xyxxx", 1)
    with pytest.raises(DigestMismatch, match="not those of the image's config"):
        export_image(archive_engine(engine, changed, **facts), "x", store)
    renamed = good.replace(b"A=b", b"A=c", 1)
    with pytest.raises(DigestMismatch, match="digest in its name"):
        export_image(archive_engine(engine, renamed, **facts), "x", store)
    for end in (0, 100, 3000, len(good) // 2):
        with pytest.raises(EngineUnavailable, match="could not export"):
            export_image(archive_engine(engine, good[:end], **facts), "x", store)
    assert list((tmp_path / "blobs").glob("sha256/*")) == []


def test_an_engine_that_goes_away_and_a_full_disk_are_told_apart(engine, built, tmp_path) -> None:
    import requests.exceptions

    archive = layout_of(b"{}", [random.Random(0).randbytes(8 << 20)], {})
    other = archive_engine(engine, archive, Id="sha256:" + hex_of(b"{}"))

    def get_image(name: str, chunk_size: int) -> Iterator[bytes]:
        yield archive[: 4 << 20]
        raise requests.exceptions.ConnectionError("reset by peer")

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(StorageFailed, match="File too large"):
            export_image(other, "x", BlobStore(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    other.api.get_image = get_image
    with pytest.raises(EngineUnavailable, match="reset by peer"):
        export_image(other, "x", BlobStore(tmp_path))


def test_no_such_image_and_no_place_for_it(engine, built, tmp_path) -> None:
    with pytest.raises(ImageMissing, match="not on this machine"):
        export_image(engine, "mlbundle-test/none:0", BlobStore(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed):
        export_image(engine, built, BlobStore(tmp_path), scratch=tmp_path / "file")
    scratch = tmp_path / "scratch"
    export_image(engine, built, BlobStore(tmp_path), scratch=scratch)
    assert list(scratch.iterdir()) == []


def test_an_index_of_two_platforms() -> None:
    amd64 = ExportedImage("a", "amd64", "linux", "c" * 64, 10, (), hex_of(b"{1}"), b"{1}")
    arm64 = replace(amd64, architecture="arm64", manifest_hex=hex_of(b"{22}"), manifest_bytes=b"{22}")
    index = make_index([arm64, amd64])
    assert index == make_index([amd64, arm64])
    assert index.decode() == (
        '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":['
        f'{{"mediaType":"{MANIFEST_TYPE}","digest":"sha256:{hex_of(b"{1}")}","size":3,'
        '"platform":{"architecture":"amd64","os":"linux"}},'
        f'{{"mediaType":"{MANIFEST_TYPE}","digest":"sha256:{hex_of(b"{22}")}","size":4,'
        '"platform":{"architecture":"arm64","os":"linux"}}]}'
    )
    with pytest.raises(UsageError, match="same platform"):
        make_index([amd64, amd64])
