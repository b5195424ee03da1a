"""Keys for signatures: Ed25519 for signing, Ed25519 and ECDSA P-256 with SHA-256 for verifying.

Private keys are PKCS#8 in PEM (RFC 5958), public keys SubjectPublicKeyInfo in PEM (RFC 5280): what openssl reads.
"""

from __future__ import annotations

import base64
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlbundle.bundle.digests import PREFIX, sha256_hex
from mlbundle.errors import ReferenceNotFound, StorageFailed, UsageError
from mlbundle.files import storage_failed, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable

Algorithm = Literal["ed25519", "ecdsa-p256"]

MAX_KEY_BYTES = 64 << 10
_MAKE_ONE = "make a key with `mlbundle keygen PATH`"
_ASK_FOR_IT = "name the public half, a file that ends in .pub: whoever signs has it"
_OTHERS_MAY_READ = 0o077


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key; `der` is its SubjectPublicKeyInfo in the one form that the library prints."""

    der: bytes
    algorithm: Algorithm

    @property
    def id(self) -> str:
        """`sha256:` and the hex digest of the DER form."""
        return PREFIX + sha256_hex(self.der)

    @property
    def hint(self) -> str:
        """How a Sigstore bundle names the key: base64 of the sha256 of the DER form."""
        return base64.b64encode(bytes.fromhex(sha256_hex(self.der))).decode("ascii")

    @property
    def pem(self) -> bytes:
        """The key as openssl and cosign read it."""
        text = base64.encodebytes(self.der).replace(b"\n", b"")
        lines = [text[start : start + 64] for start in range(0, len(text), 64)]
        return b"\n".join([b"-----BEGIN PUBLIC KEY-----", *lines, b"-----END PUBLIC KEY-----", b""])

    def holds(self, signature: bytes, message: bytes) -> bool:
        """Return whether `signature` is this key's over `message`."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_der_public_key

        key = load_der_public_key(self.der)
        try:
            if isinstance(key, ed25519.Ed25519PublicKey):
                key.verify(signature, message)
            else:
                assert isinstance(key, ec.EllipticCurvePublicKey)
                key.verify(signature, message, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """An Ed25519 key that signs; never shown or logged."""

    _key: Any
    public: PublicKey

    def sign(self, message: bytes) -> bytes:
        """Return the signature over `message`: 64 bytes (RFC 8032)."""
        signature: bytes = self._key.sign(message)
        return signature

    def __repr__(self) -> str:
        """Name the key without its secret."""
        return f"PrivateKey({self.public.id})"


def key_id(public: PublicKey) -> str:
    """Return how a key is named everywhere: `sha256:` and the hex digest of its DER form."""
    return public.id


def public_path(path: Path) -> Path:
    """Return where the public half of a private key lies."""
    return path.with_name(f"{path.name}.pub")


def generate(path: Path, passphrase: str | None = None) -> PublicKey:
    """Make an Ed25519 key: the private half at `path` (mode 0600), the public one beside it as `<path>.pub`.

    Raises UsageError when one of the two is there already (nothing is ever overwritten) or the passphrase is empty;
    StorageFailed when the disk refuses.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    if passphrase is not None and not passphrase:
        raise UsageError("the passphrase is empty", hint="leave it out for a key without one")
    if not path.parent.is_dir():
        raise UsageError(
            f"the folder {path.parent} does not exist", where=str(path), hint="make it, or name another place"
        )
    for taken in (path, public_path(path)):
        _refuse_taken(taken)
    key = ed25519.Ed25519PrivateKey.generate()
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        encryption = serialization.BestAvailableEncryption(passphrase.encode("utf-8"))
    content = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    public = _public(key.public_key(), str(path))
    _write_new(path, content, 0o600)
    try:
        _write_new(public_path(path), public.pem, 0o644)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return public


def load_private(path: Path, passphrase: Callable[[], str] | None = None) -> PrivateKey:
    """Read an Ed25519 key for signing; `passphrase` is asked only when the key is encrypted.

    Raises ReferenceNotFound, StorageFailed, or UsageError: others may read the file, no passphrase or a wrong one,
    damaged, of another format or algorithm.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content, mode = _read(path, _MAKE_ONE)
    if b"PUBLIC KEY-----" in content:
        raise UsageError(
            "this is the public half of a key, and signing needs the private one",
            where=str(path),
            hint="name the file without .pub",
        )
    _refuse_open(mode, path)
    _refuse_foreign_private(content, path)
    secret: bytes | None = None
    if b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in content:
        if passphrase is None:
            raise UsageError("the key has a passphrase", where=str(path), hint="give it when asked")
        secret = passphrase().encode("utf-8")
        if not secret:
            raise UsageError("the passphrase is empty", where=str(path))
    try:
        key = load_pem_private_key(content, password=secret)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        if secret:
            raise UsageError(
                "the passphrase is wrong, or the key is damaged", where=str(path), hint="try again"
            ) from None
        raise UsageError(
            "not a private key, or a damaged one",
            where=str(path),
            hint="it begins with -----BEGIN PRIVATE KEY-----; " + _MAKE_ONE,
        ) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UsageError("signing needs an Ed25519 key", where=str(path), hint=_MAKE_ONE)
    return PrivateKey(key, _public(key.public_key(), str(path)))


def load_public(source: Path | bytes, *, where: str | None = None) -> PublicKey:
    """Read a public key from a file, or from PEM itself.

    Raises ReferenceNotFound, StorageFailed, or UsageError: damaged, or neither Ed25519 nor ECDSA P-256.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    content = _read(source, _ASK_FOR_IT)[0] if isinstance(source, Path) else source
    place = where or (str(source) if isinstance(source, Path) else "public key")
    if b"PRIVATE KEY-----" in content:
        raise UsageError(
            "this is a private key", where=place, hint="name the public one: the file that ends in .pub"
        )
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(
            "not a public key", where=place, hint="it begins with -----BEGIN PUBLIC KEY-----"
        ) from None
    return _public(key, place)


def _public(key: Any, where: str) -> PublicKey:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    algorithm: Algorithm
    if isinstance(key, ed25519.Ed25519PublicKey):
        algorithm = "ed25519"
    elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        algorithm = "ecdsa-p256"
    else:
        raise UsageError(
            "a key of this kind can't be used", where=where, hint="only Ed25519 and ECDSA P-256 keys can"
        )
    return PublicKey(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo), algorithm)


def _read(path: Path, hint: str) -> tuple[bytes, int]:
    """Return what a file holds, and its mode; `hint` is for one that is not there."""
    if path == Path():
        raise UsageError("no key is named", hint=hint)
    try:
        # A fifo would wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UsageError("a key is a regular file", where=str(path), hint=hint)
            content = os.read(descriptor, MAX_KEY_BYTES + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise ReferenceNotFound("there is no such key", where=str(path), hint=hint) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageFailed(f"can't read the key: {reason}", where=str(path)) from error
    if len(content) > MAX_KEY_BYTES:
        raise UsageError("too large for a key", where=str(path))
    return content, status.st_mode


def _refuse_open(mode: int, path: Path) -> None:
    if mode & _OTHERS_MAY_READ:
        raise UsageError(
            f"others may read this private key (mode {stat.S_IMODE(mode):04o})",
            where=str(path),
            hint=f"chmod 600 {path}; make a new key if somebody could have read it",
        )


def _refuse_foreign_private(content: bytes, path: Path) -> None:
    if b"-----BEGIN OPENSSH PRIVATE KEY-----" in content:
        raise UsageError("this is an SSH key", where=str(path), hint="sign with --ssh-key instead")
    if b"SIGSTORE PRIVATE KEY-----" in content or b"COSIGN PRIVATE KEY-----" in content:
        raise UsageError(
            "this is a private key of cosign, in a format of its own",
            where=str(path),
            hint="sign with cosign (its public key can be trusted here), or " + _MAKE_ONE,
        )


def _refuse_taken(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise UsageError("a file is there already; keys are never overwritten", where=str(path))


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file whole or not at all; never over another: a link fails when the name is taken, a rename does not."""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fchmod(stream.fileno(), mode)
                os.fsync(stream.fileno())
            path.hardlink_to(temporary)
        except FileExistsError:
            _refuse_taken(path)
            raise
        finally:
            with suppress(OSError):
                Path(temporary).unlink()
        sync_folder(path.parent)
    except OSError as error:
        raise storage_failed(error, path) from error
