"""Sigstore bundles v0.3 with a DSSE envelope around an in-toto statement, signed by a key.

Formats: sigstore protobuf-specs (bundle v0.3), DSSE v1.0.2 (envelope, PAE), cosign's BUNDLE_SPEC (the referrer).
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.bundle.attachments import PREDICATE_TYPE
from mlbundle.bundle.oci import go_json
from mlbundle.bundle.strictjson import Fields, loads
from mlbundle.errors import BundleCorrupt, SignatureInvalid
from mlbundle.signing import statement as intoto
from mlbundle.signing.referrers import Layer, Referrer, Subject, make_referrer
from mlbundle.signing.source_date import source_date_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from mlbundle.signing.keys import PrivateKey, PublicKey

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
CONTENT = "dev.sigstore.bundle.content"
CONTENT_DSSE = "dsse-envelope"
CREATED = "org.opencontainers.image.created"

MAX_BUNDLE_BYTES = 32 << 20
_HINT_BYTES = 32


@dataclass(frozen=True, slots=True)
class Envelope:
    """A DSSE envelope as its bundle holds it; nothing is verified yet. `hint` is None when no key is named."""

    payload: bytes
    signature: bytes
    hint: bytes | None


@dataclass(frozen=True, slots=True)
class Foreign:
    """A Sigstore bundle that is not by a key over a statement; `what` says what it is."""

    what: str


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return what a DSSE signature is over (pre-authentication encoding, DSSE protocol v1)."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign_statement(statement: bytes, key: PrivateKey) -> bytes:
    """Return the Sigstore bundle of a statement, signed."""
    signature = key.sign(pae(intoto.MEDIA_TYPE, statement))
    return go_json({
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": key.public.hint}},
        "dsseEnvelope": {
            "payload": _encode(statement),
            "payloadType": intoto.MEDIA_TYPE,
            "signatures": [{"sig": _encode(signature)}],
        },
    })  # fmt: skip


def sign(subject: Subject, name: str, key: PrivateKey) -> Referrer:
    """Return the signature of a manifest as its referrer; `name` is what the statement calls the manifest."""
    return attest(subject, name, intoto.SIGN_PREDICATE, {}, key)


def attest(
    subject: Subject, name: str, predicate_type: str, predicate: Mapping[str, Any], key: PrivateKey
) -> Referrer:
    """Return a signed attestation about a manifest as its referrer.

    Raises UsageError when SOURCE_DATE_EPOCH is set and is no time.
    """
    statement = intoto.make_statement(name, subject.digest, predicate_type, predicate)
    return bundle_referrer(sign_statement(statement, key), predicate_type, subject)


def bundle_referrer(bundle: bytes, predicate_type: str, subject: Subject) -> Referrer:
    """Return the referrer that carries a Sigstore bundle, as cosign lays it out."""
    annotations = {CONTENT: CONTENT_DSSE, PREDICATE_TYPE: predicate_type}
    created = source_date_text()
    if created is not None:
        annotations[CREATED] = created
    return make_referrer(BUNDLE_TYPE, [Layer(BUNDLE_TYPE, bundle)], subject, annotations)


def parse_bundle(data: bytes, *, where: str) -> Envelope | Foreign:
    """Return the envelope of a Sigstore bundle; unknown keys (of logs, time stamps) are passed over.

    Raises SignatureInvalid for what is no bundle v0.3, or has not one signature over one in-toto statement.
    """
    try:
        fields = Fields(loads(data, where=where, max_bytes=MAX_BUNDLE_BYTES), f"{where}#")
        fields.constant("mediaType", BUNDLE_TYPE)
        material = fields.object("verificationMaterial")
        if material.has("certificate") or material.has("x509CertificateChain"):
            return Foreign("a certificate (cosign can verify that)")
        if fields.has("messageSignature"):
            return Foreign("a key, but over a message instead of a statement")
        hint = _hint(material.object("publicKey"))
        envelope = fields.object("dsseEnvelope")
        envelope.constant("payloadType", intoto.MEDIA_TYPE)
        signatures = list(envelope.objects("signatures", maximum=1))
        if not signatures:
            raise SignatureInvalid("an envelope has exactly one signature", where=where)
        return Envelope(_decode(envelope, "payload"), _decode(signatures[0], "sig"), hint)
    except BundleCorrupt as error:
        raise SignatureInvalid(error.message, where=error.where, hint=error.hint) from None


def candidates(envelope: Envelope, keys: Sequence[PublicKey]) -> tuple[PublicKey, ...]:
    """Return the keys that may have signed: the one that is named, or all when none is."""
    if envelope.hint is None:
        return tuple(keys)
    named = _encode(envelope.hint)
    return tuple(key for key in keys if key.hint == named)


def holds(envelope: Envelope, key: PublicKey) -> bool:
    """Return whether the envelope's signature is by this key over its payload."""
    return key.holds(envelope.signature, pae(intoto.MEDIA_TYPE, envelope.payload))


def read_statement(payload: bytes, *, where: str) -> intoto.Statement:
    """Return what a signed statement says; raises SignatureInvalid when it is none."""
    try:
        return intoto.parse_statement(payload, where=where)
    except BundleCorrupt as error:
        raise SignatureInvalid(error.message, where=error.where, hint=error.hint) from None


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(fields: Fields, key: str) -> bytes:
    """Return the bytes of standard base64 in its only canonical spelling."""
    text = fields.text(key)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if _encode(data) != text or not data:
        raise SignatureInvalid("not base64", where=f"{fields.where}/{key}")
    return data


def _hint(fields: Fields) -> bytes | None:
    if not fields.has("hint") or not fields.text("hint"):
        return None
    hint = _decode(fields, "hint")
    if len(hint) != _HINT_BYTES:
        raise SignatureInvalid("the hint is no sha256 of a key", where=f"{fields.where}/hint")
    return hint
