"""Signing and trust as users meet them: junk beside signatures, files that are signed twice at once, policies."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from inprocess import InProcess
from support import ROOT, Cli, Outcome, lacking, make_bundle

from mlbundle.bundle.assemble import with_referrers, write_archive
from mlbundle.bundle.output import Output
from mlbundle.bundle.reader import open_bundle
from mlbundle.config import load_settings
from mlbundle.errors import ReferenceNotFound, SourceChanged, UsageError
from mlbundle.runs import attesting
from mlbundle.runs.attesting import subject_of
from mlbundle.runs.network import Network
from mlbundle.runs.packing import pack_manifest
from mlbundle.runs.references import Reference
from mlbundle.signing import keys, sigstore
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


def test_two_who_sign_a_file_at_once_both_have_signed(cli: Cli, bundle: Path, tmp_path: Path) -> None:
    """Each waits for the file, reads what the other left, and adds to it."""
    private = [tmp_path / f"k{number}" for number in range(4)]
    for path in private:
        keys.generate(path)

    def sign(path: Path) -> None:
        signed = keys.load_private(path)
        attesting.sign(
            Reference(kind="bundle", text=str(bundle), path=bundle),
            load_settings(),
            Network(),
            lambda about, name: sigstore.sign(about, name, signed),
        )

    with ThreadPoolExecutor(len(private)) as pool:
        list(pool.map(sign, private))
    assert signers(cli, bundle, *private) == len(private)
    assert sorted(path.name for path in tmp_path.iterdir() if "partial" in path.name) == []


def test_a_file_that_somebody_replaces_while_it_is_signed_stays(
    bundle: Path, key: Path, tmp_path: Path, packed: bytes
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"somebody else's")

    def make(about: Subject, name: str) -> Referrer:
        other.replace(bundle)
        return sigstore.sign(about, name, keys.load_private(key))

    with pytest.raises(SourceChanged, match="changed while it was read"):
        attesting.sign(
            Reference(kind="bundle", text=str(bundle), path=bundle), load_settings(), Network(), make
        )
    assert bundle.read_bytes() == b"somebody else's"


def test_signing_keeps_the_permissions_of_a_file_and_the_link_to_it(
    cli: Cli, bundle: Path, key: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.mlb"
    link.symlink_to(bundle.name)
    for mode in (0o600, 0o640):
        bundle.chmod(mode)
        ok(cli("sign", link, "--key", key, "--json"))
        assert stat.S_IMODE(bundle.stat().st_mode) == mode
    assert link.is_symlink()
    assert signers(cli, bundle, key) == 1


def test_what_replaces_a_private_file_is_never_open_to_others(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    finish = Output.finish

    def look(self: Output) -> None:
        seen.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("*.partial"))
        seen.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob(".*.partial"))
        finish(self)

    monkeypatch.setattr(Output, "finish", look)
    bundle.chmod(0o400)
    attach(bundle, [make_referrer("application/x", [Layer("a", b"b")], subject(bundle))])
    assert set(seen) == {0o600}
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o400


def test_sign_replaces_another_file_only_with_force(
    cli: Cli, bundle: Path, key: Path, tmp_path: Path
) -> None:
    target = tmp_path / "signed.mlb"
    target.write_bytes(b"there")
    refused = cli("sign", bundle, "--key", key, "-o", target, "--json").error(2, "usage")
    assert "--force" in refused["hint"]
    assert target.read_bytes() == b"there"
    ok(cli("sign", bundle, "--key", key, "-o", target, "--force", "--json"))
    assert signers(cli, target, key) == 1
    cli("verify", bundle, "--key", f"{key}.pub", "--json").error(1, "signature-missing")


def policy(home: Path, text: str) -> Path:
    """The policy among the settings."""
    path = load_settings().config_dir / "trust.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_policy_among_the_settings_counts_without_being_named(
    cli: Cli, bundle: Path, key: Path, home: Path
) -> None:
    rule = f"schema: mlbundle/trust/v1\nrules:\n  - {{name: '*', require: signature, keys: ['{key}.pub']}}\n"
    assert ok(cli("verify", bundle, "--json"))["trust"] is None
    place = policy(home, rule)
    refused = cli("verify", bundle, "--json").error(1, "signature-missing")
    assert refused["where"].startswith(str(place))
    ok(cli("sign", bundle, "--key", key, "--json"))
    assert len(ok(cli("verify", bundle, "--json"))["trust"]["signers"]) == 1
    policy(home, "rules: 1")
    cli("verify", bundle, "--json").error(2, "usage")
    place.unlink()
    place.symlink_to("nowhere")
    cli("verify", bundle, "--json").error(2, "reference-not-found")


def test_a_signature_that_nobody_checked_is_shown_as_such(cli: Cli, bundle: Path, key: Path) -> None:
    ok(cli("sign", bundle, "--key", key, "--json"))
    assert "attached  signature (not checked: --key or --trust)" in cli("verify", bundle).stdout
    shown = cli("verify", bundle, "--key", f"{key}.pub").stdout
    assert "not checked" not in shown
    assert "signed by" in shown


def test_a_bundle_of_the_library_that_is_signed_still_comes_from_where_it_came_from(
    cli: Cli, bundle: Path, key: Path
) -> None:
    before = ok(cli("add", bundle, "--json"))
    ok(cli("sign", "mini", "--key", key, "--json"))
    (entry,) = (b for b in ok(cli("list", "--json"))["bundles"] if b["name"] == "mini")
    assert entry["description"] == f"from {before['source']}"
    assert before["source"] == str(bundle)
    assert len(ok(cli("verify", "mini", "--key", f"{key}.pub", "--json"))["trust"]["signers"]) == 1


def test_damage_in_the_library_says_how_it_is_mended(cli: Cli, bundle: Path, home: Path) -> None:
    ok(cli("add", bundle, "--json"))
    with open_bundle(bundle) as reader:
        (weights,) = (layer for layer in reader.layers if layer.path == "model.onnx")
    blob = home / "data" / "blobs" / "sha256" / weights.hex
    blob.chmod(0o600)
    blob.write_bytes(bytes(weights.size_bytes))
    hint = cli("verify", "mini", "--json").error(5, "digest-mismatch")["hint"]
    assert "mlbundle repair" in hint
    assert str(bundle) in hint


def test_mistakes_with_keys_are_answered_to_the_point(
    cli: Cli, bundle: Path, key: Path, tmp_path: Path
) -> None:
    refused = cli("keygen", "nowhere/k", "--no-passphrase", "--json").error(2, "usage")
    assert refused["message"] == "the folder nowhere does not exist"
    refused = cli("sign", bundle, "--key", f"{key}.pub", "--json").error(2, "usage")
    assert "public half" in refused["message"]
    for command in ("sign", "verify"):
        refused = cli(command, bundle, "--key", "", "--json").error(2, "usage")
        assert refused["message"] == "no key is named"
    (tmp_path / "first").write_text("right\n")
    (tmp_path / "second").write_text("wrong\n")
    ok(cli("keygen", "k", "--passphrase-file", "first", "--json"))
    refused = cli("sign", bundle, "--key", "k", "--passphrase-file", "second", "--json").error(2, "usage")
    assert "passphrase is wrong" in refused["message"]
    assert "keygen" not in refused["hint"]
    missing = cli("verify", bundle, "--key", "gone.pub", "--json").error(2, "reference-not-found")
    assert "public half" in missing["hint"]
    assert "keygen" not in missing["hint"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("rules: [{name: '*', require: nothing}]\n", "schema: mlbundle/trust/v1"),
        (
            "schema: mlbundle/trust/v1\nrules: [{name: '*', require: signature, keys: [gone.pub]}]\n",
            "relative to the folder of the policy",
        ),
    ],
)
def test_mistakes_in_a_policy_are_explained_once(
    cli: Cli, bundle: Path, tmp_path: Path, text: str, hint: str
) -> None:
    (tmp_path / "p.yml").write_text(text)
    refused = cli("verify", bundle, "--trust", "p.yml", "--json").error(2, "usage")
    assert hint in refused["hint"]
    assert hint not in str(refused["context"])


def test_what_is_attached_can_be_read(bundle: Path, key: Path) -> None:
    private = keys.load_private(key)
    about = subject(bundle)
    report = make_referrer("application/vnd.example.report+json", [Layer("a/b", b'{"fine":true}')], about)
    signed = sigstore.attest(about, "mini", "https://example.org/p", {"says": 1}, private)
    empty = make_referrer("application/vnd.example.empty", [], about)
    attach(bundle, [report, signed, empty])
    with open_bundle(bundle) as reader:
        assert attesting.attachment(reader, report.digest) == b'{"fine":true}'
        assert attesting.attachment(reader, report.digest[7:19]) == b'{"fine":true}'
        statement = json.loads(attesting.attachment(reader, signed.digest[: 7 + 12].upper()))
        assert statement["predicate"] == {"says": 1}
        for prefix in ("", "sha256:", "abc", "xyzx", "../../etc"):
            with pytest.raises(UsageError, match="not the beginning"):
                attesting.attachment(reader, prefix)
        with pytest.raises(ReferenceNotFound, match="nothing with the digest"):
            attesting.attachment(reader, "0" * 64)
        with pytest.raises(ReferenceNotFound, match="empty"):
            attesting.attachment(reader, empty.digest)


def test_the_recipe_for_openssl_finds_the_signature_among_statements(
    bundle: Path, key: Path, tmp_path: Path
) -> None:
    """The commands of docs/signing.md as they stand there; other statements lie before and behind the signature."""
    for tool in ("openssl", "jq"):
        if shutil.which(tool) is None:
            lacking(f"{tool} is not installed")
    keys.generate(tmp_path / "other.key")
    about, private = subject(bundle), keys.load_private(key)
    stated = [sigstore.attest(about, "mini", f"https://example.org/{n}", {}, private) for n in range(6)]
    other = sigstore.sign(about, "mini", keys.load_private(tmp_path / "other.key"))
    attach(bundle, [*stated, other, sigstore.sign(about, "mini", private)])
    text = (ROOT / "docs" / "signing.md").read_text()
    recipe = text.partition("With openssl and jq")[2].partition("```sh\n")[2].partition("```")[0]
    script = recipe.replace("digits-cnn-1.0.0.mlb", "mini.mlb")
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    verdict, signed_digest, held_digest = done.stdout.splitlines()
    assert verdict == "Signature Verified Successfully"
    assert signed_digest == held_digest.split()[0]


def test_what_a_killed_pack_leaves_goes_with_the_next_one(
    cli: Cli, key: Path, tmp_path: Path, home: Path
) -> None:
    folder = make_bundle(tmp_path / "made")
    left = home / "cache" / "staging-00000000"
    left.mkdir(parents=True)
    (left / "bundle.mlb").write_bytes(b"half")
    ok(cli("pack", folder, "--key", key, "-o", "a.mlb", "--json"))
    assert list((home / "cache").glob("staging-*")) == []
    assert signers(cli, tmp_path / "a.mlb", key) == 1
