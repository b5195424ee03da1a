"""Keys, subjects and referrers that the tests of signing share; keys are made once, by the library itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from mlbundle.bundle.digests import digest_of
from mlbundle.bundle.oci import MANIFEST_TYPE
from mlbundle.signing.keys import PrivateKey, PublicKey, load_public
from mlbundle.signing.referrers import Referrer, Subject, parse_referrer
from mlbundle.signing.sigstore import BUNDLE_TYPE, bundle_referrer
from mlbundle.signing.statement import SIGN_PREDICATE

MANIFEST = b'{"schemaVersion":2}'
SUBJECT = Subject(MANIFEST_TYPE, digest_of(MANIFEST), len(MANIFEST))
OTHER = Subject(MANIFEST_TYPE, digest_of(b"another"), 7)


def key_of(number: int) -> PrivateKey:
    """The same key for the same number."""
    raw = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    return PrivateKey(raw, load_public(public_pem(raw)))


def public_pem(key: Any) -> bytes:
    pem: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


def private_pem(key: Any) -> bytes:
    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem


def p256() -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(4242, ec.SECP256R1())


def blob_of(referrer: Referrer, index: int = 0) -> bytes:
    return referrer.blobs[parse_referrer(referrer.manifest).layers[index].hex]


def rewritten(referrer: Referrer, change: Callable[[dict[str, Any]], None]) -> Referrer:
    """The same referrer around a changed Sigstore bundle: what somebody who can write to a registry can make."""
    document = json.loads(blob_of(referrer))
    change(document)
    return wrapped(json.dumps(document).encode())


def wrapped(bundle: bytes, subject: Subject = SUBJECT) -> Referrer:
    referrer = bundle_referrer(bundle, SIGN_PREDICATE, subject)
    assert parse_referrer(referrer.manifest).artifact_type == BUNDLE_TYPE
    return referrer


A, B, C = key_of(1), key_of(2), key_of(3)
PUBLIC: tuple[PublicKey, ...] = (A.public, B.public)
