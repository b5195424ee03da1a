"""`pack`, `inspect`, `verify` and `unpack` as users meet them, and other programs as readers of the same file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support import TINY_NET, Cli, lacking

from mlbundle.bundle.reader import open_bundle
from mlbundle.bundle.unpack import unpack
from mlbundle.bundle.verify import verify
from mlbundle.errors import IntegrityError


@pytest.fixture
def net(tmp_path: Path) -> Path:
    folder = tmp_path / "net"
    (folder / "data").mkdir(parents=True)
    (folder / "model.yml").write_text(TINY_NET)
    (folder / "net.onnx").write_bytes(b"graph" * 100)
    (folder / "data" / "index.txt").write_text("a.bin 0\nb.bin 1\n")
    (folder / "data" / "a.bin").write_bytes(b"a" * 10)
    (folder / "data" / "b.bin").write_bytes(b"b" * 600)
    return folder


@pytest.fixture
def bundle(net: Path, cli: Cli, tmp_path: Path) -> Path:
    assert cli("pack", net, "-o", "net.mlb").status == 0
    return tmp_path / "net.mlb"


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_the_way_of_a_bundle(net: Path, cli: Cli, tmp_path: Path) -> None:
    packed = cli("pack", net, "--json")
    assert packed.status == 0, packed.stderr
    document = packed.document()
    assert document["schema"] == "mlbundle/pack/v1"
    path = tmp_path / "Tiny-Net-1.0.0+cu12.mlb"
    assert Path(document["file"]).name == path.name
    assert document["size"] == path.stat().st_size
    assert {file["path"] for file in document["files"]} == {
        "mlbundle/model.yml",
        "mlbundle/framework.yml",
        "net.onnx",
        "data/index.txt",
        "data/a.bin",
        "data/b.bin",
    }
    inspected = cli("inspect", path, "--json").document()
    verified = cli("verify", path, "--json").document()
    unpacked = cli("unpack", path, "-o", "out", "--json").document()
    schemas = [found["schema"] for found in (inspected, verified, unpacked)]
    assert schemas == ["mlbundle/inspection/v1", "mlbundle/verification/v1", "mlbundle/unpack/v1"]
    for found in (inspected, verified, unpacked):
        for key in ("manifest_digest", "config_digest", "set_digest"):
            assert found[key] == document[key]
    assert inspected["model"] == {"name": "Tiny Net", "version": "1.0.0+cu12"}
    assert [layer["path"] for layer in inspected["layers"]][-2:] == [
        "net.onnx",
        "mlbundle/groups/dataset-0000.tar",
    ]
    assert (verified["verified"], verified["files"], verified["pickles"]) == (True, 6, [])
    assert (tmp_path / "out" / "mlbundle" / "model.yml").read_text() == TINY_NET
    for name in ("net.onnx", "data/index.txt", "data/a.bin", "data/b.bin"):
        assert (tmp_path / "out" / name).read_bytes() == (net / name).read_bytes()


def test_what_people_read(bundle: Path, cli: Cli) -> None:
    inspected = cli("inspect", bundle, "--files")
    assert inspected.status == 0
    for text in (
        "Tiny Net 1.0.0+cu12",
        "onnxruntime",
        "net.onnx",
        "weight.v1.raw",
        "/dataset/path",
        "data/a.bin",
    ):
        assert text in inspected.stdout
    verified = cli("verify", bundle)
    assert verified.status == 0
    with open_bundle(bundle) as reader:
        assert reader.manifest_digest in verified.stdout
    assert verified.stderr == ""


def test_a_dry_run_writes_nothing(net: Path, cli: Cli, tmp_path: Path) -> None:
    before = names(tmp_path)
    previewed = cli("pack", net, "--dry-run", "--json").document()
    assert names(tmp_path) == before
    assert previewed["written"] is False
    assert cli("pack", net, "--json").document()["manifest_digest"] == previewed["manifest_digest"]


def test_what_a_killed_unpack_left_goes_with_the_next(bundle: Path, cli: Cli, tmp_path: Path) -> None:
    left, held = (tmp_path / f".out.{digits}.partial" for digits in ("0123abcd", "89abcdef"))
    for folder in (left, held):
        (folder / "files").mkdir(parents=True)
        (folder / "files" / "half").write_bytes(b"half")
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert cli("unpack", bundle, "-o", "out").status == 0
    assert not left.exists()
    assert held.exists()
    os.close(descriptor)


def test_an_existing_file_needs_force(net: Path, bundle: Path, cli: Cli) -> None:
    bundle.write_bytes(b"precious")
    cli("pack", net, "-o", bundle, "--json").error(2, "usage")
    assert bundle.read_bytes() == b"precious"
    assert cli("pack", net, "-o", bundle, "--force").status == 0
    assert cli("verify", bundle).status == 0


def test_what_is_left_out_is_said_on_request(net: Path, cli: Cli) -> None:
    (net / "notes.txt").write_text("private")
    assert "notes.txt" in cli("-v", "pack", net).stderr
    assert "notes.txt" not in cli("pack", net, "--force", "--json").stdout


def test_a_built_in_name_is_packed(cli: Cli) -> None:
    packed = cli("pack", "digits-cnn", "-o", "d.mlb", "--json").document()
    assert packed["model"]["name"] == "digits-cnn"
    assert cli("verify", "d.mlb").status == 0


@pytest.mark.parametrize(
    ("arguments", "status", "reference"),
    [
        (("pack", "nowhere"), 2, "reference-not-found"),
        (("pack", "net.mlb"), 2, "usage"),
        (("pack", "net", "--framework-manifest", "missing.yml"), 2, "reference-not-found"),
        (("pack", "net", "-o", "no/folder/x.mlb"), 2, "usage"),
        (("inspect", "missing.mlb"), 2, "reference-not-found"),
        (("verify", "missing.mlb"), 2, "reference-not-found"),
        (("verify", "net.mlb/inside"), 2, "reference-not-found"),
        (("unpack", "missing.mlb"), 2, "reference-not-found"),
        (("unpack", "net.mlb", "-o", "net"), 2, "usage"),
        (("unpack", "net.mlb", "-o", "no/folder"), 2, "usage"),
        (("verify", "net/model.yml"), 5, "not-a-bundle"),
        (("verify", "/dev/null"), 5, "not-a-bundle"),
        (("inspect", ""), 2, "usage"),
        (("pack", ""), 2, "usage"),
        (("inspect", "x" * 300), 2, "reference-not-found"),
        (("inspect", "net.mlb/inside:1"), 2, "reference-not-found"),
        (("unpack", "net"), 5, "not-a-bundle"),
    ],
)
def test_mistakes_have_a_reference_and_a_status(
    arguments: tuple[str, ...], status: int, reference: str, bundle: Path, cli: Cli, tmp_path: Path
) -> None:
    before = names(tmp_path)
    cli(*arguments, "--json").error(status, reference)
    assert names(tmp_path) == before


def test_a_missing_asset_and_a_wrong_checksum(net: Path, cli: Cli) -> None:
    (net / "model.yml").write_text(
        TINY_NET.replace("net.onnx", "net.onnx, checksum: 'sha256:" + "0" * 64 + "'")
    )
    cli("pack", net, "--json").error(5, "digest-mismatch")
    (net / "net.onnx").unlink()
    error = cli("pack", net, "--json").error(3, "asset-unavailable")
    assert error["where"].endswith("model.yml#/model/graph_path")


def test_an_invalid_manifest_shows_its_problems(net: Path, cli: Cli) -> None:
    (net / "model.yml").write_text(TINY_NET.replace("float32", "float32s"))
    error = cli("pack", net, "--json").error(1, "manifest-invalid")
    assert len(error["problems"]) >= 2


def test_a_truncated_bundle_is_refused_wherever_it_ends(bundle: Path, tmp_path: Path) -> None:
    whole = bundle.read_bytes()
    cut = tmp_path / "cut.mlb"
    cut.write_bytes(whole)
    for size in range(len(whole) - 1, -1, -1):
        with cut.open("r+b") as stream:
            stream.truncate(size)
        with pytest.raises(IntegrityError):
            verify(cut)


def test_a_flipped_bit_is_found_wherever_it_is(bundle: Path, tmp_path: Path) -> None:
    """A step of 13 bytes meets every field of every header and document; the bit goes round."""
    whole = bundle.read_bytes()
    hurt = tmp_path / "hurt.mlb"
    hurt.write_bytes(whole)
    before = names(tmp_path)
    with hurt.open("r+b", buffering=0) as stream:
        for number, offset in enumerate(range(0, len(whole), 13)):
            stream.seek(offset)
            stream.write(bytes([whole[offset] ^ (1 << number % 8)]))
            with pytest.raises(IntegrityError):
                verify(hurt)
            if number % 16 == 0:
                with pytest.raises(IntegrityError):
                    unpack(hurt, tmp_path / "out")
            stream.seek(offset)
            stream.write(whole[offset : offset + 1])
    assert names(tmp_path) == before
    assert verify(hurt).name == "Tiny Net"


@pytest.fixture(scope="module")
def skopeo() -> str:
    found = shutil.which("skopeo")
    if found is None:
        lacking("skopeo is not installed")
    return found


def test_skopeo_reads_the_manifest(bundle: Path, skopeo: str) -> None:
    """`+` can't be in a tag: the version 1.0.0+cu12 is the tag 1.0.0_cu12."""
    done = subprocess.run(
        [skopeo, "inspect", "--raw", f"oci-archive:{bundle}:1.0.0_cu12"], capture_output=True, check=True
    )
    with open_bundle(bundle) as reader:
        assert done.stdout == reader.manifest_bytes
        assert "sha256:" + hashlib.sha256(done.stdout).hexdigest() == reader.manifest_digest


def test_skopeo_copies_without_changing_the_digest(bundle: Path, skopeo: str, tmp_path: Path) -> None:
    steps = [
        f"oci-archive:{bundle}:1.0.0_cu12",
        f"oci:{tmp_path / 'layout'}:copy",
        f"oci-archive:{tmp_path / 'back.tar'}:back",
    ]
    for source, target in zip(steps, steps[1:], strict=False):
        subprocess.run(
            [skopeo, "--tmpdir", str(tmp_path), "copy", "--quiet", source, target],
            check=True,
            capture_output=True,
        )
    raw = subprocess.run([skopeo, "inspect", "--raw", steps[-1]], capture_output=True, check=True).stdout
    with open_bundle(bundle) as reader:
        assert raw == reader.manifest_bytes
        blobs = {path.name for path in (tmp_path / "layout" / "blobs" / "sha256").iterdir()}
        assert blobs >= {layer.hex for layer in reader.layers}
    index = json.loads((tmp_path / "layout" / "index.json").read_bytes())
    assert index["manifests"][0]["digest"] == "sha256:" + hashlib.sha256(raw).hexdigest()


def test_force_replaces_files_and_nothing_else(cli, tmp_path) -> None:
    import os

    fifo = tmp_path / "pipe.mlb"
    os.mkfifo(fifo)
    cli("pack", "digits-cnn", "--force", "-o", fifo, "--json").error(2, "usage")
    assert fifo.is_fifo()
