"""Sigstore bundles: the documents as cosign lays them out, and nothing but a good signature is accepted."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given
from hypothesis import strategies as st
from signing_samples import PUBLIC, SUBJECT, A, B, blob_of, p256, public_pem, rewritten, wrapped

from mlbundle.errors import BundleCorrupt, CheckFailed, IntegrityError, SignatureInvalid, UsageError
from mlbundle.signing.keys import load_public
from mlbundle.signing.referrers import parse_referrer
from mlbundle.signing.sigstore import attest, pae, parse_bundle, sign
from mlbundle.signing.statement import make_statement, parse_statement
from mlbundle.signing.trust import check

SIGNED = sign(SUBJECT, "digits", A)
BUNDLE = blob_of(SIGNED)


def test_the_encoding_that_is_signed_is_that_of_dsse() -> None:
    # The example of the DSSE protocol text.
    assert pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert pae("ü", b"\0 1") == b"DSSEv1 2 \xc3\xbc 3 \0 1"


def test_the_bundle_is_what_cosign_expects() -> None:
    payload = (
        '{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"digits","digest":{"sha256":"'
        + SUBJECT.digest.removeprefix("sha256:")
        + '"}}],"predicateType":"https://sigstore.dev/cosign/sign/v1","predicate":{}}'
    ).encode()
    der = base64.b64decode(b"".join(A.public.pem.splitlines()[1:-1]))
    kind = b"application/vnd.in-toto+json"
    message = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
    assert BUNDLE.decode() == json.dumps(
        {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "publicKey": {"hint": base64.b64encode(hashlib.sha256(der).digest()).decode()}
            },
            "dsseEnvelope": {
                "payload": base64.b64encode(payload).decode(),
                "payloadType": "application/vnd.in-toto+json",
                "signatures": [{"sig": base64.b64encode(key.sign(message)).decode()}],
            },
        },
        separators=(",", ":"),
    )


def test_the_referrer_says_what_it_carries_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = parse_referrer(SIGNED.manifest)
    kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
    assert (parsed.artifact_type, [layer.media_type for layer in parsed.layers]) == (kind, [kind])
    assert parsed.subject == SUBJECT
    assert parsed.annotations == {
        "dev.sigstore.bundle.content": "dsse-envelope",
        "dev.sigstore.bundle.predicateType": "https://sigstore.dev/cosign/sign/v1",
    }
    assert sign(SUBJECT, "digits", A) == SIGNED
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    dated = parse_referrer(sign(SUBJECT, "digits", A).manifest)
    assert dated.annotations["org.opencontainers.image.created"] == "2023-11-14T22:13:20Z"
    assert dated.layers == parsed.layers


@pytest.mark.parametrize("text", ["yesterday", "-1", "1.5", "9" * 12, "9" * 5000, "٣"])
def test_a_time_that_is_none_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", text)
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH"):
        sign(SUBJECT, "digits", A)


def cosign_bundle(statement: bytes, **material: Any) -> bytes:
    """A bundle as cosign makes it with its default key: P-256, with an entry of a log."""
    key = p256()
    public = load_public(public_pem(key))
    signature = key.sign(pae("application/vnd.in-toto+json", statement), ec.ECDSA(SHA256()))
    return json.dumps({
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {
            "publicKey": {"hint": public.hint}, "tlogEntries": [{"logIndex": "1"}], **material,
        },
        "dsseEnvelope": {
            "payload": base64.b64encode(statement).decode(),
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }, indent=1).encode()  # fmt: skip


def test_a_p256_signature_with_further_members_is_accepted() -> None:
    public = load_public(public_pem(p256()))
    bundle = cosign_bundle(make_statement("", SUBJECT.digest))
    trust = check([wrapped(bundle)], SUBJECT, "digits", [A.public, public])
    assert [signer.key_id for signer in trust.signers] == [public.id]


@pytest.mark.parametrize("material", [{"certificate": {"rawBytes": ""}}, {"x509CertificateChain": {}}])
def test_a_certificate_is_no_trusted_key(material: dict[str, Any]) -> None:
    bundle = cosign_bundle(make_statement("", SUBJECT.digest), **material)
    with pytest.raises(CheckFailed, match="by a trusted key") as refused:
        check([wrapped(bundle)], SUBJECT, "digits", [load_public(public_pem(p256()))])
    assert "certificate" in str(refused.value.context)


def test_a_bundle_without_a_hint_is_tried_with_every_key() -> None:
    unnamed = rewritten(SIGNED, lambda bundle: bundle["verificationMaterial"]["publicKey"].clear())
    assert check([unnamed], SUBJECT, "digits", [B.public, A.public]).signers[0].key_id == A.public.id
    with pytest.raises(CheckFailed, match="by a trusted key") as refused:
        check([unnamed], SUBJECT, "digits", [B.public])
    assert refused.value.context == ("signed by a key without a name, which is not trusted",)


def spoil(path: str, value: Any) -> Any:
    def change(bundle: dict[str, Any]) -> None:
        *parts, last = path.split("/")
        place: Any = bundle
        for part in parts:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value

    return change


GOOD_SIG = json.loads(BUNDLE)["dsseEnvelope"]["signatures"][0]
GOOD_PAYLOAD = json.loads(BUNDLE)["dsseEnvelope"]["payload"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("mediaType", "application/vnd.dev.sigstore.bundle+json;version=0.2"),
        ("dsseEnvelope", None),
        ("dsseEnvelope/payloadType", "application/vnd.in-toto+xml"),
        ("dsseEnvelope/payloadType", "text/plain"),
        ("dsseEnvelope/payload", GOOD_PAYLOAD + "\n"),
        ("dsseEnvelope/payload", GOOD_PAYLOAD.rstrip("=")),
        ("dsseEnvelope/payload", GOOD_PAYLOAD + "===="),
        ("dsseEnvelope/payload", ""),
        ("dsseEnvelope/payload", 7),
        ("dsseEnvelope/signatures", []),
        ("dsseEnvelope/signatures", [GOOD_SIG, GOOD_SIG]),
        ("dsseEnvelope/signatures", GOOD_SIG),
        ("dsseEnvelope/signatures/0/sig", GOOD_SIG["sig"][:-3] + "h=="),
        ("dsseEnvelope/signatures/0/sig", base64.b64encode(bytes(64)).decode()),
        ("dsseEnvelope/signatures/0/sig", ""),
        ("dsseEnvelope/signatures/0", None),
        ("verificationMaterial", {}),
        ("verificationMaterial/publicKey/hint", "lab"),
        ("verificationMaterial/publicKey/hint", base64.b64encode(bytes(31)).decode()),
    ],
)
def test_what_differs_from_the_format_is_no_signature(path: str, value: Any) -> None:
    spoilt = rewritten(SIGNED, spoil(path, value))
    with pytest.raises(SignatureInvalid):
        check([spoilt], SUBJECT, "digits", PUBLIC)


def test_a_hint_that_names_another_key_makes_no_signature() -> None:
    unknown = rewritten(
        SIGNED, spoil("verificationMaterial/publicKey/hint", base64.b64encode(bytes(32)).decode())
    )
    with pytest.raises(CheckFailed, match="by a trusted key"):
        check([unknown], SUBJECT, "digits", PUBLIC)
    stolen = rewritten(SIGNED, spoil("verificationMaterial/publicKey/hint", B.public.hint))
    with pytest.raises(SignatureInvalid, match="is not by it"):
        check([stolen], SUBJECT, "digits", PUBLIC)


START, END = BUNDLE.index(b'"dsseEnvelope"'), len(BUNDLE)


@given(st.integers(START, END - 1), st.integers(1, 255))
def test_no_changed_byte_of_the_envelope_is_accepted(place: int, bits: int) -> None:
    changed = bytearray(BUNDLE)
    changed[place] ^= bits
    with pytest.raises((IntegrityError, CheckFailed)):
        check([wrapped(bytes(changed))], SUBJECT, "digits", PUBLIC)


PAYLOAD = base64.b64decode(GOOD_PAYLOAD)


@given(st.integers(0, len(PAYLOAD) - 1), st.integers(1, 255))
def test_no_changed_byte_of_the_payload_is_accepted(place: int, bits: int) -> None:
    payload = bytearray(PAYLOAD)
    payload[place] ^= bits
    forged = rewritten(SIGNED, spoil("dsseEnvelope/payload", base64.b64encode(payload).decode()))
    with pytest.raises(SignatureInvalid, match="is not by it"):
        check([forged], SUBJECT, "digits", PUBLIC)


@given(st.integers(0, 63), st.integers(1, 255))
def test_no_changed_byte_of_the_signature_is_accepted(place: int, bits: int) -> None:
    signature = bytearray(base64.b64decode(GOOD_SIG["sig"]))
    signature[place] ^= bits
    forged = rewritten(SIGNED, spoil("dsseEnvelope/signatures/0/sig", base64.b64encode(signature).decode()))
    with pytest.raises(SignatureInvalid, match="is not by it"):
        check([forged], SUBJECT, "digits", PUBLIC)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_words(data: bytes) -> None:
    with contextlib.suppress(SignatureInvalid):
        parse_bundle(data, where="x")
    with contextlib.suppress(BundleCorrupt):
        parse_statement(data, where="x")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
PATHS = ["mediaType", "verificationMaterial", "verificationMaterial/publicKey", "verificationMaterial/publicKey/hint",
         "dsseEnvelope", "dsseEnvelope/payload", "dsseEnvelope/payloadType", "dsseEnvelope/signatures",
         "dsseEnvelope/signatures/0", "dsseEnvelope/signatures/0/sig"]  # fmt: skip


@given(st.sampled_from(PATHS), json_values)
def test_any_value_at_any_place_is_handled(path: str, value: Any) -> None:
    document = json.loads(BUNDLE)
    spoil(path, value)(document)
    with contextlib.suppress(SignatureInvalid):
        parse_bundle(json.dumps(document).encode("utf-8", "surrogatepass"), where="x")


@pytest.mark.parametrize("digest", ["sha256:" + "A" * 64, "a" * 64, "", "sha512:" + "a" * 128])
def test_statements_are_about_sha256_digests(digest: str) -> None:
    with pytest.raises(BundleCorrupt):
        make_statement("digits", digest)


def test_an_attestation_carries_its_predicate() -> None:
    referrer = attest(SUBJECT, "digits", "https://example.org/p", {"a": [1]}, A)
    payload = base64.b64decode(json.loads(blob_of(referrer))["dsseEnvelope"]["payload"])
    assert json.loads(payload)["predicate"] == {"a": [1]}
    assert (
        parse_referrer(referrer.manifest).annotations["dev.sigstore.bundle.predicateType"]
        == "https://example.org/p"
    )
    said = parse_statement(payload, where="x")
    assert (said.predicate_type, said.is_about(SUBJECT.digest)) == ("https://example.org/p", True)
    assert not said.is_about("sha256:" + "0" * 64)


@pytest.mark.parametrize(
    "changes",
    [
        {"_type": "https://in-toto.io/Link/v1"},
        {"_type": None},
        {"subject": None},
        {"subject": [{"name": "x"}]},
        {"subject": [{"digest": {"sha256": SUBJECT.digest}}]},
        {"subject": [{"digest": {"sha256": "A" * 64}}]},
        {"subject": [{"digest": {}}] * 1025},
        {"predicateType": 1},
    ],
)
def test_what_is_no_statement_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BundleCorrupt):
        parse_statement(json.dumps(json.loads(PAYLOAD) | changes).encode(), where="x")
    older = json.dumps(json.loads(PAYLOAD) | {"_type": "https://in-toto.io/Statement/v0.1"})
    assert parse_statement(older.encode(), where="x").is_about(SUBJECT.digest)
