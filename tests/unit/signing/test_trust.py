"""Whether a bundle is trusted: rules, thresholds, good signatures beside bad ones."""

from __future__ import annotations

import base64
import json
import tracemalloc
from collections.abc import Iterator

import pytest
from signing_samples import OTHER, PUBLIC, SUBJECT, A, B, C, blob_of, rewritten, wrapped

from mlbundle.bundle.oci import MANIFEST_TYPE
from mlbundle.errors import BundleCorrupt, SignatureInvalid, SignatureMissing
from mlbundle.signing.policy import Policy, Rule
from mlbundle.signing.referrers import Layer, Referrer, Subject, make_referrer
from mlbundle.signing.sigstore import BUNDLE_TYPE, PREDICATE_TYPE, attest, sign, sign_statement
from mlbundle.signing.trust import Signer, check

SIGN = "https://sigstore.dev/cosign/sign/v1"
BY_A, BY_B, BY_C = (sign(SUBJECT, "digits", key) for key in (A, B, C))
SAID_BY_A = attest(SUBJECT, "digits", "https://example.org/p", {}, A)


def two_of(*keys: object, threshold: int = 2) -> Policy:
    return Policy("p.yml", (Rule("*", "signature", tuple(keys), threshold=threshold, place="p.yml:3:5"),))  # type: ignore[arg-type]


def broken(referrer: Referrer) -> Referrer:
    def spoil(bundle: dict[str, dict[str, list[dict[str, str]]]]) -> None:
        bundle["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(bytes(64)).decode()

    return rewritten(referrer, spoil)


def test_a_signature_by_a_trusted_key_is_enough() -> None:
    found = check([BY_A], SUBJECT, "digits", PUBLIC)
    assert found.signers == (Signer("sigstore", A.public.id, SIGN),)
    assert (found.warnings, found.others, found.attestations) == ((), (), ())
    assert found.rule.require == "signature"


def test_no_signature_is_a_no() -> None:
    with pytest.raises(SignatureMissing, match=r"there is no signature$") as refused:
        check([], SUBJECT, "digits", PUBLIC)
    assert refused.value.exit_code == 1


def test_the_keys_that_did_sign_are_named() -> None:
    with pytest.raises(SignatureMissing, match="by a trusted key") as refused:
        check([BY_B, BY_C, BY_C], SUBJECT, "digits", [A.public])
    assert refused.value.context == (
        f"signed by the key {B.public.id}, which is not trusted",
        f"signed by the key {C.public.id}, which is not trusted",
    )


def test_a_broken_signature_by_a_trusted_key_is_an_integrity_error() -> None:
    with pytest.raises(SignatureInvalid, match=A.public.id) as refused:
        check([broken(BY_A)], SUBJECT, "digits", PUBLIC)
    assert refused.value.exit_code == 5


def test_a_broken_signature_beside_a_good_one_is_a_warning() -> None:
    for referrers in ([BY_A, broken(BY_B)], [broken(BY_B), BY_A], [BY_A, broken(BY_A)]):
        found = check(referrers, SUBJECT, "digits", PUBLIC)
        assert [signer.key_id for signer in found.signers] == [A.public.id]
        assert len(found.warnings) == 1
        assert "is not by it" in found.warnings[0]


def test_a_signature_of_another_manifest_is_an_integrity_error() -> None:
    other = sign(OTHER, "digits", A)
    with pytest.raises(SignatureInvalid, match="signed another manifest"):
        check([other], SUBJECT, "digits", PUBLIC)
    # The same signature, attached to this manifest by whoever can write here.
    with pytest.raises(SignatureInvalid, match="signed another manifest"):
        check([wrapped(blob_of(other))], SUBJECT, "digits", PUBLIC)
    # And a good statement attached to another manifest, or to one of another size or type.
    with pytest.raises(SignatureInvalid, match="attached to another"):
        check([wrapped(blob_of(BY_A), OTHER)], SUBJECT, "digits", PUBLIC)
    longer = Subject(MANIFEST_TYPE, SUBJECT.digest, SUBJECT.size_bytes + 1)
    with pytest.raises(SignatureInvalid, match="attached to another"):
        check([sign(longer, "digits", A)], SUBJECT, "digits", PUBLIC)


def test_an_attestation_is_no_signature() -> None:
    with pytest.raises(SignatureMissing, match=r"there is no signature$"):
        check([SAID_BY_A], SUBJECT, "digits", PUBLIC)
    with pytest.raises(SignatureMissing, match=r"there is no signature$"):
        check([SAID_BY_A], SUBJECT, "digits", [B.public])
    found = check([BY_B, SAID_BY_A], SUBJECT, "digits", PUBLIC)
    assert [signer.key_id for signer in found.signers] == [B.public.id]
    assert found.attestations == (Signer("sigstore", A.public.id, "https://example.org/p"),)


def test_an_attestation_can_not_pose_as_a_signature_by_its_annotations() -> None:
    bundle = blob_of(SAID_BY_A)
    annotations = {PREDICATE_TYPE: SIGN}
    posing = make_referrer(BUNDLE_TYPE, [Layer(BUNDLE_TYPE, bundle)], SUBJECT, annotations)
    with pytest.raises(SignatureInvalid, match="annotations"):
        check([posing], SUBJECT, "digits", PUBLIC)


def test_a_threshold_counts_different_keys() -> None:
    policy = two_of(A.public, B.public, C.public)
    again = sign(SUBJECT, "the same under another name", A)
    with pytest.raises(SignatureMissing, match="1 of 2 needed signatures") as refused:
        check([BY_A, again, BY_A], SUBJECT, "digits", policy)
    assert refused.value.where == "p.yml:3:5"
    assert {signer.key_id for signer in check([BY_A, BY_C], SUBJECT, "digits", policy).signers} == {
        A.public.id,
        C.public.id,
    }
    with pytest.raises(SignatureInvalid):
        check([BY_A, broken(BY_B)], SUBJECT, "digits", policy)


def test_the_first_rule_that_fits_decides() -> None:
    policy = Policy("p.yml", (
        Rule("digits-*", "signature", (B.public,)), Rule("digits-test", "nothing"), Rule("scratch", "nothing"),
    ))  # fmt: skip
    with pytest.raises(SignatureMissing):
        check([BY_A], SUBJECT, "digits-test", policy)
    assert check([BY_B], SUBJECT, "digits-test", policy).rule is policy.rules[0]
    unsigned = check([BY_A], SUBJECT, "scratch", policy)
    assert (unsigned.signers, unsigned.rule) == ((), policy.rules[2])
    assert unsigned.others == (f"the key {A.public.id}",)
    for name in ("Scratch", "scratch2", "digits"):
        with pytest.raises(SignatureMissing, match="no rule"):
            check([BY_A, BY_B], SUBJECT, name, policy)


def test_referrers_of_other_kinds_are_passed_over_and_damaged_ones_are_named() -> None:
    others = [
        make_referrer("application/vnd.cyclonedx+json", [Layer("a", b"")], SUBJECT),
        make_referrer(BUNDLE_TYPE, [], SUBJECT),
    ]
    damaged = Referrer(b"{}", {})
    found = check([*others, damaged, BY_A], SUBJECT, "digits", PUBLIC)
    assert len(found.signers) == 1
    assert [warning.split(":")[1] for warning in found.warnings] == [
        damaged.digest.split(":")[1] + "#/schemaVersion"
    ]
    with pytest.raises(SignatureMissing) as refused:
        check([damaged], SUBJECT, "digits", PUBLIC)
    assert "schemaVersion" in str(refused.value.context)


def test_a_signature_whose_bytes_are_gone_or_others_is_an_integrity_error() -> None:
    for blobs in ({}, dict.fromkeys(BY_A.blobs, b"other")):
        with pytest.raises(SignatureInvalid):
            check([Referrer(BY_A.manifest, blobs)], SUBJECT, "digits", PUBLIC)


def test_a_trusted_key_that_signed_something_else_is_said() -> None:
    nonsense = wrapped(sign_statement(b"no statement", A))
    with pytest.raises(SignatureMissing) as refused:
        check([nonsense], SUBJECT, "digits", PUBLIC)
    assert "no statement" in str(refused.value.context)
    assert len(check([nonsense, BY_B], SUBJECT, "digits", PUBLIC).warnings) == 1


def test_a_statement_may_have_several_subjects() -> None:
    document = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"digest": {"sha256": "0" * 64}},
            {"digest": {"sha256": SUBJECT.digest[7:], "sha512": "x"}},
        ],
        "predicateType": SIGN,
    }
    signed = wrapped(sign_statement(json.dumps(document).encode(), A))
    assert len(check([signed], SUBJECT, "digits", PUBLIC).signers) == 1


def test_a_flood_of_referrers_hides_no_signature() -> None:
    junk = [
        make_referrer(BUNDLE_TYPE, [Layer(BUNDLE_TYPE, b"%d" % number)], SUBJECT) for number in range(600)
    ]
    found = check([*junk, *[BY_C] * 399, BY_A], SUBJECT, "digits", PUBLIC)
    assert [signer.key_id for signer in found.signers] == [A.public.id]
    assert found.others == (f"the key {C.public.id}",)


def test_one_referrer_at_a_time_is_held_in_memory() -> None:
    def flood() -> Iterator[Referrer]:
        for number in range(24):
            yield make_referrer(BUNDLE_TYPE, [Layer(BUNDLE_TYPE, bytes([number]) * (2 << 20))], SUBJECT)
        yield BY_A

    tracemalloc.start()
    try:
        assert len(check(flood(), SUBJECT, "digits", PUBLIC).signers) == 1
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_referrer_that_could_not_be_loaded_is_no_verdict() -> None:
    with pytest.raises(SignatureMissing) as refused:
        check([BundleCorrupt("it is gone", where="here")], SUBJECT, "digits", PUBLIC)
    assert refused.value.context == ("here: it is gone",)
