"""Decides whether a bundle is trusted: which signatures hold, and whether a policy's rule is content with them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from mlbundle.bundle.attachments import PREDICATE_TYPE
from mlbundle.bundle.digests import PREFIX
from mlbundle.errors import IntegrityError, SignatureInvalid, SignatureMissing
from mlbundle.signing import sigstore, ssh
from mlbundle.signing.policy import Policy, policy_of_keys
from mlbundle.signing.referrers import layer_bytes, parse_referrer
from mlbundle.signing.sshsig import claimed_key
from mlbundle.signing.statement import MEDIA_TYPE, SIGN_PREDICATE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mlbundle.signing.keys import PublicKey
    from mlbundle.signing.policy import Rule
    from mlbundle.signing.referrers import ParsedReferrer, Referrer, Subject

Kind = Literal["sigstore", "ssh"]

_MOST_LISTED = 10


@dataclass(frozen=True, slots=True)
class Signer:
    """A trusted key that signed; `identity` is the name that the policy gives to an SSH key."""

    kind: Kind
    key_id: str
    predicate_type: str
    identity: str | None = None


@dataclass(frozen=True, slots=True)
class Trust:
    """Why a bundle is trusted.

    `signers` are the trusted keys whose signatures hold, `attestations` what they said besides, `others` the keys that
    say they signed and that the rule does not know (not verified). `rule` is the policy's rule that decided;
    `warnings` name signatures that do not hold and referrers that can't be read.
    """

    signers: tuple[Signer, ...]
    rule: Rule
    attestations: tuple[Signer, ...] = ()
    others: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Finding:
    """What one referrer turned out to be.

    Signed by a trusted key (`signer`), perhaps by another one (`stranger`), `broken`, or `odd`: it can't be read, or a
    trusted key signed what is not understood.
    """

    signer: Signer | None = None
    stranger: str | None = None
    broken: str | None = None
    odd: str | None = None
    where: str | None = None


def check(
    referrers: Iterable[Referrer | IntegrityError],
    subject: Subject,
    model_name: str,
    policy: Policy | Sequence[PublicKey],
) -> Trust:
    """Return why the manifest `subject` of the model `model_name` is trusted.

    `referrers` are taken one after the other and let go; an error stands for one that could not be loaded. What does
    not hold is a warning as long as enough other keys signed. Raises SignatureMissing: no rule is for this
    model, no signature, or too few by trusted keys; SignatureInvalid: a signature that says it is by a trusted key
    does not hold, or is about another digest, and without it too few are left. ToolMissing when only ssh-keygen could
    tell.
    """
    if not isinstance(policy, Policy):
        policy = policy_of_keys(policy)
    rule = policy.rule_for(model_name)
    if rule is None:
        raise SignatureMissing(
            f"no rule of the trust policy is for the model {model_name!r}, so it is not trusted",
            where=policy.file,
            hint="add a rule whose name fits",
        )
    findings, warnings = _examine(referrers, subject, rule)
    good = tuple(dict.fromkeys(found.signer for found in findings if found.signer is not None))
    signers = tuple(signer for signer in good if signer.predicate_type == SIGN_PREDICATE)
    broken = [found for found in findings if found.broken is not None]
    others = tuple(dict.fromkeys(found.stranger for found in findings if found.stranger is not None))
    if rule.require == "signature" and _different(signers, rule) < rule.threshold:
        if broken:
            raise _invalid(broken, warnings)
        raise _missing(others, signers, rule, warnings)
    attestations = tuple(signer for signer in good if signer.predicate_type != SIGN_PREDICATE)
    said = [f"{found.where}: {found.broken}" for found in broken]
    return Trust(signers, rule, attestations, others, (*warnings, *said))


def _examine(
    referrers: Iterable[Referrer | IntegrityError], subject: Subject, rule: Rule
) -> tuple[list[_Finding], list[str]]:
    """Return what each signature is, and a warning for each referrer that can't be read."""
    findings: list[_Finding] = []
    warnings: list[str] = []
    # `map` keeps no referrer while the next one is loaded, as the variable of a loop would.
    for found in map(partial(_finding, subject=subject, rule=rule), referrers):
        if found is not None and found.odd is not None:
            warnings.append(f"{found.where}: {found.odd}")
        elif found is not None:
            findings.append(found)
    return findings, warnings


def _finding(referrer: Referrer | IntegrityError, subject: Subject, rule: Rule) -> _Finding | None:
    """Return what a referrer is worth, None when it is no signature."""
    if isinstance(referrer, IntegrityError):
        return _Finding(odd=referrer.message, where=referrer.where)
    try:
        parsed = parse_referrer(referrer.manifest, where=referrer.digest)
    except IntegrityError as error:
        return _Finding(odd=error.message, where=error.where or referrer.digest)
    try:
        return _signature(referrer, parsed, subject, rule)
    except IntegrityError as error:
        return _Finding(broken=error.message, where=error.where or referrer.digest)


def _signature(referrer: Referrer, parsed: ParsedReferrer, subject: Subject, rule: Rule) -> _Finding | None:
    """Return what a referrer is worth as a signature, None when it is none; raises IntegrityError."""
    types = [layer.media_type for layer in parsed.layers]
    if parsed.artifact_type == sigstore.BUNDLE_TYPE and types == [sigstore.BUNDLE_TYPE]:
        finding = _sigstore(layer_bytes(referrer, parsed.layers[0]), parsed, subject, rule, referrer.digest)
    elif parsed.artifact_type == ssh.SSH_TYPE and types == [MEDIA_TYPE, ssh.SSH_TYPE]:
        statement, armoured = (layer_bytes(referrer, layer) for layer in parsed.layers)
        finding = _ssh(statement, armoured, subject, rule, referrer.digest)
    else:
        return None
    if finding.signer is not None and parsed.subject != subject:
        return _Finding(broken="a signature is attached to another manifest", where=referrer.digest)
    return finding


def _sigstore(data: bytes, parsed: ParsedReferrer, subject: Subject, rule: Rule, where: str) -> _Finding:
    envelope = sigstore.parse_bundle(data, where=where)
    if isinstance(envelope, sigstore.Foreign):
        return _Finding(stranger=envelope.what)
    may_have_signed = sigstore.candidates(envelope, rule.keys)
    key = next((key for key in may_have_signed if sigstore.holds(envelope, key)), None)
    if key is None and may_have_signed and envelope.hint is not None:
        return _Finding(
            broken=f"a signature that names the key {may_have_signed[0].id} is not by it", where=where
        )
    if key is None:
        return _Finding(stranger=_stranger(envelope, where))
    signer = _read(envelope.payload, Signer("sigstore", key.id, ""), subject, where)
    annotated = parsed.annotations.get(PREDICATE_TYPE)
    if signer.signer is not None and annotated not in {None, signer.signer.predicate_type}:
        return _Finding(broken="the annotations name another predicate than the one signed", where=where)
    return signer


def _stranger(envelope: sigstore.Envelope, where: str) -> str | None:
    """Name a key that is not trusted; an attestation by it is none of the signatures that are missed."""
    try:
        said = sigstore.read_statement(envelope.payload, where=where)
    except SignatureInvalid:
        return None
    if said.predicate_type != SIGN_PREDICATE:
        return None
    return "a key without a name" if envelope.hint is None else f"the key {PREFIX}{envelope.hint.hex()}"


def _ssh(statement: bytes, armoured: bytes, subject: Subject, rule: Rule, where: str) -> _Finding:
    claimed = claimed_key(armoured, where=where)
    known = next((signer for signer in rule.ssh if signer.key == claimed), None)
    if known is None:
        return _Finding(stranger=f"the SSH key {claimed.fingerprint}")
    if not ssh.holds(statement, armoured, known):
        return _Finding(
            broken=f"a signature that names the SSH key of {known.identity} is not by it", where=where
        )
    return _read(statement, Signer("ssh", claimed.fingerprint, "", known.identity), subject, where)


def _read(statement: bytes, signer: Signer, subject: Subject, where: str) -> _Finding:
    """Return what a statement that a trusted key signed is worth."""
    try:
        said = sigstore.read_statement(statement, where=where)
    except SignatureInvalid as error:
        return _Finding(
            odd=f"{signer.key_id} signed no statement that can be read: {error.message}", where=where
        )
    if not said.is_about(subject.digest):
        return _Finding(broken=f"{signer.key_id} signed another manifest, not {subject.digest}", where=where)
    return _Finding(Signer(signer.kind, signer.key_id, said.predicate_type, signer.identity))


def _different(signers: Sequence[Signer], rule: Rule) -> int:
    """Return how many different keys signed: one that signed in both ways counts once."""
    by_fingerprint = {entry.key.fingerprint: entry.key.id for entry in rule.ssh}
    return len({by_fingerprint.get(signer.key_id, signer.key_id) for signer in signers})


def _invalid(broken: Sequence[_Finding], warnings: Sequence[str]) -> SignatureInvalid:
    further = [f"{found.where}: {found.broken}" for found in broken[1:_MOST_LISTED]]
    return SignatureInvalid(
        broken[0].broken or "",
        where=broken[0].where,
        context=[*further, *warnings[:_MOST_LISTED]],
        hint="the bundle or the signature was changed after it was signed: do not use it",
    )


def _missing(
    others: Sequence[str], signers: Sequence[Signer], rule: Rule, warnings: Sequence[str]
) -> SignatureMissing:
    listed = [f"signed by {name}, which is not trusted" for name in others[:_MOST_LISTED]]
    if len(others) > _MOST_LISTED:
        listed.append(f"and by {len(others) - _MOST_LISTED} more")
    if signers:
        what = f"{_different(signers, rule)} of {rule.threshold} needed signatures by different trusted keys"
    elif others:
        what = "there is no signature by a trusted key"
    else:
        what = "there is no signature"
    hint = "ask whoever packed it for a signature: `mlbundle sign`"
    if others:
        hint = "trust the key that signed it if you know whose it is, or ask for a signature by a trusted one"
    return SignatureMissing(
        what, where=rule.place or None, context=[*listed, *warnings[:_MOST_LISTED]], hint=hint
    )
