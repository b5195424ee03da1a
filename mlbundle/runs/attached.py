"""The referrers of a bundle in a registry that a bundle can hold; anybody may attach anything there.

Whatever is wrong with one of them, the bundle can be used: what can't be taken is passed over, and said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.bundle import oci
from mlbundle.bundle.attachments import Referrer, check_referrer_blobs, read_referrer
from mlbundle.bundle.digests import PREFIX
from mlbundle.bundle.overlay import MemoryBlobs
from mlbundle.bundle.strictjson import MAX_BYTES, loads
from mlbundle.errors import BundleCorrupt, IntegrityError, ReferenceNotFound, RegistryAnswerInvalid

if TYPE_CHECKING:
    from mlbundle.registry.blobs import RegistryBlobs
    from mlbundle.registry.client import RegistryClient

MAX_REFERRERS = oci.MAX_ENTRIES // 2
_MAX_MANIFEST_BYTES = 64 << 20
_MAX_BLOBS = 2_000
_MAX_BLOB_BYTES = 1 << 30


@dataclass(frozen=True)
class Attached:
    """What is attached to a bundle; `documents` are the manifests of `referrers` by digest (hex)."""

    referrers: tuple[Referrer, ...]
    documents: dict[str, bytes]
    passed_over: tuple[str, ...]


def find_referrers(client: RegistryClient, blobs: RegistryBlobs, model: oci.Descriptor) -> Attached:
    """Return the referrers of a model manifest by digest, signatures first where there are too many.

    `blobs` has their manifests afterwards. Raises RegistryUnavailable, RegistryDenied.
    """
    search = _Search(client, blobs, model)
    try:
        listed = {str(entry["digest"]): entry for entry in client.referrers(model.digest)}
    except RegistryAnswerInvalid as error:
        return Attached((), {}, (f"what is attached: {error.message}",))
    ranked = sorted(listed.values(), key=_rank)
    for entry in ranked[:MAX_REFERRERS]:
        search.look_at(entry)
    if len(ranked) > MAX_REFERRERS:
        search.passed_over.append(f"{len(ranked) - MAX_REFERRERS} more: a bundle takes {MAX_REFERRERS}")
    referrers = tuple(search.found[digest] for digest in sorted(search.found))
    return Attached(referrers, search.documents, tuple(search.passed_over))


def _rank(entry: dict[str, Any]) -> int:
    """Signatures go first, then what may be one, as not every registry tells the type."""
    kind = entry.get("artifactType")
    return 0 if kind in oci.SIGNATURE_TYPES else 2 if kind else 1


class _Search:
    """What was found so far, within bounds on memory, requests and what a pull would fetch."""

    def __init__(self, client: RegistryClient, blobs: RegistryBlobs, model: oci.Descriptor) -> None:
        self.found: dict[str, Referrer] = {}
        self.documents: dict[str, bytes] = {}
        self.passed_over: list[str] = []
        self._client = client
        self._blobs = blobs
        self._model = model
        self._manifest_bytes = 0
        self._blob_count = 0
        self._blob_bytes = 0

    def look_at(self, entry: dict[str, Any]) -> None:
        """Take a referrer in, or note why not."""
        digest = str(entry["digest"])
        try:
            data = self._fetch(digest, int(entry["size"]))
            referrer = self._read(digest, data)
            check_referrer_blobs(self._blobs, referrer)
        except (IntegrityError, ReferenceNotFound) as error:
            self.passed_over.append(f"{digest}: {error.message}")
            return
        self.found[digest] = referrer
        self.documents[self._blobs.add_document(data)] = data

    def _fetch(self, digest: str, size_bytes: int) -> bytes:
        if size_bytes > MAX_BYTES or self._manifest_bytes + size_bytes > _MAX_MANIFEST_BYTES:
            raise BundleCorrupt(f"its manifest of {size_bytes} bytes is too much", where=digest)
        data = self._client.get_manifest(digest).data
        if len(data) != size_bytes:
            raise BundleCorrupt(f"its manifest has {len(data)} bytes, not {size_bytes}", where=digest)
        self._manifest_bytes += size_bytes
        return data

    def _read(self, digest: str, data: bytes) -> Referrer:
        document: Any = loads(data, where=f"{digest}#")
        kind = str(document.get("artifactType") if isinstance(document, dict) else None)
        key = digest.removeprefix(PREFIX)
        # What it is served as does not count; what it says of itself is compared.
        entry = oci.ReferrerEntry(kind, oci.Descriptor(oci.MANIFEST_TYPE, key, len(data)))
        referrer = read_referrer(MemoryBlobs({key: data}), entry, self._model, whole=False)
        count = self._blob_count + len(referrer.blobs)
        size_bytes = self._blob_bytes + sum(blob.size_bytes for blob in referrer.blobs)
        if count > _MAX_BLOBS or size_bytes > _MAX_BLOB_BYTES:
            raise BundleCorrupt("more is attached than a bundle takes", where=digest)
        self._blob_count, self._blob_bytes = count, size_bytes
        return referrer
