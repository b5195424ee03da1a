"""What goes into a bundle: named values and source files, already resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.bundle.oci import Role
from mlbundle.bundle.tarformat import MODE_PLAIN

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.bundle.blobs import BlobReader
    from mlbundle.bundle.document import Asset, ImagePin
    from mlbundle.manifest.model import Checksum

__all__ = ["BundleContent", "Compression", "EmbeddedSource", "Role", "SourceFile"]


@dataclass(frozen=True, slots=True)
class Compression:
    """What may be compressed: groups of small files where it pays, weights only on request."""

    groups: bool = True
    weights: bool = False


@dataclass(frozen=True)
class SourceFile:
    """One file to pack: where it goes, what it is, and its bytes or the regular file that holds them.

    `checksum` is what the author states (checked while packing); `pointer` names the place that asked for it.
    """

    path: str
    role: Role
    source: Path | bytes
    mode: int = MODE_PLAIN
    checksum: Checksum | None = None
    pointer: str | None = None


@dataclass(frozen=True)
class EmbeddedSource:
    """The images of a framework for one accelerator to embed; `framework` as in ImagePin.

    `index` is their OCI index; `manifests` and `configs` are the documents it leads to, in its order; `layers` are
    (hex, size in bytes), read from `blobs` and checked while they are copied.
    """

    accelerator: str
    index: bytes
    manifests: tuple[bytes, ...]
    configs: tuple[bytes, ...]
    layers: tuple[tuple[str, int], ...]
    blobs: BlobReader
    framework: str | None = None


@dataclass(frozen=True)
class BundleContent:
    """Everything that `pack` writes.

    Among `files` are exactly one of role `model` with the path `mlbundle/model.yml`, one of role `framework` with the
    path `mlbundle/framework.yml`, and another one for each of `frameworks`, which are the (name, version) of further
    ones, with the path that `further_framework_path` gives: all as bytes, the documents of the author, word for
    word. No other file lies in the folder `mlbundle`.
    """

    model_name: str
    model_version: str
    framework_name: str
    framework_version: str
    files: tuple[SourceFile, ...]
    assets: tuple[Asset, ...] = ()
    images: tuple[ImagePin, ...] = ()
    embedded: tuple[EmbeddedSource, ...] = ()
    compression: Compression = Compression()
    description: str | None = None
    license: str | None = None
    frameworks: tuple[tuple[str, str], ...] = ()
