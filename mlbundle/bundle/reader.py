"""Opens a bundle without trusting it.

After `open_bundle` has returned, the structure is sound: every byte of the file belongs to a known blob, the
documents have their digests, sizes agree, and each file of the table has its place. What is not known yet is
whether the large blobs have the bytes that their digests name: `verify` and `unpack` see to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle.bundle.digests import PREFIX
from mlbundle.bundle.file import BundleFile
from mlbundle.bundle.structure import Layer, PlacedFile, read_structure

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from mlbundle.bundle.structure import Structure

__all__ = ["BundleReader", "Layer", "PlacedFile", "open_bundle"]


class BundleReader:
    """An open bundle of sound structure; a context manager. Made by `open_bundle`."""

    def __init__(self, file: BundleFile, structure: Structure) -> None:
        self._file = file
        self.path = file.path
        self.size_bytes = file.size_bytes
        self.read_at = file.read_at
        self.read_into = file.read_into
        self.manifest_bytes = structure.manifest_bytes
        self.manifest = structure.manifest
        self.tag = structure.tag
        self.config = structure.config
        self.document = structure.document
        self.files = structure.files
        self.layers = structure.layers
        self.model_yaml = structure.model_yaml
        self.framework_yaml = structure.framework_yaml
        self.manifest_digest = PREFIX + structure.manifest_hex
        """Digest of the model manifest: the identity of the bundle."""
        self.config_digest = structure.manifest.config.digest
        self.set_digest = structure.document.set_digest
        """Digest of the set of files, independent of how they are packed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_bundle(path: Path) -> BundleReader:
    """Open a bundle and check its structure.

    Raises ReferenceNotFound when there is no file, NotABundle for a file of another kind, and BundleCorrupt,
    DigestMismatch or UnsafePath, with the byte offset or the JSON pointer, for a broken one.
    """
    file = BundleFile(path)
    try:
        return BundleReader(file, read_structure(file))
    except BaseException:
        file.close()
        raise
