"""Signing and trust as users meet them: junk beside signatures, files that are signed twice at once, policies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from inprocess import InProcess
from support import Cli, Outcome, make_bundle

from mlbundle.bundle.assemble import with_referrers, write_archive
from mlbundle.bundle.reader import open_bundle
from mlbundle.runs.attesting import subject_of
from mlbundle.runs.packing import pack_manifest
from mlbundle.signing import keys
from mlbundle.signing.referrers import Layer, Referrer, Subject, make_referrer
from mlbundle.signing.sigstore import BUNDLE_TYPE


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a bundle that nobody signed."""
    folder = make_bundle(tmp_path_factory.mktemp("mini") / "mini")
    return pack_manifest(folder, folder.parent / "mini.mlb").path.read_bytes()


@pytest.fixture
def bundle(packed: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "mini.mlb"
    path.write_bytes(packed)
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    keys.generate(tmp_path / "lab.key")
    return tmp_path / "lab.key"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run commands with the test's folder as working folder."""
    monkeypatch.chdir(tmp_path)
    return InProcess(capsys)


def ok(outcome: Outcome) -> dict[str, Any]:
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    return outcome.document()


def attach(path: Path, made: Sequence[Referrer]) -> None:
    """Attach what a stranger made."""
    with open_bundle(path) as reader:
        added = [(one.manifest, one.blobs) for one in made]
        write_archive(with_referrers(reader, added), path, overwrite=True)


def subject(path: Path) -> Subject:
    with open_bundle(path) as reader:
        return subject_of(reader)


def signers(cli: Cli, path: Path, *public: Path) -> int:
    options = [text for one in public for text in ("--key", f"{one}.pub")]
    return len(ok(cli("verify", path, *options, "--json"))["trust"]["signers"])


def test_what_strangers_attach_does_not_stand_in_the_way_of_a_signature(
    cli: Cli, bundle: Path, key: Path
) -> None:
    ok(cli("sign", bundle, "--key", key, "--json"))
    about = subject(bundle)
    annotated = json.loads(make_referrer(BUNDLE_TYPE, [Layer(BUNDLE_TYPE, b"{}")], about).manifest)
    annotated["layers"][0]["annotations"] = {"x": 1}
    odd = Referrer(json.dumps(annotated).encode(), make_referrer("a", [Layer("b", b"{}")], about).blobs)
    large = make_referrer(BUNDLE_TYPE, [Layer(BUNDLE_TYPE, bytes(9 << 20))], about)
    others = [make_referrer("application/x", [Layer("a", b"%d" % n)], about) for n in range(300)]
    attach(bundle, [odd, large, *others])
    found = ok(cli("verify", bundle, "--key", f"{key}.pub", "--json"))["trust"]
    assert len(found["signers"]) == 1
    assert any("over the cap" in warning for warning in found["warnings"])
    assert len(found["warnings"]) == 2


def test_without_a_signature_junk_is_no_damage(cli: Cli, bundle: Path, key: Path) -> None:
    attach(bundle, [make_referrer(BUNDLE_TYPE, [Layer(BUNDLE_TYPE, bytes(9 << 20))], subject(bundle))])
    refused = cli("verify", bundle, "--key", f"{key}.pub", "--json").error(1, "signature-missing")
    assert "over the cap" in str(refused["context"])
