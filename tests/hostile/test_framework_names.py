"""A bundle whose framework manifest is not that of its model: names of frameworks become paths and stand in records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bundle_forge import WEIGHT, Forge
from support import make_bundle

QUICK = ("--duration", "100ms", "--warmup", "10ms", "--json")


@pytest.mark.parametrize(
    ("name", "version"),
    [("../../../../planted/x", "1.31.1"), ("torch", "9.9.9"), ("onnxruntime", "0.1.0"), ("a/b", "1.0.0")],
)
def test_a_framework_manifest_must_be_of_the_framework_that_the_model_names(
    cli, tmp_path: Path, home: Path, name: str, version: str
) -> None:
    folder = make_bundle(tmp_path / "net")
    lock = "containers/onnxruntime/cpu/requirements-amd64.lock"
    manifest = {"name": name, "version": version, "python": {"amd64": {"cpu": lock}, "arm64": {"cpu": lock}}}
    forged = Forge(
        name="mini",
        version="1.0.0",
        model_yaml=(folder / "model.yml").read_bytes(),
        framework_yaml=json.dumps(manifest).encode(),
        framework=(name, version),
        raw=[("model.onnx", WEIGHT, (folder / "model.onnx").read_bytes())],
        group={"data.npz": (folder / "data.npz").read_bytes()},
    )
    bundle = tmp_path / "forged.mlb"
    bundle.write_bytes(forged.build())
    done = cli("run", bundle, "--runtime", "process", *QUICK)
    error = done.error(5, "bundle-corrupt")
    assert "the model needs" in error["message"]
    assert not list(tmp_path.glob("planted*"))
    assert not (home / "cache" / "envs").exists()
