"""Referrers: descriptors, and the tag that stands for the referrers API where a registry has none.

Distribution specification v1.1, "Referrers Tag Schema" and "Pushing Manifests with Subject".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.bundle.digests import PREFIX, digest_of, is_digest
from mlbundle.bundle.oci import INDEX_TYPE, go_json
from mlbundle.errors import ReferenceNotFound, RegistryAnswerInvalid, RegistryUnavailable
from mlbundle.registry.documents import parse_object

if TYPE_CHECKING:
    from mlbundle.registry.client import RegistryClient

_MAX_ENTRIES = 10_000
_WRITE_TRIES = 4


def fallback_tag(digest: str) -> str:
    """Return the tag that lists the referrers of a digest."""
    return digest.replace(":", "-")


def descriptors(index: dict[str, Any], where: str) -> tuple[dict[str, Any], ...]:
    """Return the entries of an index; those with other digests than sha256 are left out.

    Raises RegistryAnswerInvalid for entries without a media type, a digest and a size.
    """
    entries = index.get("manifests")
    if not isinstance(entries, list) or len(entries) > _MAX_ENTRIES:
        raise RegistryAnswerInvalid(f"an index with at most {_MAX_ENTRIES} entries is expected", where=where)
    return tuple(entry for entry in entries if _usable(entry, where))


def _usable(entry: Any, where: str) -> bool:
    entry = entry if isinstance(entry, dict) else {}
    digest, size = entry.get("digest"), entry.get("size")
    annotations = entry.get("annotations", {})
    if (
        not isinstance(entry.get("mediaType"), str)
        or not isinstance(entry.get("artifactType", ""), str)
        or not isinstance(annotations, dict | None)
        or not all(isinstance(value, str) for value in (annotations or {}).values())
        or not isinstance(digest, str)
        or type(size) is not int
        or size < 0
    ):
        raise RegistryAnswerInvalid("an index has an entry that is no descriptor", where=where)
    if digest.startswith(PREFIX) and not is_digest(digest):
        raise RegistryAnswerInvalid(f"{ascii(digest)[:100]} is no digest", where=where)
    return is_digest(digest)


def read_tag(client: RegistryClient, digest: str) -> tuple[dict[str, Any], ...]:
    """Return the referrers that the fallback tag lists; none when there is no such tag."""
    index = _read_index(client, digest)
    return descriptors(index, client.name) if index is not None else ()


def add_to_tag(client: RegistryClient, digest: str, entry: dict[str, Any]) -> None:
    """Add an entry to the index under the fallback tag; all that is there stays.

    Writing a tag is not atomic between clients, so it is read again afterwards. Raises RegistryUnavailable when
    others kept writing over it.
    """
    for attempt in range(_WRITE_TRIES):
        index = _read_index(client, digest)
        if index is None:
            index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []}
        known = descriptors(index, client.name)
        if any(other["digest"] == entry["digest"] for other in known):
            return
        index["manifests"] = [*index["manifests"], entry]
        client.put_manifest(fallback_tag(digest), INDEX_TYPE, go_json(index))
        written = read_tag(client, digest)
        if any(other["digest"] == entry["digest"] for other in written):
            return
        client.transport.pause(client.transport.policy.pause_s(attempt))
    raise RegistryUnavailable(
        "others keep writing the list of referrers at the same time", where=client.name, hint="try again"
    )


def descriptor_of(media_type: str, data: bytes, where: str) -> dict[str, Any]:
    """Return the entry for a manifest: its artifact type (or its config's type) and its annotations go along."""
    manifest = parse_object(data, where)
    entry: dict[str, Any] = {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}
    config = manifest.get("config")
    artifact_type = manifest.get("artifactType") or (
        config.get("mediaType") if isinstance(config, dict) else None
    )
    if artifact_type:
        entry["artifactType"] = artifact_type
    if manifest.get("annotations"):
        entry["annotations"] = dict(sorted(manifest["annotations"].items()))
    return entry


def _read_index(client: RegistryClient, digest: str) -> dict[str, Any] | None:
    try:
        found = client.get_manifest(fallback_tag(digest), (INDEX_TYPE,))
    except ReferenceNotFound:
        return None
    return parse_object(found.data, client.name)
