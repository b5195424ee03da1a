"""From a manifest on disk to the content of a bundle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlbundle.bundle.content import Role
from mlbundle.bundle.document import Asset, ImagePin
from mlbundle.bundle.unpack import unpack
from mlbundle.errors import (
    AssetUnavailable,
    DigestMismatch,
    ManifestInvalid,
    MlbundleError,
    ReferenceNotFound,
    UnsafePath,
    UsageError,
)
from mlbundle.runs.packing import collect, left_out, pack_manifest

MODEL = """\
name: Tiny Net
version: 1.2.0
description: a test
license: MIT
framework: {name: onnxruntime, version: '>=1.0 <2'}
inputs:
  - {type: image, layer_name: input, element_type: float32, shape: [N, 4]}
outputs:
  - type: probability
    layer_name: output
    element_type: float32
    shape: [N, 2]
    steps:
      - argsort: {labels_url: labels.txt}
model:
  graph_path: net.onnx
"""
DIGEST = "sha256:" + "ab" * 32
FRAMEWORK = f"""\
name: ONNXRuntime
version: 1.31.1
containers:
  amd64:
    cpu: {{image: 'example/onnxruntime:1', digest: '{DIGEST}'}}
    gpu: example/onnxruntime:1-gpu
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "net"
    root.mkdir()
    (root / "model.yml").write_text(MODEL)
    (root / "framework.yml").write_text(FRAMEWORK)
    (root / "net.onnx").write_bytes(b"graph")
    (root / "labels.txt").write_text("cat\ndog\n")
    return root


def extend(folder: Path, text: str) -> None:
    (folder / "model.yml").write_text(MODEL + text)


def roles(folder: Path) -> dict[str, Role]:
    return {file.path: file.role for file in collect(folder).files}


def test_everything_the_manifest_names_is_collected(folder: Path) -> None:
    (folder / "README.md").write_text("read me")
    (folder / "LICENSE").write_text("free")
    (folder / "train.py").write_text("print()")
    content = collect(folder)
    assert {file.path: file.role for file in content.files} == {
        "mlbundle/model.yml": Role.MODEL,
        "mlbundle/framework.yml": Role.FRAMEWORK,
        "net.onnx": Role.WEIGHT,
        "labels.txt": Role.CONFIG,
        "README.md": Role.DOC,
        "LICENSE": Role.DOC,
    }
    assert set(content.assets) == {
        Asset("/model/graph_path", "net.onnx"),
        Asset("/outputs/0/steps/0/argsort/labels_url", "labels.txt"),
    }
    assert (content.model_name, content.model_version) == ("Tiny Net", "1.2.0")
    assert (content.framework_name, content.framework_version) == ("ONNXRuntime", "1.31.1")
    assert (content.license, content.description) == ("MIT", "a test")
    assert left_out(folder, content) == ("train.py",)


def test_the_manifests_are_kept_word_for_word(folder: Path) -> None:
    written = MODEL.replace("a test", "a test   # with a comment").encode()
    (folder / "model.yml").write_bytes(written)
    sources = {file.path: file.source for file in collect(folder).files}
    assert sources["mlbundle/model.yml"] == written
    assert sources["mlbundle/framework.yml"] == FRAMEWORK.encode()


def test_only_pins_that_the_manifest_states_are_recorded(folder: Path) -> None:
    assert collect(folder).images == (ImagePin("amd64", "cpu", "example/onnxruntime:1", DIGEST),)


def test_a_manifest_of_another_name_is_packed_as_model_yml(folder: Path) -> None:
    whole = collect(folder)
    (folder / "model.yml").rename(folder / "tiny.yml")
    assert {file.path for file in collect(folder / "tiny.yml").files} == {file.path for file in whole.files}


def test_a_dataset_folder_is_taken_whole(folder: Path) -> None:
    (folder / "data" / "deep").mkdir(parents=True)
    for name in ("index.txt", "a.png", "deep/b.png", ".hidden"):
        (folder / "data" / name).write_text(name)
    extend(folder, "dataset: {format: directory, path: data, index: index.txt, samples: 2}\n")
    found = roles(folder)
    assert {path for path, role in found.items() if role is Role.DATASET} == {
        "data/index.txt",
        "data/a.png",
        "data/deep/b.png",
        "data/.hidden",
    }
    assert {(asset.pointer, asset.path) for asset in collect(folder).assets} >= {
        ("/dataset/path", "data"),
        ("/dataset/index", "data/index.txt"),
    }


def test_a_file_with_two_roles_is_packed_once(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "labels.txt").write_text("cat\ndog\n")
    (folder / "data" / "index.txt").write_text("labels.txt 0\n")
    text = MODEL.replace("labels.txt", "data/labels.txt")
    (folder / "model.yml").write_text(text + "dataset: {format: directory, path: data, index: index.txt}\n")
    assert roles(folder)["data/labels.txt"] is Role.CONFIG
    assert len(roles(folder)) == 5


def test_expected_outputs_and_weights_travel_too(folder: Path) -> None:
    (folder / "net.data").write_bytes(b"weights")
    (folder / "outputs.npz").write_bytes(b"outputs")
    extend(folder, "  weights_path: net.data\nexpected:\n  outputs: {path: outputs.npz, rtol: 0.001}\n")
    found = roles(folder)
    assert (found["net.data"], found["outputs.npz"]) == (Role.WEIGHT, Role.DATASET)
    assert Asset("/expected/outputs/path", "outputs.npz") in collect(folder).assets


def test_links_inside_the_folder_are_packed_as_files(folder: Path, tmp_path: Path) -> None:
    (folder / "net.onnx").rename(folder / "real.bin")
    (folder / "net.onnx").symlink_to("real.bin")
    pack_manifest(folder, tmp_path / "t.mlb")
    unpack(tmp_path / "t.mlb", tmp_path / "out")
    assert not (tmp_path / "out" / "net.onnx").is_symlink()
    assert (tmp_path / "out" / "net.onnx").read_bytes() == b"graph"


def test_an_unpacked_bundle_is_packed_to_the_same_bundle(folder: Path, tmp_path: Path) -> None:
    first = pack_manifest(folder, tmp_path / "t.mlb")
    unpack(tmp_path / "t.mlb", tmp_path / "out")
    assert pack_manifest(tmp_path / "out", tmp_path / "again.mlb").manifest_digest == first.manifest_digest


def test_the_framework_argument_wins(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yml"
    other.write_text(FRAMEWORK.replace("1.31.1", "1.99"))
    assert collect(folder, [other]).framework_version == "1.99"


def test_a_built_in_framework_is_found_by_name_and_version(folder: Path) -> None:
    (folder / "framework.yml").unlink()
    assert collect(folder).framework_name == "onnxruntime"
    (folder / "model.yml").write_text(MODEL.replace(">=1.0 <2", ">=99"))
    with pytest.raises(ReferenceNotFound) as refused:
        collect(folder)
    assert "onnxruntime >=99" in refused.value.message
    assert "--framework" in (refused.value.hint or "")


def outside_link(folder: Path) -> None:
    (folder / "net.onnx").unlink()
    (folder / "net.onnx").symlink_to("/etc/hostname")


def outside_folder(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere" / "net.onnx").write_text("x")
    (folder / "sub").symlink_to("../elsewhere")
    (folder / "model.yml").write_text(MODEL.replace("net.onnx", "sub/net.onnx"))


def linked_dataset(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "index.txt").write_text("")
    (folder / "data" / "sub").symlink_to("..")
    extend(folder, "dataset: {format: directory, path: data, index: index.txt}\n")


def linked_sample(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "index.txt").write_text("")
    (folder / "data" / "x.png").symlink_to("/etc/hostname")
    extend(folder, "dataset: {format: directory, path: data, index: index.txt}\n")


def fifo_sample(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "index.txt").write_text("")
    os.mkfifo(folder / "data" / "x.png")
    extend(folder, "dataset: {format: directory, path: data, index: index.txt}\n")


def colon_in_sample(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "index.txt").write_text("")
    (folder / "data" / "12:00.png").write_text("")
    extend(folder, "dataset: {format: directory, path: data, index: index.txt}\n")


def link_to_itself(folder: Path) -> None:
    (folder / "net.onnx").unlink()
    (folder / "net.onnx").symlink_to("net.onnx")


def remote(folder: Path) -> None:
    text = MODEL.replace(
        "graph_path: net.onnx", "base_url: 'https://models.invalid/'\n  graph_path: net.onnx"
    )
    (folder / "model.yml").write_text(text)


@pytest.mark.parametrize(
    ("break_it", "error", "pointer"),
    [
        (lambda f: (f / "net.onnx").unlink(), AssetUnavailable, "/model/graph_path"),
        (lambda f: (f / "labels.txt").unlink(), AssetUnavailable, "/outputs/0/steps/0/argsort/labels_url"),
        (lambda f: extend(f, "dataset: {format: npz, path: d.npz, labels: y}\n"), AssetUnavailable, "/dataset/path"),
        (remote, AssetUnavailable, "/model/base_url"),
        (link_to_itself, AssetUnavailable, "/model/graph_path"),
        (outside_link, UnsafePath, "/model/graph_path"),
        (outside_folder, UnsafePath, "/model/graph_path"),
        (linked_dataset, UnsafePath, "/dataset/path"),
        (linked_sample, UnsafePath, "/dataset/path"),
        (colon_in_sample, UnsafePath, "/dataset/path"),
    ],
)  # fmt: skip
def test_what_cannot_be_packed_is_said_with_its_place(
    break_it: object, error: type[MlbundleError], pointer: str, folder: Path
) -> None:
    break_it(folder)  # type: ignore[operator]
    with pytest.raises(error) as refused:
        collect(folder)
    assert refused.value.where == f"{folder / 'model.yml'}#{pointer}"


def test_a_fifo_among_the_samples_is_refused(folder: Path, tmp_path: Path) -> None:
    fifo_sample(folder)
    with pytest.raises(AssetUnavailable, match="no regular file"):
        pack_manifest(folder, tmp_path / "t.mlb")


def test_remote_labels_are_refused(folder: Path) -> None:
    text = MODEL.replace("labels_url: labels.txt", "labels_url: 'https://labels.invalid/labels.txt'")
    (folder / "model.yml").write_text(text)
    with pytest.raises(AssetUnavailable, match="remote"):
        collect(folder)


def test_a_wrong_checksum_stops_the_packing(folder: Path, tmp_path: Path) -> None:
    extend(folder, f"  checksum: {DIGEST}\n")
    with pytest.raises(DigestMismatch) as refused:
        pack_manifest(folder, tmp_path / "t.mlb")
    assert (refused.value.where or "").endswith("model.yml#/model/graph_path")
    assert not (tmp_path / "t.mlb").exists()


def test_a_framework_that_does_not_fit_is_refused(folder: Path) -> None:
    (folder / "framework.yml").write_text(FRAMEWORK.replace("1.31.1", "2.0.0"))
    with pytest.raises(UsageError, match=r"the framework manifest is ONNXRuntime 2\.0\.0"):
        collect(folder)


def test_an_invalid_manifest_is_refused_with_all_problems(folder: Path) -> None:
    (folder / "model.yml").write_text(MODEL.replace("float32", "float32s"))
    with pytest.raises(ManifestInvalid) as refused:
        collect(folder)
    assert len(refused.value.problems) >= 2


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReferenceNotFound):
        collect(tmp_path)
    with pytest.raises(ReferenceNotFound):
        collect(tmp_path / "missing.yml")
