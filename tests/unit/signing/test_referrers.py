"""Referrers: byte for byte as Go prints them, read strictly."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from signing_samples import SUBJECT

from mlbundle.bundle.strictjson import MAX_BYTES
from mlbundle.errors import BundleCorrupt, DigestMismatch, MlbundleError
from mlbundle.signing.referrers import (
    EMPTY_HEX,
    Layer,
    LayerDescriptor,
    Referrer,
    layer_bytes,
    load_referrer,
    make_referrer,
    parse_referrer,
)

LAYERS = [Layer("text/a", b"one", {"z": "<1>", "a": "2"}), Layer("text/b", b"")]
REFERRER = make_referrer("application/x", LAYERS, SUBJECT, {"b": "&", "a": "x"})


class Blobs:
    """A reader of blobs in memory; it may lie about what a digest names."""

    name = "memory"

    def __init__(self, referrer: Referrer) -> None:
        self.blobs = {**referrer.blobs, hashlib.sha256(referrer.manifest).hexdigest(): referrer.manifest}

    def size_of(self, hexadecimal: str) -> int | None:
        data = self.blobs.get(hexadecimal)
        return None if data is None else len(data)

    def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
        return self.blobs[hexadecimal][offset : offset + size_bytes]

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        view[:] = self.blobs[hexadecimal][offset : offset + len(view)]

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        return f"memory: {hexadecimal[:12]}"

    def close(self) -> None:
        pass


def test_the_manifest_is_what_go_prints() -> None:
    one = hashlib.sha256(b"one").hexdigest()
    none = hashlib.sha256(b"").hexdigest()
    empty = hashlib.sha256(b"{}").hexdigest()
    expected = (
        '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","artifactType":"application/x",'
        f'"config":{{"mediaType":"application/vnd.oci.empty.v1+json","digest":"sha256:{empty}","size":2}},'
        f'"layers":[{{"mediaType":"text/a","digest":"sha256:{one}","size":3,'
        '"annotations":{"a":"2","z":"\\u003c1\\u003e"}},'
        f'{{"mediaType":"text/b","digest":"sha256:{none}","size":0}}],'
        f'"subject":{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{SUBJECT.digest}",'
        f'"size":{SUBJECT.size_bytes}}},"annotations":{{"a":"x","b":"\\u0026"}}}}'
    )
    assert REFERRER.manifest.decode() == expected
    assert REFERRER.blobs == {empty: b"{}", one: b"one", none: b""}
    assert REFERRER.digest == "sha256:" + hashlib.sha256(expected.encode()).hexdigest()
    assert empty == EMPTY_HEX


def test_what_is_made_is_read_back() -> None:
    parsed = parse_referrer(REFERRER.manifest)
    assert parsed.artifact_type == "application/x"
    assert parsed.subject == SUBJECT
    assert parsed.annotations == {"a": "x", "b": "&"}
    assert parsed.layers[0].annotations == {"z": "<1>", "a": "2"}
    assert [layer_bytes(REFERRER, layer) for layer in parsed.layers] == [b"one", b""]
    assert load_referrer(Blobs(REFERRER), REFERRER.digest) == REFERRER


def changed(**members: Any) -> bytes:
    document = json.loads(REFERRER.manifest) | members
    return json.dumps({key: value for key, value in document.items() if value is not None}).encode()


def layer(**members: Any) -> list[Any]:
    return [{"mediaType": "a", "digest": "sha256:" + "0" * 64, "size": 0} | members]


CONFIG = json.loads(REFERRER.manifest)["config"]


@pytest.mark.parametrize(
    "manifest",
    [
        changed(schemaVersion=1),
        changed(schemaVersion=True),
        changed(mediaType="application/vnd.oci.image.index.v1+json"),
        changed(artifactType=None),
        changed(artifactType=3),
        changed(subject=None),
        changed(subject={"mediaType": "a", "digest": "sha256:" + "A" * 64, "size": 1}),
        changed(subject={"mediaType": "a", "digest": "sha512:" + "a" * 128, "size": 1}),
        changed(subject={"mediaType": "a", "digest": "sha256:" + "a" * 64, "size": -1}),
        changed(subject={"mediaType": "a", "digest": "sha256:" + "a" * 64, "size": 1, "urls": []}),
        changed(config=None),
        changed(config=CONFIG | {"digest": "sha256:44"}),
        changed(config=CONFIG | {"size": "2"}),
        changed(config=CONFIG | {"platform": {}}),
        changed(layers=layer(digest="../../etc/passwd")),
        changed(layers=layer(size=1.5)),
        changed(layers=layer(annotations={"a": 1})),
        changed(layers=layer(data="")),
        changed(layers=layer() * 65),
        changed(layers={}),
        changed(annotations={"a": None}),
        changed(annotations=[]),
        changed(annotations={str(number): "" for number in range(257)}),
        changed(unknown=1),
        REFERRER.manifest[:-1] + b',"subject":{}}',
        b"[" * 40 + b"]" * 40,
        b" " * (MAX_BYTES + 1),
        b"",
    ],
)
def test_what_is_no_referrer_is_refused(manifest: bytes) -> None:
    with pytest.raises(BundleCorrupt) as refused:
        parse_referrer(manifest)
    assert refused.value.where


def test_referrers_of_others_may_have_a_config_of_their_own() -> None:
    assert parse_referrer(changed(config=CONFIG | {"data": "e30="})).config.hex == EMPTY_HEX
    data = b'{"a":1}'
    name = hashlib.sha256(data).hexdigest()
    manifest = changed(
        config={"mediaType": "application/json", "digest": f"sha256:{name}", "size": len(data)}
    )
    theirs = Referrer(manifest, {**REFERRER.blobs, name: data})
    assert load_referrer(Blobs(theirs), theirs.digest) == theirs
    del theirs.blobs[name]  # type: ignore[attr-defined]
    with pytest.raises(BundleCorrupt, match="not there"):
        load_referrer(Blobs(theirs), theirs.digest)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_words(data: bytes) -> None:
    with contextlib.suppress(BundleCorrupt):
        parse_referrer(data)


NAMES = sorted(Blobs(REFERRER).blobs)


@given(st.integers(min_value=0), st.integers(min_value=0), st.integers(1, 255))
def test_no_changed_byte_of_any_blob_is_loaded(which: int, place: int, bits: int) -> None:
    blobs = Blobs(REFERRER)
    filled = [name for name in NAMES if blobs.blobs[name] and name != EMPTY_HEX]
    name = filled[which % len(filled)]
    data = bytearray(blobs.blobs[name])
    data[place % len(data)] ^= bits
    blobs.blobs[name] = bytes(data)
    with pytest.raises(DigestMismatch):
        load_referrer(blobs, REFERRER.digest)


def test_absent_and_oversized_blobs_are_refused() -> None:
    for name in NAMES:
        blobs = Blobs(REFERRER)
        del blobs.blobs[name]
        if name == EMPTY_HEX:
            assert load_referrer(blobs, REFERRER.digest) == REFERRER
            continue
        with pytest.raises(BundleCorrupt, match="not there"):
            load_referrer(blobs, REFERRER.digest)
    longer = Blobs(REFERRER)
    longer.blobs[hashlib.sha256(b"one").hexdigest()] = b"one more"
    with pytest.raises(BundleCorrupt, match="8 bytes where 3"):
        load_referrer(longer, REFERRER.digest)
    large = make_referrer("a", [Layer("b", bytes(33 << 20))], SUBJECT)
    with pytest.raises(BundleCorrupt, match="over the cap"):
        load_referrer(Blobs(large), large.digest)
    with pytest.raises(BundleCorrupt, match="no digest"):
        load_referrer(Blobs(REFERRER), "sha256:../x")


def test_layers_in_memory_are_checked_too() -> None:
    first = parse_referrer(REFERRER.manifest).layers[0]
    with pytest.raises(DigestMismatch):
        layer_bytes(Referrer(REFERRER.manifest, {first.hex: b"two"}), first)
    with pytest.raises(MlbundleError):
        layer_bytes(Referrer(REFERRER.manifest, {}), first)
    with pytest.raises(DigestMismatch):
        layer_bytes(REFERRER, LayerDescriptor("text/a", first.hex, 2, {}))
