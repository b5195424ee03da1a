"""Signatures by SSH keys, made and verified by the `ssh-keygen` program (OpenSSH 8.2 or later).

The message is the in-toto statement of a Sigstore signature; statement and armoured signature are the two layers of
the referrer, so `ssh-keygen -Y verify` alone can verify them.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from mlbundle.errors import EnvironmentLacks, ReferenceNotFound, SignatureInvalid, ToolMissing, UsageError
from mlbundle.files import storage_failed
from mlbundle.signing import statement as intoto
from mlbundle.signing.referrers import Layer, Referrer, Subject, make_referrer
from mlbundle.signing.source_date import source_date_text
from mlbundle.signing.sshsig import MAX_SIGNATURE_BYTES, NAMESPACE, SshSigner, claimed_key

if TYPE_CHECKING:
    from collections.abc import Sequence

SSH_TYPE = "application/vnd.mlbundle.signature.ssh.v1"
"""Type of the referrer and of the layer with the armoured signature."""

_CREATED = "org.opencontainers.image.created"
_SIGN_TIMEOUT_S = 120.0
"""Long enough for somebody who has to type a passphrase or touch a token."""

_VERIFY_TIMEOUT_S = 30.0


def sign(subject: Subject, name: str, key: Path) -> Referrer:
    """Return the signature of a manifest by an SSH key as its referrer.

    `key` is a private key, or a public one whose private half the agent holds; ssh-keygen asks for a passphrase
    itself. Raises ReferenceNotFound, UsageError (ssh-keygen refuses the key), ToolMissing, EnvironmentLacks.
    """
    if not key.is_file():
        raise ReferenceNotFound(
            "there is no such key", where=str(key), hint="make one with ssh-keygen -t ed25519"
        )
    statement = intoto.make_statement(name, subject.digest)
    command = ["-Y", "sign", "-n", NAMESPACE, "-f", str(key.absolute())]
    done = _ssh_keygen(command, statement, _SIGN_TIMEOUT_S)
    if done.returncode != 0:
        raise UsageError(
            "ssh-keygen can't sign with this key",
            where=str(key),
            context=_last_lines(done.stderr),
            hint="is it a private SSH key that only you can read?",
        )
    claimed_key(done.stdout, where=str(key))
    return ssh_referrer(statement, done.stdout, subject)


def ssh_referrer(statement: bytes, armoured: bytes, subject: Subject) -> Referrer:
    """Return the referrer that carries a statement and its armoured SSH signature."""
    created = source_date_text()
    layers = [Layer(intoto.MEDIA_TYPE, statement), Layer(SSH_TYPE, armoured)]
    return make_referrer(SSH_TYPE, layers, subject, {} if created is None else {_CREATED: created})


def holds(statement: bytes, armoured: bytes, signer: SshSigner) -> bool:
    """Return whether the signature is by this signer over the statement.

    Raises SignatureInvalid for what can't be a signature, ToolMissing, EnvironmentLacks.
    """
    claimed_key(armoured, where="SSH signature")
    try:
        with tempfile.TemporaryDirectory(prefix="mlbundle-") as folder:
            return _holds(statement, armoured, signer, Path(folder))
    except OSError as error:
        raise storage_failed(error, Path(tempfile.gettempdir())) from error


def _holds(statement: bytes, armoured: bytes, signer: SshSigner, folder: Path) -> bool:
    allowed, signature = folder / "allowed_signers", folder / "signature"
    allowed.write_text(f"{signer.identity} {signer.key.text}\n", "utf-8")
    signature.write_bytes(armoured)
    command = [
        "-Y", "verify", "-n", NAMESPACE, "-f", str(allowed), "-I", signer.identity, "-s", str(signature),
    ]  # fmt: skip
    return _ssh_keygen(command, statement, _VERIFY_TIMEOUT_S).returncode == 0


def _ssh_keygen(
    arguments: Sequence[str], message: bytes, timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise ToolMissing(
            "ssh-keygen is not installed", hint="install the client of OpenSSH (apt install openssh-client)"
        )
    try:
        done = subprocess.run(
            [program, *arguments], input=message, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentLacks(
            f"ssh-keygen did not answer within {timeout_s:.0f} s",
            hint="does a token or an agent wait for you?",
        ) from None
    except OSError as error:
        raise ToolMissing(f"ssh-keygen can't be started: {error.strerror or error}", where=program) from error
    if len(done.stdout) > MAX_SIGNATURE_BYTES:
        raise SignatureInvalid("ssh-keygen wrote too much", where=program)
    if b"unknown option" in done.stderr or b"illegal option" in done.stderr:
        raise ToolMissing(
            "this ssh-keygen is too old to sign", where=program, hint="OpenSSH 8.2 or later can"
        )
    return done


def _last_lines(text: bytes) -> list[str]:
    lines = text.decode("utf-8", "backslashreplace").splitlines()
    return ["".join(c if c.isprintable() else "?" for c in line) for line in lines[-5:]]
