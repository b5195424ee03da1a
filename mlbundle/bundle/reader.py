"""Opens a bundle without trusting it.

After opening, the structure is sound: every blob is referred to and has the size that is stated, the documents have
their digests, and they agree with each other. What is not known yet is whether the large blobs have the bytes that
their digests name: `verify` and `unpack` see to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle.bundle.archive import ArchiveBlobs
from mlbundle.bundle.digests import PREFIX
from mlbundle.bundle.file import BundleFile
from mlbundle.bundle.structure import Layer, PlacedFile, read_structure

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from mlbundle.bundle.archive import RandomAccess
    from mlbundle.bundle.blobs import BlobReader
    from mlbundle.bundle.structure import Structure

__all__ = ["BundleReader", "Layer", "PlacedFile", "open_archive", "open_blobs", "open_bundle", "open_remote"]


class BundleReader:
    """An open bundle of sound structure; a context manager. Made by `open_bundle` and its siblings."""

    def __init__(self, source: BlobReader, structure: Structure, index: bytes, size_bytes: int) -> None:
        self.source = source
        self.structure = structure
        self.index_bytes = index
        self.size_bytes = size_bytes
        """Size of the file, or of all blobs where there is no file."""
        self.name = source.name
        self.manifest_bytes = structure.manifest_bytes
        self.manifest = structure.manifest
        self.tag = structure.index.tag
        self.config = structure.config
        self.document = structure.document
        self.files = structure.files
        self.layers = structure.layers
        self.images = structure.images
        self.referrers = structure.referrers
        self.model_yaml = structure.model_yaml
        self.framework_yaml = structure.framework_yaml
        self.further_frameworks = structure.further_frameworks
        """Manifests of further frameworks by their names in lower case, in the order of the layers."""
        self.manifest_digest = structure.index.model.digest
        """Digest of the model manifest: the identity of the bundle."""
        self.config_digest = structure.manifest.config.digest
        self.set_digest = structure.document.set_digest
        """Digest of the set of files, independent of how they are packed."""

    @property
    def manifest_hex(self) -> str:
        """The digest of the model manifest without its algorithm."""
        return self.manifest_digest.removeprefix(PREFIX)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the source."""
        self.source.close()


def open_bundle(path: Path) -> BundleReader:
    """Open a bundle file and check its structure.

    Raises ReferenceNotFound when there is no file, NotABundle for a file of another kind, and BundleCorrupt,
    DigestMismatch or UnsafePath, with the byte offset or the JSON pointer, for a broken one.
    """
    return open_archive(BundleFile(path))


def open_archive(file: RandomAccess) -> BundleReader:
    """Open a bundle in its archive form, looking at every header; `file` is closed with the reader, or on an error."""
    try:
        archive = ArchiveBlobs(file)
        index = archive.read_index()
        structure = read_structure(archive, index)
        archive.refuse_strays(set(structure.blobs()))
        return BundleReader(archive, structure, index, file.size_bytes)
    except BaseException:
        file.close()
        raise


def open_remote(file: RandomAccess) -> BundleReader:
    """Look at the documents of a bundle file far away, without its large blobs; raises what `open_bundle` raises."""
    try:
        archive = ArchiveBlobs(file, lazy=True)
        index = archive.read_index()
        return BundleReader(archive, read_structure(archive, index, whole=False), index, file.size_bytes)
    except BaseException:
        file.close()
        raise


def open_blobs(source: BlobReader, index: bytes, *, whole: bool = True) -> BundleReader:
    """Open a bundle whose blobs lie in a store or a registry, and whose `index.json` is `index`.

    Without `whole` only the documents are looked at. Raises what `open_bundle` raises.
    """
    structure = read_structure(source, index, whole=whole)
    return BundleReader(source, structure, index, sum(structure.blobs().values()))
