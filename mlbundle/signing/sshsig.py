"""What is inside an SSH signature and an SSH public key, without verifying anything (OpenSSH PROTOCOL.sshsig)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.bundle.digests import PREFIX, sha256_hex
from mlbundle.errors import SignatureInvalid, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.ssh import SSHPublicKeyTypes

NAMESPACE = "mlbundle"
"""Keeps a signature over a bundle from counting as one over a git commit or a file, and the other way round."""

KEY_TYPES = frozenset({
    "ssh-ed25519",
    "sk-ssh-ed25519@openssh.com",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
})  # fmt: skip
MAX_SIGNATURE_BYTES = 64 << 10

_BEGIN, _END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_MAGIC = b"SSHSIG"
_HASHES = frozenset({b"sha256", b"sha512"})
_MAX_LINE = 76
# Patterns, lists and options have a meaning in the file of allowed signers: an identity is a plain word.
_IDENTITY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+/:-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SshKey:
    """A public SSH key; `blob` is what stands in base64 in a `.pub` file."""

    key_type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """The key as `ssh-keygen -l` names it."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode("ascii")
        return f"SHA256:{digest.rstrip('=')}"

    @property
    def id(self) -> str:
        """The name that the same key has in PEM, so that nobody counts twice; the fingerprint where it has none."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization

        form = serialization.PublicFormat.SubjectPublicKeyInfo
        try:
            der = self._load().public_bytes(serialization.Encoding.DER, form)
        except (ValueError, UnsupportedAlgorithm):
            return self.fingerprint
        return PREFIX + sha256_hex(der)

    @property
    def is_whole(self) -> bool:
        """Whether the key can be read; a key of a token, which not every library reads, is taken as it is."""
        from cryptography.exceptions import UnsupportedAlgorithm

        try:
            self._load()
        except UnsupportedAlgorithm:
            return True
        except ValueError:
            return self.key_type.startswith("sk-")
        return True

    def _load(self) -> SSHPublicKeyTypes:
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key

        return load_ssh_public_key(self.text.encode("ascii"))

    @property
    def text(self) -> str:
        """The key as a `.pub` file has it, without a comment."""
        return f"{self.key_type} {base64.b64encode(self.blob).decode('ascii')}"


@dataclass(frozen=True, slots=True)
class SshSigner:
    """Somebody who may sign: a name and a key."""

    identity: str
    key: SshKey


def parse_signer(text: str, *, where: str) -> SshSigner:
    """Return the signer of a line `identity key-type base64 [comment]`.

    Raises UsageError when the identity is no plain word or the key is none of the known types.
    """
    parts = text.split()
    if len(parts) < 3:
        raise UsageError("not a signer", where=where, hint="write: identity ssh-ed25519 AAAA…")
    identity, key_type, encoded = parts[:3]
    if not _IDENTITY.fullmatch(identity):
        raise UsageError(
            f"{ascii(identity)[:60]} is no identity",
            where=where,
            hint="a plain word such as an e-mail address; no lists, patterns or options",
        )
    if key_type not in KEY_TYPES:
        raise UsageError(f"{ascii(key_type)[:60]} is no type of key that can be used", where=where)
    try:
        blob = _strict_base64(encoded)
        stated, _ = _string(blob, 0)
    except ValueError:
        raise UsageError("the key is damaged", where=where) from None
    if stated != key_type.encode():
        raise UsageError("the key is of another type than its line says", where=where)
    key = SshKey(key_type, blob)
    if not key.is_whole:
        raise UsageError("the key is damaged", where=where)
    return SshSigner(identity, key)


def claimed_key(armoured: bytes, *, where: str) -> SshKey:
    """Return the key that an armoured signature says it is by: a claim, to choose by.

    Raises SignatureInvalid for other armour than ssh-keygen writes, another namespace, unknown versions and hashes.
    """
    try:
        if len(armoured) > MAX_SIGNATURE_BYTES:
            raise ValueError("too large")
        return _claim(_unarmour(armoured.decode("ascii")))
    except ValueError as error:
        raise SignatureInvalid(f"not an SSH signature: {error}"[:200], where=where) from None


def _unarmour(text: str) -> bytes:
    lines = text.removesuffix("\n").split("\n")
    if len(lines) < 3 or lines[0] != _BEGIN or lines[-1] != _END:
        raise ValueError("no armour")
    if any(not 0 < len(line) <= _MAX_LINE for line in lines[1:-1]):
        raise ValueError("lines of the wrong length")
    return _strict_base64("".join(lines[1:-1]))


def _claim(blob: bytes) -> SshKey:
    if not blob.startswith(_MAGIC) or blob[6:10] != b"\0\0\0\1":
        raise ValueError("another version")
    key, place = _string(blob, 10)
    namespace, place = _string(blob, place)
    reserved, place = _string(blob, place)
    algorithm, place = _string(blob, place)
    _, place = _string(blob, place)
    if place != len(blob):
        raise ValueError("bytes after the end")
    if namespace != NAMESPACE.encode():
        raise ValueError(f"it is for {ascii(namespace)[1:40]}, not for {NAMESPACE!r}")
    if reserved or algorithm not in _HASHES:
        raise ValueError("an unknown hash")
    key_type = _string(key, 0)[0].decode("ascii")
    if key_type not in KEY_TYPES:
        raise ValueError("an unknown type of key")
    return SshKey(key_type, key)


def _string(data: bytes, place: int) -> tuple[bytes, int]:
    """Return a string of the SSH wire format (RFC 4251, section 5) and where it ends."""
    start = place + 4
    end = start + int.from_bytes(data[place:start], "big")
    if start > len(data) or end > len(data):
        raise ValueError("it ends too early")
    return data[start:end], end


def _strict_base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if base64.b64encode(data).decode("ascii") != text:
        raise ValueError("no canonical base64")
    return data
