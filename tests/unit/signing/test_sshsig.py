"""SSH signatures and keys as bytes: what is read of them before ssh-keygen sees them."""

from __future__ import annotations

import base64
import contextlib

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from signing_samples import A

from mlbundle.errors import MlbundleError, SignatureInvalid, UsageError
from mlbundle.signing.sshsig import claimed_key, parse_signer


def string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


PUBLIC = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32).public_key()
LINE = PUBLIC.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
KEY = base64.b64decode(LINE.split()[1])


def armour(blob: bytes, width: int = 70) -> bytes:
    text = base64.b64encode(blob).decode()
    lines = [text[start : start + width] for start in range(0, len(text), width)]
    return "\n".join(["-----BEGIN SSH SIGNATURE-----", *lines, "-----END SSH SIGNATURE-----", ""]).encode()


def blob(
    *, magic: bytes = b"SSHSIG", version: int = 1, key: bytes = KEY, namespace: bytes = b"mlbundle",
    reserved: bytes = b"", algorithm: bytes = b"sha512", rest: bytes = b"",
) -> bytes:  # fmt: skip
    signature = string(b"ssh-ed25519") + string(bytes(64))
    parts = (key, namespace, reserved, algorithm, signature)
    return magic + version.to_bytes(4, "big") + b"".join(string(part) for part in parts) + rest


GOOD = armour(blob())


def test_the_key_that_is_claimed_is_read() -> None:
    key = claimed_key(GOOD, where="x")
    assert key.text == LINE
    assert key == parse_signer(f"ada@example.org {LINE} a comment", where="x").key
    # The same key in PEM has the same name: nobody counts twice.
    assert key.id == A.public.id
    assert claimed_key(armour(blob(), 76).removesuffix(b"\n"), where="x") == key


@pytest.mark.parametrize(
    "data",
    [
        armour(blob(magic=b"SSHSIH")),
        armour(blob(version=2)),
        armour(blob(namespace=b"git")),
        armour(blob(namespace=b"mlbundle\0")),
        armour(blob(reserved=b"x")),
        armour(blob(algorithm=b"md5")),
        armour(blob(rest=b"x")),
        armour(blob()[:-1]),
        armour(blob(key=string(b"ssh-dss"))),
        armour(blob(key=string(b"\xff"))),
        armour(b""),
        armour(blob(), 80),
        GOOD.replace(b"\n", b"\r\n"),
        GOOD + b"\n",
        b" " + GOOD,
        GOOD.replace(b"BEGIN", b"BEGIM"),
        GOOD + GOOD,
        b"\xff",
        armour(bytes(65 << 10)),
    ],
)
def test_what_is_no_signature_for_bundles_is_refused(data: bytes) -> None:
    with pytest.raises(SignatureInvalid, match="not an SSH signature") as refused:
        claimed_key(data, where="here")
    assert refused.value.where == "here"


def test_base64_has_one_spelling() -> None:
    other = bytearray(GOOD)
    other[GOOD.index(b"=") - 1] += 1
    with pytest.raises(SignatureInvalid, match="canonical"):
        claimed_key(bytes(other), where="x")
    text = base64.b64encode(KEY + b"x").decode()
    assert text.endswith("=")
    spelt = text.rstrip("=")
    twisted = spelt[:-1] + chr(ord(spelt[-1]) + 1) + "=" * (len(text) - len(spelt))
    with pytest.raises(UsageError, match="damaged"):
        parse_signer(f"ada ssh-ed25519 {twisted}", where="x")


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_refused_with_words(data: bytes, armoured: bool) -> None:
    with contextlib.suppress(SignatureInvalid):
        claimed_key(armour(data) if armoured else data, where="x")


@given(st.integers(min_value=0), st.binary(min_size=1, max_size=6))
def test_any_damage_to_a_signature_is_handled(place: int, junk: bytes) -> None:
    data = bytearray(blob())
    start = place % len(data)
    data[start : start + len(junk)] = junk
    with contextlib.suppress(SignatureInvalid):
        claimed_key(armour(bytes(data)), where="x")


KEY_TEXT = LINE.split()[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a signer"),
        (LINE, "not a signer"),
        (f"* {LINE}", "no identity"),
        (f"a,b {LINE}", "no identity"),
        (f"!ada {LINE}", "no identity"),
        (f"-oops {LINE}", "no identity"),
        (f'"ada {LINE}', "no identity"),
        (f"ada\u00e9 {LINE}", "no identity"),
        (f"{'a' * 129} {LINE}", "no identity"),
        (f"ada cert-authority {LINE}", "no type of key"),
        (f'ada namespaces="git" {LINE}', "no type of key"),
        (f"ada ssh-dss {KEY_TEXT}", "no type of key"),
        (f"ada ssh-rsa {KEY_TEXT}", "another type"),
        (f"ada ssh-ed25519 {KEY_TEXT[:-4]}!!!!", "damaged"),
        ("ada ssh-ed25519 AAAA", "damaged"),
        (f"ada ssh-ed25519 {base64.b64encode(KEY + b'x').decode()}", "damaged"),
        (f"ada ssh-ed25519 {base64.b64encode(KEY[:-1]).decode()}", "damaged"),
        ("ada ssh-ed25519 é", "damaged"),
    ],
)
def test_signers_are_plain_words_with_a_key(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_signer(text, where="x")


@given(st.text(max_size=80))
def test_any_text_as_signer_is_handled(text: str) -> None:
    with contextlib.suppress(MlbundleError):
        parse_signer(f"ada ssh-ed25519 {text}", where="x")
    with contextlib.suppress(MlbundleError):
        parse_signer(text, where="x")
