"""Provenance: SLSA's predicate, reproducible, signed or plain."""

from __future__ import annotations

import json

import pytest
from signing_samples import SUBJECT, A, blob_of

from mlbundle.errors import BundleCorrupt
from mlbundle.signing.provenance import Build, Dependency, make_predicate, provenance_referrer
from mlbundle.signing.referrers import parse_referrer
from mlbundle.signing.sigstore import sign
from mlbundle.signing.trust import check

ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64
BUILD = Build(
    "digits-cnn", "0.1.0", {"compress": False},
    (Dependency("model.onnx", TWO, "https://example.org/model.onnx"), Dependency("image cpu/amd64", ONE)),
)  # fmt: skip


def test_the_predicate_says_what_went_in() -> None:
    assert make_predicate(BUILD) == {
        "buildDefinition": {
            "buildType": "urn:mlbundle:pack:v1",
            "externalParameters": {"reference": "digits-cnn", "options": {"compress": False}},
            "resolvedDependencies": [
                {"name": "image cpu/amd64", "digest": {"sha256": "1" * 64}},
                {
                    "name": "model.onnx",
                    "uri": "https://example.org/model.onnx",
                    "digest": {"sha256": "2" * 64},
                },
            ],
        },
        "runDetails": {"builder": {"id": "urn:mlbundle", "version": {"mlbundle": "0.1.0"}}},
    }


def test_times_and_names_of_runs_are_stated_only_when_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86399")
    build = Build("m", "0.1.0", {}, internal={"level": 3}, invocation_id="7f3a9c")
    predicate = make_predicate(build)
    assert predicate["runDetails"]["metadata"] == {
        "invocationId": "7f3a9c",
        "startedOn": "1970-01-01T23:59:59Z",
    }
    assert predicate["buildDefinition"]["internalParameters"] == {"level": 3}


def test_without_a_key_it_is_a_plain_statement() -> None:
    referrer = provenance_referrer(BUILD, SUBJECT, "digits-cnn")
    parsed = parse_referrer(referrer.manifest)
    assert parsed.artifact_type == parsed.layers[0].media_type == "application/vnd.in-toto+json"
    statement = json.loads(blob_of(referrer))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": "digits-cnn", "digest": {"sha256": SUBJECT.digest[7:]}}]
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["predicate"] == make_predicate(BUILD)
    assert provenance_referrer(BUILD, SUBJECT, "digits-cnn") == referrer


def test_with_a_key_it_is_an_attestation() -> None:
    referrers = [provenance_referrer(BUILD, SUBJECT, "digits-cnn", A), sign(SUBJECT, "digits-cnn", A)]
    found = check(referrers, SUBJECT, "digits-cnn", [A.public])
    assert [said.predicate_type for said in found.attestations] == ["https://slsa.dev/provenance/v1"]


def test_dependencies_have_digests() -> None:
    with pytest.raises(BundleCorrupt, match="no digest"):
        make_predicate(Build("m", "1", {}, (Dependency("a", "latest"),)))
