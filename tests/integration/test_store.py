"""Unpacked bundles: verified once, looked at before each use, mended when they were changed."""

from __future__ import annotations

import sys
from pathlib import Path

from support import make_bundle

HERE = ("--runtime", "process", "--python", sys.executable, "--duration", "50ms", "--warmup", "1ms")


def test_a_changed_file_of_an_unpacked_bundle_is_unpacked_anew(cli, home, tmp_path) -> None:
    bundle = make_bundle(tmp_path / "mini")
    digest = cli("run", bundle, *HERE, "--json").document()["bundle"]["manifest_digest"]
    graph = home / "data" / "bundles" / digest.removeprefix("sha256:") / "model.onnx"
    original = graph.read_bytes()
    graph.chmod(0o644)
    graph.write_bytes(b"not a graph")
    assert cli("run", bundle, *HERE, "--json").document()["accuracy"]["value"] == 1.0
    assert graph.read_bytes() == original


def test_unpacked_files_can_not_be_written(cli, home, tmp_path) -> None:
    cli("run", make_bundle(tmp_path / "mini"), *HERE)
    files = [
        p
        for p in (home / "data" / "bundles").rglob("*")
        if p.is_file() and "stamp" not in p.name and p.name != ".lock"
    ]
    assert files
    assert {oct(p.stat().st_mode & 0o777) for p in files} == {"0o444"}


def test_a_damaged_bundle_never_runs(cli, home, tmp_path) -> None:
    path = tmp_path / "mini.mlb"
    cli("pack", make_bundle(tmp_path / "mini"), "-o", path)
    content = bytearray(path.read_bytes())
    content[-3000] ^= 1
    path.write_bytes(content)
    outcome = cli("run", path, *HERE, "--json")
    assert outcome.status == 5
    assert outcome.document()["schema"] == "mlbundle/error/v1"
    assert not (home / "data" / "runs").exists()


def test_what_is_no_bundle_is_said(cli, tmp_path) -> None:
    path = Path(tmp_path / "picture.mlb")
    path.write_bytes(b"\x89PNG\r\n" * 300)
    cli("run", path, *HERE, "--json").error(5, "not-a-bundle")
