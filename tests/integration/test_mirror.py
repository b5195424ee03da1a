"""`push --mirror-images`: the images that a bundle pins lie beside it afterwards, under the same digests."""

from __future__ import annotations

from pathlib import Path

import pytest
from registry_fixture import RealRegistry
from support import Cli, make_bundle

from mlbundle.bundle.digests import digest_of, sha256_hex
from mlbundle.bundle.oci import INDEX_TYPE, MANIFEST_TYPE, go_json
from mlbundle.bundle.overlay import MemoryBlobs
from mlbundle.registry.client import RegistryClient

CONFIG, LAYER = b'{"architecture":"amd64","os":"linux"}', b"a layer" * 50_000
FRAMEWORK = """\
name: onnxruntime
version: 1.31.1
containers:
  amd64:
    cpu: {{image: '{image}', digest: '{digest}'}}
"""


def client_of(registry: RealRegistry, repository: str) -> RegistryClient:
    return RegistryClient(registry.host, repository, user_agent="test", plain_http=True)


@pytest.fixture
def index_digest(registry: RealRegistry) -> str:
    """An image in a repository of its own: an index of one manifest."""

    def descriptor(media_type: str, data: bytes) -> dict[str, object]:
        return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}

    manifest = go_json({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor("application/vnd.oci.image.config.v1+json", CONFIG),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", LAYER)],
    })  # fmt: skip
    entry = {**descriptor(MANIFEST_TYPE, manifest), "platform": {"architecture": "amd64", "os": "linux"}}
    index = go_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]})
    with client_of(registry, "images/fw") as client:
        for data in (CONFIG, LAYER):
            client.upload_blob(sha256_hex(data), len(data), MemoryBlobs({sha256_hex(data): data}))
        client.put_manifest(digest_of(manifest), MANIFEST_TYPE, manifest)
        return client.put_manifest("1.31.1", INDEX_TYPE, index)


def test_pinned_images_are_copied_by_digest(
    index_digest: str, registry: RealRegistry, cli: Cli, tmp_path: Path
) -> None:
    folder = make_bundle(tmp_path / "mini")
    image = f"{registry.host}/images/fw:1.31.1"
    (folder / "framework.yml").write_text(FRAMEWORK.format(image=image, digest=index_digest))
    assert cli("pack", folder, "--frozen", "-o", "mini.mlb").status == 0
    pushed = cli(
        "push", "mini.mlb", f"{registry.host}/mirror/mini", "--mirror-images", "--plain-http", "--json"
    )
    assert pushed.status == 0, pushed.stderr
    assert pushed.document()["mirrored"] == [f"oci://{registry.host}/mirror/mini@{index_digest}"]
    with client_of(registry, "mirror/mini") as client:
        assert client.get_manifest(index_digest).media_type == INDEX_TYPE
        assert client.blob_size(sha256_hex(LAYER)) == len(LAYER)
        assert client.blob_size(sha256_hex(CONFIG)) == len(CONFIG)


def test_an_image_without_a_registry_can_not_be_mirrored(
    registry: RealRegistry, cli: Cli, tmp_path: Path
) -> None:
    folder = make_bundle(tmp_path / "mini")
    assert cli("pack", folder, "-o", "mini.mlb").status == 0
    target = f"{registry.host}/mirror/none"
    error = cli("push", "mini.mlb", target, "--mirror-images", "--plain-http", "--json").error(2, "usage")
    assert "--with-image" in error["hint"]


def test_an_image_that_is_gone_says_so(registry: RealRegistry, cli: Cli, tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "mini")
    image, digest = f"{registry.host}/images/fw:1.31.1", "sha256:" + "ab" * 32
    (folder / "framework.yml").write_text(FRAMEWORK.format(image=image, digest=digest))
    assert cli("pack", folder, "-o", "mini.mlb").status == 0
    target = f"{registry.host}/mirror/gone"
    cli("push", "mini.mlb", target, "--mirror-images", "--plain-http", "--json").error(
        2, "reference-not-found"
    )
