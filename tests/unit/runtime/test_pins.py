"""The images that a bundle pins: what is told of one is what was checked, whatever the bundle says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from mlbundle.bundle.digests import digest_of, sha256_hex
from mlbundle.bundle.document import ImagePin
from mlbundle.bundle.oci import IMAGE_CONFIG_TYPE, IMAGE_LAYER_TYPE, MANIFEST_TYPE, go_json
from mlbundle.bundle.overlay import MemoryBlobs
from mlbundle.config import Settings
from mlbundle.errors import BundleCorrupt, DigestMismatch, ImageMismatch, ImageMissing
from mlbundle.manifest.framework import FrameworkManifest, ImageChoice
from mlbundle.runs.embedded import _carried, _checked_manifest
from mlbundle.runtime.images import ResolvedImage, resolve_image

HERE, LIED, MANIFEST = ("sha256:" + digit * 64 for digit in "abc")
IMAGE = "example.org/fw:1"


def client(names: dict[str, dict[str, Any]]) -> Any:
    """An engine that knows these names."""

    def inspect_image(name: str) -> dict[str, Any]:
        if name not in names:
            raise docker.errors.NotFound(name)
        return names[name]

    return SimpleNamespace(api=SimpleNamespace(inspect_image=inspect_image))


def facts(image_id: str, *repository_digests: str) -> dict[str, Any]:
    return {
        "Id": image_id,
        "Architecture": "amd64",
        "RepoDigests": [f"example.org/fw@{digest}" for digest in repository_digests],
    }


def resolve(
    engine: Any, pin: ImagePin, *, stated: str | None = None, loaded: str | None = None
) -> ResolvedImage:
    framework = FrameworkManifest("fw", "1", containers={"amd64": {"cpu": ImageChoice(IMAGE, stated)}})
    settings = Settings(Path("/nowhere"), Path("/nowhere"), Path("/nowhere"))
    return resolve_image(framework, "amd64", "cpu", settings, engine, pins=[pin], loaded_id=loaded)


def test_a_config_that_the_engine_does_not_know_is_not_told() -> None:
    pin = ImagePin("amd64", "cpu", IMAGE, config=LIED, manifest=MANIFEST)
    found = resolve(client({MANIFEST: facts(HERE, MANIFEST)}), pin)
    assert (found.config_digest, found.manifest_digest, found.index_digest) == (HERE, MANIFEST, None)


def test_the_pinned_config_comes_first() -> None:
    pin = ImagePin("amd64", "cpu", IMAGE, config=HERE, manifest=MANIFEST)
    found = resolve(client({HERE: facts(HERE), MANIFEST: facts(LIED, MANIFEST)}), pin)
    assert (found.image_id, found.config_digest, found.manifest_digest) == (HERE, HERE, None)


def test_an_image_that_was_loaded_from_the_bundle_has_its_config() -> None:
    """Engines with containerd's store give an image another id than its config."""
    pin = ImagePin("amd64", "cpu", IMAGE, config=HERE, manifest=MANIFEST)
    found = resolve(client({LIED: facts(LIED)}), pin, loaded=LIED)
    assert (found.image_id, found.config_digest) == (LIED, HERE)


def test_a_table_that_contradicts_the_framework_manifest_is_refused() -> None:
    pin = ImagePin("amd64", "cpu", IMAGE, digest=LIED, config=HERE)
    with pytest.raises(BundleCorrupt):
        resolve(client({HERE: facts(HERE)}), pin, stated=MANIFEST)


def test_a_pinned_image_that_is_not_here_is_missing() -> None:
    with pytest.raises(ImageMissing):
        resolve(client({}), ImagePin("amd64", "cpu", IMAGE, config=HERE))


def image_blobs() -> tuple[str, str, dict[str, bytes]]:
    """Digest of a manifest, digest of its config, and the blobs of the image by hex."""
    layer = b"layer"
    config = go_json(
        {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]}}
    )
    manifest = go_json({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": IMAGE_CONFIG_TYPE, "digest": digest_of(config), "size": len(config)},
        "layers": [{"mediaType": IMAGE_LAYER_TYPE, "digest": digest_of(layer), "size": len(layer)}],
    })  # fmt: skip
    blobs = {sha256_hex(data): data for data in (layer, config, manifest)}
    return digest_of(manifest), digest_of(config), blobs


def test_an_image_of_another_config_is_not_loaded_under_a_trusted_digest() -> None:
    manifest, _, blobs = image_blobs()
    with pytest.raises(ImageMismatch):
        _checked_manifest(ImagePin("amd64", "cpu", IMAGE, manifest=manifest, config=LIED), MemoryBlobs(blobs))


def test_a_damaged_manifest_is_not_loaded() -> None:
    manifest, config, blobs = image_blobs()
    key = manifest.removeprefix("sha256:")
    blobs[key] = blobs[key].replace(b"layer.v1.tar", b"layer.v2.tar")
    with pytest.raises(DigestMismatch):
        _checked_manifest(
            ImagePin("amd64", "cpu", IMAGE, manifest=manifest, config=config), MemoryBlobs(blobs)
        )


def test_an_image_without_its_layers_is_not_carried() -> None:
    manifest, config, blobs = image_blobs()
    pin = ImagePin("amd64", "cpu", IMAGE, manifest=manifest, config=config)
    assert _carried(pin, MemoryBlobs(blobs))
    del blobs[sha256_hex(b"layer")]
    assert not _carried(pin, MemoryBlobs(blobs))
