"""Copying an image that a registry describes as it likes: a registry in memory stands for one that lies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlbundle.bundle.digests import digest_of
from mlbundle.bundle.oci import INDEX_TYPE, MANIFEST_TYPE
from mlbundle.errors import RegistryAnswerInvalid
from mlbundle.registry.client import Manifest
from mlbundle.registry.reference import parse
from mlbundle.runs.mirror import copy_image


class Client:
    """A repository of manifests."""

    name = "oci://example.org/x"
    reference = parse(name)

    def __init__(self) -> None:
        self.manifests: dict[str, Manifest] = {}
        self.asked = 0

    def add(self, document: Any, media_type: str = INDEX_TYPE) -> str:
        data = json.dumps(document).encode()
        self.manifests[digest_of(data)] = Manifest(media_type, digest_of(data), data)
        return digest_of(data)

    def index_of(self, *children: str, number: int = 0) -> str:
        entries = [{"digest": digest, "size": 1, "number": number} for digest in children]
        return self.add({"mediaType": INDEX_TYPE, "manifests": entries, "number": number})

    def get_manifest(self, digest: str, accept: Any = ()) -> Manifest:
        self.asked += 1
        return self.manifests[digest]

    def put_manifest(self, digest: str, media_type: str, data: bytes) -> str:
        self.manifests[digest] = Manifest(media_type, digest, data)
        return digest


@pytest.fixture
def source() -> Any:
    return Client()


@pytest.mark.parametrize(
    ("document", "media_type"),
    [
        ([1], MANIFEST_TYPE),
        ([1], INDEX_TYPE),
        ("text", INDEX_TYPE),
        ({}, INDEX_TYPE),
        ({}, MANIFEST_TYPE),
        ({"config": 7, "layers": []}, MANIFEST_TYPE),
        ({"config": {"digest": "sha256:1", "size": 1}, "layers": []}, MANIFEST_TYPE),
        ({"config": {"digest": "sha256:" + "a" * 64, "size": -1}, "layers": []}, MANIFEST_TYPE),
        ({"manifests": [7]}, INDEX_TYPE),
        ({"manifests": [{"digest": "sha256:" + "a" * 64, "size": 1}] * 300}, INDEX_TYPE),
        ({"manifests": []}, "text/html"),
        ({"mediaType": "application/vnd.docker.distribution.manifest.v1+json"}, MANIFEST_TYPE),
    ],
)
def test_what_is_no_image_is_said_to_be_none(source: Any, document: Any, media_type: str) -> None:
    target: Any = Client()
    with pytest.raises(RegistryAnswerInvalid) as caught:
        copy_image(source, target, source.add(document, media_type))
    assert caught.value.where
    assert not target.manifests


def test_a_chain_of_indexes_ends_soon(source: Any) -> None:
    digest = source.index_of()
    for number in range(1200):
        digest = source.index_of(digest, number=number + 1)
    target: Any = Client()
    with pytest.raises(RegistryAnswerInvalid, match="image"):
        copy_image(source, target, digest)
    assert source.asked < 5


def test_each_manifest_is_asked_for_once(source: Any) -> None:
    leaf = source.index_of()
    middle = source.index_of(*[leaf] * 200, number=1)
    top = source.index_of(*[middle] * 200, leaf, number=2)
    target: Any = Client()
    copy_image(source, target, top)
    assert source.asked == 3
    assert target.manifests == source.manifests


def test_the_number_of_manifests_is_bounded(source: Any) -> None:
    middles = []
    for number in range(20):
        leaves = [source.index_of(number=1000 * (number + 1) + leaf) for leaf in range(20)]
        middles.append(source.index_of(*leaves, number=number))
    target: Any = Client()
    with pytest.raises(RegistryAnswerInvalid, match="at most"):
        copy_image(source, target, source.index_of(*middles))
    assert source.asked <= 256
