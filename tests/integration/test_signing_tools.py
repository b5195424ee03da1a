"""Signatures judged by others: openssl verifies ours and ours verify openssl's; the same with ssh-keygen."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import ROOT, lacking

from mlbundle.bundle.assemble import with_referrers, write_archive
from mlbundle.bundle.content import BundleContent, Role, SourceFile
from mlbundle.bundle.digests import digest_of
from mlbundle.bundle.oci import MANIFEST_TYPE
from mlbundle.bundle.pack import pack
from mlbundle.bundle.reader import open_bundle
from mlbundle.errors import (
    CheckFailed,
    EnvironmentLacks,
    IntegrityError,
    ReferenceNotFound,
    SignatureInvalid,
    SignatureMissing,
    ToolMissing,
    UsageError,
)
from mlbundle.signing import sigstore, ssh
from mlbundle.signing.keys import generate, load_private, load_public
from mlbundle.signing.policy import Policy, Rule, policy_of_keys
from mlbundle.signing.referrers import Referrer, Subject, load_referrer, parse_referrer
from mlbundle.signing.sshsig import SshSigner, parse_signer
from mlbundle.signing.statement import make_statement
from mlbundle.signing.trust import check

SUBJECT = Subject(MANIFEST_TYPE, digest_of(b"manifest"), 8)
OTHER = Subject(MANIFEST_TYPE, digest_of(b"another"), 7)


@pytest.fixture(scope="module")
def openssl() -> str:
    return shutil.which("openssl") or lacking("openssl is not installed")


@pytest.fixture(scope="module")
def ssh_keygen() -> str:
    return shutil.which("ssh-keygen") or lacking("ssh-keygen is not installed")


def run(*command: str | Path, **options: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([str(part) for part in command], capture_output=True, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


def blobs(referrer: Referrer) -> list[bytes]:
    return [referrer.blobs[layer.hex] for layer in parse_referrer(referrer.manifest).layers]


def encoding_that_is_signed(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding, spelt out here a second time."""
    kind = "application/vnd.in-toto+json"
    return f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload


def test_openssl_reads_both_halves_of_a_key(openssl: str, tmp_path: Path) -> None:
    path = tmp_path / "k"
    public = generate(path, "secret")
    done = run(openssl, "pkey", "-in", path, "-passin", "pass:secret", "-pubout")
    assert done.stdout == public.pem == (tmp_path / "k.pub").read_bytes()
    der = run(openssl, "pkey", "-pubin", "-in", tmp_path / "k.pub", "-outform", "DER").stdout
    assert public.id == "sha256:" + hashlib.sha256(der).hexdigest()


def test_openssl_makes_keys_that_sign(openssl: str, tmp_path: Path) -> None:
    path = tmp_path / "k"
    assert run(openssl, "genpkey", "-algorithm", "ed25519", "-out", path).returncode == 0
    path.chmod(0o600)
    assert load_private(path).public.pem == run(openssl, "pkey", "-in", path, "-pubout").stdout


def test_openssl_verifies_what_we_sign(openssl: str, tmp_path: Path) -> None:
    generate(tmp_path / "k")
    (bundle,) = blobs(sigstore.sign(SUBJECT, "digits", load_private(tmp_path / "k")))
    envelope = json.loads(bundle)["dsseEnvelope"]
    signature, message = tmp_path / "sig", tmp_path / "message"
    signature.write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    message.write_bytes(encoding_that_is_signed(base64.b64decode(envelope["payload"])))
    verify = [openssl, "pkeyutl", "-verify", "-pubin", "-inkey", tmp_path / "k.pub", "-rawin",
              "-in", message, "-sigfile", signature]  # fmt: skip
    assert run(*verify).returncode == 0
    message.write_bytes(message.read_bytes().replace(b"digits", b"digitz"))
    assert run(*verify).returncode != 0


@pytest.mark.parametrize("algorithm", ["ed25519", "p256"])
def test_what_openssl_signs_is_verified(openssl: str, tmp_path: Path, algorithm: str) -> None:
    key, public, message, signature = (tmp_path / name for name in ("k", "k.pub", "message", "sig"))
    kind = ["ED25519"] if algorithm == "ed25519" else ["EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    assert run(openssl, "genpkey", "-algorithm", *kind, "-out", key).returncode == 0
    assert run(openssl, "pkey", "-in", key, "-pubout", "-out", public).returncode == 0
    statement = make_statement("digits", SUBJECT.digest)
    message.write_bytes(encoding_that_is_signed(statement))
    if algorithm == "ed25519":
        done = run(openssl, "pkeyutl", "-sign", "-inkey", key, "-rawin", "-in", message, "-out", signature)
    else:
        done = run(openssl, "dgst", "-sha256", "-sign", key, "-out", signature, message)
    assert done.returncode == 0, done.stderr
    bundle = json.dumps({
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": load_public(public).hint}},
        "dsseEnvelope": {
            "payload": base64.b64encode(statement).decode(),
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [{"sig": base64.b64encode(signature.read_bytes()).decode()}],
        },
    }).encode()  # fmt: skip
    referrer = sigstore.bundle_referrer(bundle, "https://sigstore.dev/cosign/sign/v1", SUBJECT)
    trust = check([referrer], SUBJECT, "digits", [load_public(public)])
    assert [signer.key_id for signer in trust.signers] == [load_public(public).id]


def ssh_key(folder: Path, program: str, name: str, *options: str) -> Path:
    path = folder / name
    done = run(program, "-q", "-N", "", "-C", "a comment", "-f", path, *(options or ("-t", "ed25519")))
    assert done.returncode == 0, done.stderr
    return path


def signer_of(key: Path, identity: str = "ada@example.org") -> SshSigner:
    return parse_signer(f"{identity} {key.with_name(key.name + '.pub').read_text()}", where="x")


def trusting(*signers: SshSigner, threshold: int = 1) -> Policy:
    return Policy("p", (Rule("*", "signature", ssh=signers, threshold=threshold),))


@pytest.fixture(scope="module")
def signed(ssh_keygen: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Referrer]:
    key = ssh_key(tmp_path_factory.mktemp("ssh"), ssh_keygen, "id")
    return key, ssh.sign(SUBJECT, "digits", key)


def test_ssh_keygen_alone_verifies_what_we_sign(
    ssh_keygen: str, signed: tuple[Path, Referrer], tmp_path: Path
) -> None:
    key, referrer = signed
    statement, armoured = blobs(referrer)
    assert statement == make_statement("digits", SUBJECT.digest)
    allowed, signature = tmp_path / "allowed", tmp_path / "sig"
    allowed.write_text("ada@example.org " + key.with_name("id.pub").read_text())
    signature.write_bytes(armoured)
    verify = [
        ssh_keygen,
        "-Y",
        "verify",
        "-f",
        allowed,
        "-I",
        "ada@example.org",
        "-n",
        "mlbundle",
        "-s",
        signature,
    ]
    assert run(*verify, input=statement).returncode == 0
    assert run(*verify, input=statement + b" ").returncode != 0
    parsed = parse_referrer(referrer.manifest)
    kind = "application/vnd.mlbundle.signature.ssh.v1"
    assert (parsed.artifact_type, parsed.subject) == (kind, SUBJECT)
    assert [layer.media_type for layer in parsed.layers] == ["application/vnd.in-toto+json", kind]


@pytest.mark.parametrize(
    "options", [("-t", "ecdsa", "-b", "256"), ("-t", "ecdsa", "-b", "521"), ("-t", "rsa")]
)
def test_other_kinds_of_ssh_keys_sign_too(ssh_keygen: str, tmp_path: Path, options: tuple[str, ...]) -> None:
    key = ssh_key(tmp_path, ssh_keygen, "id", *options)
    trust = check([ssh.sign(SUBJECT, "digits", key)], SUBJECT, "digits", trusting(signer_of(key)))
    assert len(trust.signers) == 1


def test_a_signer_is_named_as_the_policy_and_ssh_keygen_name_it(
    ssh_keygen: str, signed: tuple[Path, Referrer]
) -> None:
    key, referrer = signed
    (signer,) = check([referrer], SUBJECT, "digits", trusting(signer_of(key))).signers
    printed = run(ssh_keygen, "-l", "-f", key).stdout.decode().split()
    assert (signer.kind, signer.identity, signer.key_id) == ("ssh", "ada@example.org", printed[1])


def test_another_ssh_key_is_not_trusted_but_named(
    ssh_keygen: str, signed: tuple[Path, Referrer], tmp_path: Path
) -> None:
    key, referrer = signed
    other = signer_of(ssh_key(tmp_path, ssh_keygen, "other"))
    with pytest.raises(SignatureMissing) as refused:
        check([referrer], SUBJECT, "digits", trusting(other))
    assert signer_of(key).key.fingerprint in str(refused.value.context)


def test_an_ssh_signature_of_something_else_is_an_integrity_error(signed: tuple[Path, Referrer]) -> None:
    key, referrer = signed
    statement, armoured = blobs(referrer)
    for forged in (
        ssh.ssh_referrer(make_statement("digits", OTHER.digest), armoured, SUBJECT),
        ssh.ssh_referrer(statement.replace(b"digits", b"digitz"), armoured, SUBJECT),
        ssh.sign(OTHER, "digits", key),
    ):
        with pytest.raises(SignatureInvalid):
            check([forged], SUBJECT, "digits", trusting(signer_of(key)))
    assert ssh.holds(statement, armoured, signer_of(key))


def test_a_signature_for_another_purpose_does_not_count(
    ssh_keygen: str, signed: tuple[Path, Referrer]
) -> None:
    key, referrer = signed
    statement, _ = blobs(referrer)
    armoured = run(ssh_keygen, "-Y", "sign", "-n", "git", "-f", key, input=statement).stdout
    assert armoured.startswith(b"-----BEGIN SSH SIGNATURE-----")
    with pytest.raises(SignatureInvalid, match="it is for 'git'"):
        check([ssh.ssh_referrer(statement, armoured, SUBJECT)], SUBJECT, "digits", trusting(signer_of(key)))


def test_one_key_used_in_two_ways_counts_once(ssh_keygen: str, openssl: str, tmp_path: Path) -> None:
    pem = tmp_path / "k"
    generate(pem)
    private = load_private(pem)
    ssh_form = tmp_path / "k.ssh"
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    ssh_form.touch(0o600)
    ssh_form.write_bytes(private._key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = run(ssh_keygen, "-y", "-f", ssh_form).stdout.decode()
    signer = parse_signer(f"ada {public}", where="x")
    both = [sigstore.sign(SUBJECT, "digits", private), ssh.sign(SUBJECT, "digits", ssh_form)]
    once = Policy("p", (Rule("*", "signature", (private.public,), (signer,), 1),))
    assert {found.kind for found in check(both, SUBJECT, "digits", once).signers} == {"sigstore", "ssh"}
    twice = Policy("p", (Rule("*", "signature", (private.public,), (signer,), 2),))
    with pytest.raises(SignatureMissing, match="1 of 2"):
        check(both, SUBJECT, "digits", twice)
    assert policy_of_keys([private.public], [signer]).rules[0].threshold == 1


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(place=st.integers(min_value=0), bits=st.integers(1, 255), in_statement=st.booleans())
def test_no_changed_byte_of_statement_or_signature_is_accepted(
    signed: tuple[Path, Referrer], place: int, bits: int, in_statement: bool
) -> None:
    key, referrer = signed
    parts = [bytearray(part) for part in blobs(referrer)]
    part = parts[0 if in_statement else 1]
    part[place % len(part)] ^= bits
    forged = ssh.ssh_referrer(bytes(parts[0]), bytes(parts[1]), SUBJECT)
    with pytest.raises((IntegrityError, CheckFailed)):
        check([forged], SUBJECT, "digits", trusting(signer_of(key)))


def test_keys_that_can_not_sign_are_refused_with_the_words_of_ssh_keygen(
    ssh_keygen: str, tmp_path: Path
) -> None:
    key = ssh_key(tmp_path, ssh_keygen, "id")
    key.chmod(0o644)
    with pytest.raises(UsageError, match="can't sign") as refused:
        ssh.sign(SUBJECT, "digits", key)
    assert refused.value.context
    junk = tmp_path / "junk"
    junk.touch(0o600)
    junk.write_text("no key")
    with pytest.raises(UsageError, match="can't sign"):
        ssh.sign(SUBJECT, "digits", junk)
    with pytest.raises(ReferenceNotFound):
        ssh.sign(SUBJECT, "digits", tmp_path / "none")


def test_a_key_whose_name_looks_like_an_option_is_a_file(
    ssh_keygen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh_key(tmp_path, ssh_keygen, "id").rename(tmp_path / "-Yfind")
    monkeypatch.chdir(tmp_path)
    assert parse_referrer(ssh.sign(SUBJECT, "digits", Path("-Yfind")).manifest).subject == SUBJECT


def test_nothing_is_left_in_the_folder_for_temporary_files(
    signed: tuple[Path, Referrer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, referrer = signed
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    check([referrer], SUBJECT, "digits", trusting(signer_of(key)))
    assert list(tmp_path.iterdir()) == []


def test_without_ssh_keygen_the_error_says_what_to_install(
    signed: tuple[Path, Referrer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, referrer = signed
    monkeypatch.setenv("PATH", str(tmp_path))
    for attempt in (
        lambda: ssh.sign(SUBJECT, "digits", key),
        lambda: check([referrer], SUBJECT, "digits", trusting(signer_of(key))),
    ):
        with pytest.raises(ToolMissing, match="ssh-keygen is not installed") as refused:
            attempt()
        assert "openssh-client" in (refused.value.hint or "")
    # Who trusts no SSH key needs no ssh-keygen.
    with pytest.raises(SignatureMissing):
        check([referrer], SUBJECT, "digits", trusting())


def test_an_ssh_keygen_that_does_not_answer_is_given_up(
    signed: tuple[Path, Referrer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, _ = signed
    fake = tmp_path / "ssh-keygen"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(ssh, "_SIGN_TIMEOUT_S", 0.2)
    with pytest.raises(EnvironmentLacks, match="did not answer"):
        ssh.sign(SUBJECT, "digits", key)


def signed_bundle(folder: Path, *keys: Path) -> Path:
    """Pack a small bundle and sign it with PEM and SSH keys, as files on disk."""
    files = (
        SourceFile("mlbundle/model.yml", Role.MODEL, b"name: tiny\n"),
        SourceFile("mlbundle/framework.yml", Role.FRAMEWORK, b"name: none\n"),
        SourceFile("model.onnx", Role.WEIGHT, b"weights"),
    )
    plain, whole = folder / "plain.mlb", folder / "digits-cnn-1.0.0.mlb"
    pack(BundleContent("digits-cnn", "1.0.0", "none", "1.0", files), plain)
    with open_bundle(plain) as reader:
        model = reader.structure.index.model
        subject = Subject(model.media_type, model.digest, model.size_bytes)
        made = [
            sigstore.sign(subject, "digits-cnn", load_private(key))
            if key.suffix == ".key"
            else ssh.sign(subject, "digits-cnn", key)
            for key in keys
        ]
        write_archive(with_referrers(reader, [(one.manifest, one.blobs) for one in made]), whole)
    return whole


def commands_of_the_guide(tool: str) -> str:
    """The block of commands in docs/signing.md that uses a tool on a file."""
    blocks = (ROOT / "docs" / "signing.md").read_text("utf-8").split("```sh\n")[1:]
    (found,) = [block.split("```")[0] for block in blocks if tool in block.split("```")[0]]
    return found


def test_signatures_travel_inside_the_file(ssh_keygen: str, tmp_path: Path) -> None:
    public = generate(tmp_path / "lab.key")
    key = ssh_key(tmp_path, ssh_keygen, "id")
    with open_bundle(signed_bundle(tmp_path, tmp_path / "lab.key", key)) as reader:
        index = reader.structure.index
        found = [load_referrer(reader.source, entry.descriptor.digest) for entry in index.referrers]
        subject = Subject(index.model.media_type, index.model.digest, index.model.size_bytes)
    policy = Policy("p", (Rule("digits-*", "signature", (public,), (signer_of(key),), 2),))
    assert len(check(found, subject, "digits-cnn", policy).signers) == 2


@pytest.mark.parametrize("kind", ["openssl", "ssh-keygen"])
def test_the_commands_of_the_guide_verify_a_bundle(
    openssl: str, ssh_keygen: str, tmp_path: Path, kind: str
) -> None:
    if shutil.which("jq") is None:
        lacking("jq is not installed")
    generate(tmp_path / "lab.key")
    key = ssh_key(tmp_path, ssh_keygen, "id")
    (tmp_path / "allowed_signers").write_text("ada@example.org " + (tmp_path / "id.pub").read_text())
    whole = signed_bundle(tmp_path, tmp_path / "lab.key", key)
    script = commands_of_the_guide("openssl pkeyutl" if kind == "openssl" else "ssh-keygen -Y verify")
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    with open_bundle(whole) as reader:
        assert done.stdout.count(reader.manifest_hex) >= 2
    # Another key's signature is refused by the same commands.
    shutil.rmtree(tmp_path / "look")
    for name in ("lab.key", "lab.key.pub", "id", "id.pub"):
        (tmp_path / name).unlink()
    generate(tmp_path / "lab.key")
    ssh_key(tmp_path, ssh_keygen, "id")
    (tmp_path / "allowed_signers").write_text("ada@example.org " + (tmp_path / "id.pub").read_text())
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60).returncode != 0
