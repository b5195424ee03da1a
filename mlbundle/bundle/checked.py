"""Reading single blobs with every claim about them held against what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle.bundle.archive import DAMAGED
from mlbundle.bundle.digests import sha256_hex
from mlbundle.errors import BundleCorrupt, DigestMismatch

if TYPE_CHECKING:
    from mlbundle.bundle.blobs import BlobReader
    from mlbundle.bundle.oci import Descriptor


def check_present(source: BlobReader, descriptor: Descriptor, what: str) -> None:
    """Raise BundleCorrupt unless the blob is there with the size that its descriptor states."""
    found = source.size_of(descriptor.hex)
    if found is None:
        raise BundleCorrupt(
            f"the blob of {ascii(what)[:100]} is missing",
            where=f"{source.name}!{descriptor.digest}",
            hint=DAMAGED,
        )
    if found != descriptor.size_bytes:
        raise BundleCorrupt(
            f"{ascii(what)[:100]} should have {descriptor.size_bytes} bytes and has {found}",
            where=source.where(descriptor.hex),
            hint=DAMAGED,
        )


def read_document(source: BlobReader, descriptor: Descriptor, cap_bytes: int, what: str) -> bytes:
    """Return a small blob whole.

    Raises BundleCorrupt for one that is missing, over the cap or of another size than is stated, DigestMismatch.
    """
    check_present(source, descriptor, what)
    if descriptor.size_bytes > cap_bytes:
        raise BundleCorrupt(
            f"{ascii(what)[:100]} has {descriptor.size_bytes} bytes; the cap is {cap_bytes}",
            where=source.where(descriptor.hex),
        )
    data = source.read_at(descriptor.hex, 0, descriptor.size_bytes)
    if sha256_hex(data) != descriptor.hex:
        raise DigestMismatch(
            f"{what} does not have the digest that names it", where=source.where(descriptor.hex), hint=DAMAGED
        )
    return data
