"""Key files: made, protected, refused with words."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from signing_samples import A, p256, private_pem, public_pem

from mlbundle.errors import MlbundleError, ReferenceNotFound, StorageFailed, UsageError
from mlbundle.signing.keys import generate, key_id, load_private, load_public, public_path


def never() -> str:
    raise AssertionError("nobody may be asked")


def write(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_key_signs_and_its_public_half_verifies(tmp_path: Path) -> None:
    path = tmp_path / "lab.key"
    public = generate(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["lab.key", "lab.key.pub"]
    private = load_private(path, never)
    assert load_public(public_path(path)) == load_public(public.pem) == public == private.public
    signature = private.sign(b"message")
    assert public.holds(signature, b"message")
    assert not public.holds(signature, b"massage")
    assert not public.holds(signature[:-1], b"message")
    assert not A.public.holds(signature, b"message")
    assert public.id not in {A.public.id, generate(tmp_path / "second").id}


def test_names_of_keys_are_those_of_the_der_form() -> None:
    der = base64.b64decode(b"".join(A.public.pem.splitlines()[1:-1]))
    assert key_id(A.public) == "sha256:" + hashlib.sha256(der).hexdigest()
    assert base64.b64decode(A.public.hint) == hashlib.sha256(der).digest()


def test_a_secret_is_never_printed() -> None:
    assert repr(A) == f"PrivateKey({A.public.id})"


def test_one_key_has_one_name_however_it_is_written() -> None:
    key = p256().public_key()
    plain = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    point = key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    head = bytes.fromhex("3039301306072a8648ce3d020106082a8648ce3d030107032200")
    body = base64.encodebytes(head + point)
    compressed = b"-----BEGIN PUBLIC KEY-----\n" + body + b"-----END PUBLIC KEY-----\n"
    assert compressed != plain
    assert load_public(compressed) == load_public(plain)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    taken = write(tmp_path / "k", b"precious")
    with pytest.raises(UsageError, match="never overwritten"):
        generate(taken)
    half = write(tmp_path / "h.pub", b"precious")
    with pytest.raises(UsageError, match="never overwritten"):
        generate(tmp_path / "h")
    (tmp_path / "l").symlink_to("nowhere")
    with pytest.raises(UsageError, match="never overwritten"):
        generate(tmp_path / "l")
    assert taken.read_bytes() == half.read_bytes() == b"precious"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["h.pub", "k", "l"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no does not exist"):
        generate(tmp_path / "no" / "k")


def test_a_passphrase_is_asked_for_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "k"
    public = generate(path, "correct horse")
    assert b"ENCRYPTED" in path.read_bytes()
    assert load_private(path, lambda: "correct horse").public == public
    with pytest.raises(UsageError, match="passphrase is wrong"):
        load_private(path, lambda: "wrong")
    with pytest.raises(UsageError, match="passphrase is empty"):
        load_private(path, lambda: "")
    with pytest.raises(UsageError, match="has a passphrase"):
        load_private(path)
    with pytest.raises(UsageError, match="passphrase is empty"):
        generate(tmp_path / "other", "")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o620])
def test_a_private_key_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "k"
    generate(path)
    path.chmod(mode)
    with pytest.raises(UsageError, match="others may read") as refused:
        load_private(path)
    assert f"chmod 600 {path}" in (refused.value.hint or "")


OPENSSH = ed25519.Ed25519PrivateKey.generate().private_bytes(
    Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "damaged"),
        (private_pem(p256()), "Ed25519"),
        (OPENSSH, "SSH key"),
        (b"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "cosign"),
        (A.public.pem, "public half"),
        (b"x" * (65 << 10), "too large"),
    ],
)
def test_private_keys_that_can_not_sign_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        load_private(write(tmp_path / "k", content), never)
    assert refused.value.where == str(tmp_path / "k")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a public key"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "not a public key"),
        (public_pem(ec.generate_private_key(ec.SECP384R1())), "kind"),
        (public_pem(rsa.generate_private_key(65537, 1024)), "kind"),
        (private_pem(p256()), "private key"),
    ],
)
def test_public_keys_that_can_not_verify_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_public(write(tmp_path / "k.pub", content))
    with pytest.raises(UsageError, match=message):
        load_public(content)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ReferenceNotFound):
        load_public(tmp_path / "nothing")
    with pytest.raises(UsageError, match="regular"):
        load_public(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="regular"):
        load_private(tmp_path / "fifo")
    with pytest.raises(StorageFailed):
        load_public(Path("a\0b"))


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_refused_with_words(data: bytes, armoured: bool) -> None:
    if armoured:
        body = base64.encodebytes(data)
        data = b"-----BEGIN PUBLIC KEY-----\n" + body + b"-----END PUBLIC KEY-----\n"
    with contextlib.suppress(MlbundleError):
        load_public(data)
