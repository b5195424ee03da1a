"""Which of the referrers in a registry are taken; a client that answers at once stands for one with thousands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlbundle.bundle.attachments import MAX_REFERRER_BYTES
from mlbundle.bundle.digests import digest_of, sha256_hex
from mlbundle.bundle.oci import INDEX_TYPE, MANIFEST_TYPE, SIGNATURE_TYPES, Descriptor
from mlbundle.errors import ReferenceNotFound, RegistryAnswerInvalid, RegistryUnavailable
from mlbundle.registry.blobs import RegistryBlobs
from mlbundle.registry.client import Manifest
from mlbundle.runs.attached import MAX_REFERRERS, Attached, find_referrers

MODEL = Descriptor(MANIFEST_TYPE, sha256_hex(b"model"), 5)
NOTE = "application/vnd.example.note"


class Client:
    """A repository with many referrers, all of one config."""

    name = "oci://example.org/x"

    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, int] = {sha256_hex(b"{}"): 2}
        self.served_as = MANIFEST_TYPE
        self.asked = 0

    def attach(self, kind: str = NOTE, *, config_bytes: int = 2, in_list: Any = (), **changes: Any) -> str:
        config = {"mediaType": "text/plain", "digest": digest_of(b"{}"), "size": config_bytes}
        document = {
            "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "artifactType": kind, "config": config, "layers": [],
            "subject": {"mediaType": MANIFEST_TYPE, "digest": MODEL.digest, "size": 5},
            "annotations": {"number": str(len(self.listed))}, **changes,
        }  # fmt: skip
        data = json.dumps(document).encode()
        entry = {
            "mediaType": MANIFEST_TYPE,
            "digest": digest_of(data),
            "size": len(data),
            "artifactType": kind,
        }
        self.manifests[digest_of(data)] = data
        self.listed.append({**entry, **dict(in_list)})
        return digest_of(data)

    def referrers(self, digest: str) -> tuple[dict[str, Any], ...]:
        assert digest == MODEL.digest
        return tuple(self.listed)

    def get_manifest(self, digest: str) -> Manifest:
        self.asked += 1
        if digest not in self.manifests:
            raise ReferenceNotFound("there is no such manifest")
        return Manifest(self.served_as, digest, self.manifests[digest])

    def blob_size(self, hexadecimal: str) -> int | None:
        return self.blobs.get(hexadecimal)


@pytest.fixture
def client() -> Client:
    return Client()


def find(client: Any) -> Attached:
    return find_referrers(client, RegistryBlobs(client), MODEL)


def digests(found: Attached) -> set[str]:
    return {referrer.manifest.digest for referrer in found.referrers}


def test_what_is_broken_is_passed_over_and_the_rest_is_taken(client: Client) -> None:
    good = client.attach()
    missing = {"mediaType": "text/plain", "digest": "sha256:" + "1" * 64, "size": 1}
    broken = [
        client.attach("application/vnd.Example.Note"),
        client.attach("note"),
        client.attach("application/vnd.cncf.model.manifest.v1+json"),
        client.attach(config_bytes=3),
        client.attach(layers=[missing]),
        client.attach(layers=[{**missing, "size": MAX_REFERRER_BYTES + 1}]),
        client.attach(mediaType=INDEX_TYPE),
        client.attach(subject=missing),
        client.attach(in_list={"size": 7}),
        client.attach(in_list={"size": 5 << 20}),
    ]
    gone = "sha256:" + "2" * 64
    client.listed.append({"mediaType": MANIFEST_TYPE, "digest": gone, "size": 9})
    found = find(client)
    assert digests(found) == {good}
    assert set(found.documents) == {good.removeprefix("sha256:")}
    assert sorted(text.partition(": ")[0] for text in found.passed_over) == sorted([*broken, gone])


def test_a_manifest_said_to_be_too_large_is_not_asked_for(client: Client) -> None:
    client.attach(in_list={"size": 5 << 20})
    find(client)
    assert client.asked == 0


def test_what_a_manifest_is_served_as_does_not_count(client: Client) -> None:
    good = client.attach()
    client.served_as = "text/plain"
    (referrer,) = find(client).referrers
    assert (referrer.manifest.digest, referrer.manifest.media_type) == (good, MANIFEST_TYPE)


def test_signatures_are_taken_where_there_is_too_much(client: Client) -> None:
    for _ in range(MAX_REFERRERS + 7):
        client.attach()
    signatures = {
        client.attach(SIGNATURE_TYPES[1]),
        client.attach(SIGNATURE_TYPES[0], in_list={"artifactType": ""}),
    }
    found = find(client)
    assert signatures <= digests(found)
    assert len(found.referrers) == MAX_REFERRERS
    assert [text for text in found.passed_over if text.startswith("9 more")]


def test_manifests_do_not_fill_the_memory(client: Client) -> None:
    for _ in range(30):
        client.attach(annotations={"number": str(len(client.listed)), "text": "x" * (4 * 10**6)})
    found = find(client)
    assert 10 < len(found.referrers) < 20
    assert len(found.passed_over) == 30 - len(found.referrers)
    assert client.asked == len(found.referrers)


def test_a_list_that_is_none_attaches_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> None:
        def raise_(_digest: str) -> None:
            raise error

        monkeypatch.setattr(client, "referrers", raise_)

    fail(RegistryAnswerInvalid("an index is expected"))
    found = find(client)
    assert (found.referrers, len(found.passed_over)) == ((), 1)
    fail(RegistryUnavailable("nobody answers"))
    with pytest.raises(RegistryUnavailable):
        find(client)
