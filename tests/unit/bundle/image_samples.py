"""Images and referrers of a few bytes, made by hand with sound digests unless a test changes a document."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bundle_samples import content

from mlbundle.bundle.content import BundleContent, EmbeddedSource, Role, SourceFile
from mlbundle.bundle.document import ImagePin
from mlbundle.bundle.oci import Descriptor, ImageEntry, ReferrerEntry
from mlbundle.bundle.overlay import MemoryBlobs

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
IMAGE_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"

Edit = Callable[[dict[str, Any]], None]


def hex_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def described(media_type: str, data: bytes, **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{hex_of(data)}", "size": len(data), **more}


def keep(_document: dict[str, Any]) -> None:
    """Changes nothing."""


@dataclass
class Image:
    """Images of one accelerator for some architectures; the hooks change documents before digests are taken."""

    accelerator: str = "cpu"
    architectures: tuple[str, ...] = ("amd64",)
    edit_index: Edit = keep
    edit_manifest: Edit = keep
    blobs: dict[str, bytes] = field(default_factory=dict)
    pins: list[ImagePin] = field(default_factory=list)
    manifests: list[bytes] = field(default_factory=list)
    configs: list[bytes] = field(default_factory=list)
    layers: list[bytes] = field(default_factory=list)
    index: bytes = b""

    def __post_init__(self) -> None:
        entries = []
        for architecture in self.architectures:
            config = self._json({"architecture": architecture, "of": self.accelerator})
            layers = [b"base", f"layer {self.accelerator} {architecture}".encode()]
            document = {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": described(IMAGE_CONFIG_TYPE, config),
                "layers": [described(LAYER_TYPE, layer) for layer in layers],
            }
            self.edit_manifest(document)
            manifest = self._json(document)
            platform = {"architecture": architecture, "os": "linux"}
            entries.append(described(MANIFEST_TYPE, manifest, platform=platform))
            self.manifests.append(manifest)
            self.configs.append(config)
            self.layers += [layer for layer in layers if layer not in self.layers]
        document = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries}
        self.edit_index(document)
        self.index = self._json(document)
        for data in (self.index, *self.manifests, *self.configs, *self.layers):
            self.blobs[hex_of(data)] = data
        for architecture, manifest, config in zip(
            self.architectures, self.manifests, self.configs, strict=True
        ):
            digests = {
                name: f"sha256:{hex_of(data)}"
                for name, data in (("index", self.index), ("manifest", manifest), ("config", config))
            }
            self.pins.append(ImagePin(architecture, self.accelerator, "example/none:1", **digests))

    @property
    def entry(self) -> ImageEntry:
        """The images as `index.json` names them."""
        return ImageEntry(self.accelerator, Descriptor(INDEX_TYPE, hex_of(self.index), len(self.index)))

    @property
    def source(self) -> EmbeddedSource:
        """The images as `pack` takes them."""
        return EmbeddedSource(
            self.accelerator,
            self.index,
            tuple(self.manifests),
            tuple(self.configs),
            tuple((hex_of(layer), len(layer)) for layer in self.layers),
            MemoryBlobs(self.blobs),
        )

    @staticmethod
    def _json(document: dict[str, Any]) -> bytes:
        return json.dumps(document, separators=(",", ":")).encode()


def with_images(*images: Image) -> BundleContent:
    """A small bundle that carries images."""
    return content(
        SourceFile("model.onnx", Role.WEIGHT, b"weights " * 40),
        SourceFile("data/a.bin", Role.DATASET, b"A" * 700),
        images=tuple(pin for image in images for pin in image.pins),
        embedded=tuple(image.source for image in images),
    )


@dataclass
class Note:
    """A referrer with one layer; `subject` is a digest with a size, `edit` changes its manifest."""

    subject: tuple[str, int]
    text: bytes = b"a note"
    edit: Edit = keep
    artifact_type: str = "application/vnd.example.note"

    @property
    def config(self) -> bytes:
        return b"{}"

    @property
    def manifest(self) -> bytes:
        digest, size_bytes = self.subject
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": self.artifact_type,
            "config": described("application/vnd.oci.empty.v1+json", self.config),
            "layers": [described("text/plain", self.text)],
            "subject": {"mediaType": MANIFEST_TYPE, "digest": digest, "size": size_bytes},
        }
        self.edit(document)
        return json.dumps(document, separators=(",", ":")).encode()

    @property
    def blobs(self) -> dict[str, bytes]:
        """What the manifest names."""
        return {hex_of(data): data for data in (self.config, self.text)}

    @property
    def entry(self) -> ReferrerEntry:
        """The referrer as `index.json` names it."""
        data = self.manifest
        return ReferrerEntry(self.artifact_type, Descriptor(MANIFEST_TYPE, hex_of(data), len(data)))
