"""Writes a bundle that is open, wherever its blobs lie, as a file; and adds or leaves out what is not the model."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import TYPE_CHECKING, Any

from mlbundle.bundle import oci
from mlbundle.bundle.digests import sha256_hex
from mlbundle.bundle.output import Output, already_there, check_space, publish, temporary_beside
from mlbundle.bundle.overlay import OverlayBlobs
from mlbundle.bundle.reader import BundleReader, open_blobs
from mlbundle.bundle.strictjson import loads
from mlbundle.bundle.tarformat import END_BYTES, encode_header, padding
from mlbundle.bundle.verify import Copier, chunks_by_blob, meter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from mlbundle.bundle.output import Held

    Progress = Callable[[int, int], None]
    NewReferrer = tuple[bytes, Mapping[str, bytes]]


def write_archive(
    reader: BundleReader,
    destination: Path,
    progress: Progress | None = None,
    *,
    overwrite: bool = False,
    held: Held | None = None,
) -> None:
    """Write an open bundle as a file, checking every blob, and every file in a tar, on its way.

    The bytes are those that `pack` writes for the same content. Raises UsageError when `destination` exists and
    `overwrite` is not set, SourceChanged when what is there is not the file that is `held`, DigestMismatch,
    StorageFailed; after an error `destination` is as it was.
    """
    if not overwrite and destination.exists():
        raise already_there(destination)
    blobs = reader.structure.blobs()
    check_space(sum(blobs.values()), destination)
    with temporary_beside(destination) as (temporary, descriptor):
        output = Output(descriptor)
        for name, data in ((oci.LAYOUT_FILE, oci.LAYOUT_BYTES), (oci.INDEX_FILE, reader.index_bytes)):
            output.write(encode_header(name, len(data)) + data + padding(len(data)))
        with ThreadPoolExecutor(max_workers=1) as pool:
            report = meter(progress, sum(blobs.values()))
            copier = Copier(reader.source, report, pool, chunks_by_blob(reader))
            tars = {layer.hex: layer for layer in reader.layers if layer.tar}
            for hexadecimal, size_bytes in blobs.items():
                output.write(encode_header(oci.BLOB_FOLDER + hexadecimal, size_bytes))
                if hexadecimal in tars:
                    copier.copy_layer(tars[hexadecimal], repeat(None), output.write)
                else:
                    copier.copy_blob(hexadecimal, size_bytes, f"sha256:{hexadecimal}", output.write)
                output.write(padding(size_bytes))
        output.write(bytes(END_BYTES))
        output.finish()
        os.fsync(descriptor)
        publish(temporary, destination, overwrite=overwrite, held=held)


def with_referrers(reader: BundleReader, added: Sequence[NewReferrer]) -> BundleReader:
    """Return the bundle with further referrers, each a manifest and its blobs by digest (hex).

    One that is there already is not added again. Raises BundleCorrupt for one that is about another manifest.
    """
    index = reader.structure.index
    entries = {entry.descriptor.hex: entry for entry in index.referrers}
    blobs: dict[str, bytes] = {}
    for manifest, held in added:
        key = sha256_hex(manifest)
        document: Any = loads(manifest, where=f"sha256:{key}#")
        descriptor = oci.Descriptor(oci.MANIFEST_TYPE, key, len(manifest))
        entries[key] = oci.ReferrerEntry(str(document.get("artifactType")), descriptor)
        blobs.update({key: manifest, **held})
    return _rewritten(reader, index._replace(referrers=tuple(entries.values())), blobs)


def with_images(reader: BundleReader, accelerators: Iterable[str]) -> BundleReader:
    """Return the bundle with the embedded images of these accelerators only, of all its frameworks."""
    wanted = set(accelerators)
    index = reader.structure.index
    return _rewritten(
        reader,
        index._replace(images=tuple(entry for entry in index.images if entry.accelerator in wanted)),
        {},
    )


def _rewritten(reader: BundleReader, index: oci.Index, added: Mapping[str, bytes]) -> BundleReader:
    return open_blobs(OverlayBlobs(reader.source, added), oci.encode_index(index))
