"""Bundles that `pack` does not make, to a registry and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_forge import DATASET, Forge, images
from registry_fixture import RealRegistry
from support import Cli

PLAIN = "--plain-http"


@pytest.mark.parametrize("options", [(), ("--without-images",)], ids=["whole", "without images"])
def test_files_of_a_bundle_may_be_the_manifests_of_its_images(
    options: tuple[str, ...], registry: RealRegistry, cli: Cli, tmp_path: Path
) -> None:
    forge = Forge(images=images("cpu"))
    for name, image in forge.images["cpu"].items():
        forge.raw.append((f"data/x-{name}", DATASET, Forge._image_manifest(image)))
    (tmp_path / "odd.mlb").write_bytes(forge.build())
    assert cli("verify", "odd.mlb").status == 0
    target = f"{registry.host}/forged/manifests{len(options)}"
    pushed = cli("push", "odd.mlb", target, *options, PLAIN, "--json")
    assert pushed.status == 0, pushed.stderr + pushed.stdout
    for choice in ("none", "all"):
        pulled = cli("pull", target, "--images", choice, PLAIN, "--json")
        assert pulled.status == 0, pulled.stderr + pulled.stdout
        assert (
            cli("verify", "tiny", "--json").document()["manifest_digest"]
            == pushed.document()["manifest_digest"]
        )
        assert cli("rm", "tiny").status == 0
        assert cli("gc").status == 0
