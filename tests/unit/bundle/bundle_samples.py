"""Small contents to pack."""

from __future__ import annotations

from pathlib import Path

from mlbundle.bundle.content import BundleContent, Role, SourceFile
from mlbundle.bundle.document import Asset, ImagePin

PIN = ImagePin("amd64", "cpu", "example/none:1.0", "sha256:" + "ab" * 32)


def content(*files: SourceFile, version: str = "1.0.0", **values: object) -> BundleContent:
    documents = (
        SourceFile("mlbundle/model.yml", Role.MODEL, b"name: tiny\n"),
        SourceFile("mlbundle/framework.yml", Role.FRAMEWORK, b"name: none\n"),
    )
    return BundleContent("tiny", version, "none", "1.0", (*documents, *files), **values)  # type: ignore[arg-type]


def tiny() -> BundleContent:
    """The bundle whose bytes are known: weights, labels and a group of two small files."""
    return content(
        SourceFile("model.onnx", Role.WEIGHT, b"weights " * 40),
        SourceFile("labels.txt", Role.CONFIG, b"zero\none\n"),
        SourceFile("data/a.bin", Role.DATASET, b"A" * 700),
        SourceFile("data/b.bin", Role.DATASET, b"B"),
        assets=(Asset("/model/graph_path", "model.onnx"),),
    )


def tree(root: Path) -> dict[str, bytes]:
    """All files below a folder: path -> bytes."""
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}
