"""Shows what a bundle holds, from its documents alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.pickles import find_pickles
from mlbundle.bundle.reader import open_bundle

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.bundle.document import BundleDocument
    from mlbundle.bundle.reader import Layer
    from mlbundle.bundle.table import FileEntry

SCHEMA = "mlbundle/inspection/v1"


@dataclass(frozen=True)
class Inspection:
    """What a bundle says about itself.

    Structure and documents are checked against their digests; the bytes of the large layers are not.
    """

    path: Path
    size_bytes: int
    manifest_digest: str
    config_digest: str
    tag: str
    bundle: BundleDocument
    description: str | None
    license: str | None
    layers: tuple[Layer, ...]
    files: tuple[FileEntry, ...]
    pickles: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the document that `inspect --json` prints."""
        bundle = self.bundle.to_document()
        return {
            "schema": SCHEMA,
            "file": str(self.path),
            "size": self.size_bytes,
            "model": bundle["model"],
            "framework": bundle["framework"],
            "description": self.description,
            "license": self.license,
            "tag": self.tag,
            "manifest_digest": self.manifest_digest,
            "config_digest": self.config_digest,
            "set_digest": self.bundle.set_digest,
            "unpacked_size": self.bundle.unpacked_bytes,
            "layers": [_layer(layer) for layer in self.layers],
            "files": [_file(entry) for entry in self.files],
            "assets": bundle["assets"],
            "images": bundle["images"],
            "pickles": list(self.pickles),
        }


def inspect(path: Path) -> Inspection:
    """Read the documents of a bundle, and of each file only its first bytes.

    Raises what `open_bundle` raises.
    """
    with open_bundle(path) as reader:
        return Inspection(
            path=path,
            size_bytes=reader.size_bytes,
            manifest_digest=reader.manifest_digest,
            config_digest=reader.config_digest,
            tag=reader.tag,
            bundle=reader.document,
            description=reader.config.description,
            license=reader.config.license,
            layers=reader.layers,
            files=reader.files,
            pickles=find_pickles(reader),
        )


def _layer(layer: Layer) -> dict[str, Any]:
    return {
        "path": layer.path,
        "media_type": layer.media_type,
        "digest": layer.digest,
        "size": layer.size_bytes,
        "files": len(layer.files),
    }


def _file(entry: FileEntry) -> dict[str, Any]:
    return {
        "path": entry.path,
        "size": entry.size_bytes,
        "sha256": entry.sha256,
        "mode": f"{entry.mode:04o}",
        "layer": entry.layer,
    }
