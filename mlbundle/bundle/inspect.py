"""Shows what a bundle holds, from its documents alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mlbundle.bundle.pickles import find_pickles
from mlbundle.bundle.reader import BundleReader, open_bundle

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.bundle.document import BundleDocument
    from mlbundle.bundle.oci import ImageEntry
    from mlbundle.bundle.reader import Layer
    from mlbundle.bundle.table import FileEntry

SCHEMA = "mlbundle/inspection/v1"


class Inspection(NamedTuple):
    """What a bundle says about itself.

    Structure and documents are checked against their digests; the bytes of the large layers are not. `size_bytes`
    is of the file, or of all blobs where there is none. `embedded` are the entries of embedded images,
    `referrers` (artifact type, predicate type if it was looked at, digest). `pickles` is None where no file could be
    looked at.
    """

    name: str
    size_bytes: int
    manifest_digest: str
    config_digest: str
    tag: str
    bundle: BundleDocument
    description: str | None
    license: str | None
    layers: tuple[Layer, ...]
    files: tuple[FileEntry, ...]
    embedded: tuple[ImageEntry, ...]
    referrers: tuple[tuple[str, str | None, str], ...]
    pickles: tuple[str, ...] | None

    def to_document(self) -> dict[str, Any]:
        """Return the document that `inspect --json` prints."""
        bundle = self.bundle.to_document()
        return {
            "schema": SCHEMA,
            "file": self.name,
            "size": self.size_bytes,
            "model": bundle["model"],
            "framework": bundle["framework"],
            "frameworks": bundle.get("frameworks", []),
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
            "embedded": [_embedded(entry) for entry in self.embedded],
            "referrers": [
                {"artifact_type": kind, "predicate_type": predicate, "digest": digest}
                for kind, predicate, digest in self.referrers
            ],
            "pickles": None if self.pickles is None else list(self.pickles),
        }


def inspect(path: Path) -> Inspection:
    """Read the documents of a bundle file, and of each file in it only its first bytes; see `open_bundle`."""
    with open_bundle(path) as reader:
        return inspect_reader(reader)


def inspect_reader(reader: BundleReader, *, pickles: bool = True) -> Inspection:
    """Return what an open bundle says; without `pickles` no file of it is looked at."""
    index = reader.structure.index
    predicates = {referrer.manifest.hex: referrer.predicate_type for referrer in reader.referrers}
    return Inspection(
        name=reader.name,
        size_bytes=reader.size_bytes,
        manifest_digest=reader.manifest_digest,
        config_digest=reader.config_digest,
        tag=reader.tag,
        bundle=reader.document,
        description=reader.config.description,
        license=reader.config.license,
        layers=reader.layers,
        files=reader.files,
        embedded=index.images,
        referrers=tuple(
            (entry.artifact_type, predicates.get(entry.descriptor.hex), entry.descriptor.digest)
            for entry in index.referrers
        ),
        pickles=find_pickles(reader) if pickles else None,
    )


def _embedded(entry: ImageEntry) -> dict[str, Any]:
    named = {} if entry.framework is None else {"framework": entry.framework}
    return {**named, "accelerator": entry.accelerator, "index": entry.descriptor.digest}


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
