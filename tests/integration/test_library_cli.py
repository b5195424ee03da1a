"""The library as users meet it: bundles by name, the space they take, damage and how it heals."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from inprocess import InProcess
from support import Cli, Outcome, make_bundle

from mlbundle.bundle.reader import open_bundle
from mlbundle.runs.packing import pack_manifest

PROCESS = ("--runtime", "process", "--python", sys.executable, "--trust")
QUICK = ("--queries", "64", "--warmup", "1ms", "--trace", "none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("mini") / "mini")


@pytest.fixture(scope="module")
def first(folder: Path) -> Path:
    """`mini` 1.0.0 as a file."""
    return pack_manifest(folder, folder.parent / "first.mlb").path


@pytest.fixture(scope="module")
def second(folder: Path) -> Path:
    """Another bundle of the same name and version; the weights are the same."""
    other = folder.parent / "other"
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / "README.md").write_text("another one\n")
    text = (other / "model.yml").read_text()
    (other / "model.yml").write_text(text.replace("on 24 points", "on two dozen points"))
    return pack_manifest(other, folder.parent / "second.mlb").path


def digest_of(path: Path) -> str:
    with open_bundle(path) as reader:
        return reader.manifest_digest


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run commands with the test's folder as working folder."""
    monkeypatch.chdir(tmp_path)
    return InProcess(capsys)


def ok(outcome: Outcome) -> dict[str, Any]:
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    return outcome.document()


def listed(cli: Cli) -> list[str]:
    """The bundles of the library, as names with versions."""
    found = ok(cli("list", "--json"))["bundles"]
    return [f"{b['name']}:{b['version']}" for b in found if b["name"] == "mini"]


def blobs(home: Path) -> dict[str, Path]:
    folder = home / "data" / "blobs" / "sha256"
    return {path.name: path for path in folder.iterdir() if len(path.name) == 64}


def blob_of(home: Path, bundle: Path, name: str) -> Path:
    """The file in the store of the layer that holds a file of a bundle."""
    with open_bundle(bundle) as reader:
        (layer,) = (layer for layer in reader.layers if layer.path == name)
        return blobs(home)[layer.hex]


def flip(path: Path) -> None:
    """Change one bit in the middle, as a failing disk does: size and time stay."""
    status = path.stat()
    path.chmod(0o600)
    with path.open("r+b") as stream:
        stream.seek(status.st_size // 2)
        byte = stream.read(1)
        stream.seek(status.st_size // 2)
        stream.write(bytes([byte[0] ^ 1]))
    path.chmod(status.st_mode & 0o777)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_bundle_has_a_name(first: Path, cli: Cli, tmp_path: Path) -> None:
    assert listed(cli) == []
    added = ok(cli("add", first, "--json"))
    digest = digest_of(first)
    assert (added["name"], added["version"], added["manifest_digest"]) == ("mini", "1.0.0", digest)
    assert listed(cli) == ["mini:1.0.0"]
    assert ok(cli("add", first, "--json"))["manifest_digest"] == digest
    assert listed(cli) == ["mini:1.0.0"]
    short = digest.removeprefix("sha256:")[:12]
    for name in ("mini", "mini:1.0.0", f"mini:1.0.0@{digest}", f"mini@sha256:{short}", f"@{short}"):
        assert ok(cli("inspect", name, "--json"))["manifest_digest"] == digest, name
    assert ok(cli("verify", "mini", "--json"))["verified"] is True
    ok(cli("pack", "mini", "-o", "again.mlb", "--json"))
    assert (tmp_path / "again.mlb").read_bytes() == first.read_bytes()
    for name in ("mini:2.0.0", "mimi", f"mini@sha256:{'0' * 64}"):
        cli("inspect", name, "--json").error(2, "reference-not-found")
    assert "mini" in (cli("inspect", "mimi", "--json").document()["hint"] or "")


def test_a_manifest_is_packed_on_its_way(folder: Path, first: Path, cli: Cli) -> None:
    assert ok(cli("add", folder, "--json"))["manifest_digest"] == digest_of(first)


def test_two_bundles_of_one_name_are_told_apart(first: Path, second: Path, cli: Cli) -> None:
    digests = [digest_of(path) for path in (first, second)]
    for path in (first, second):
        ok(cli("add", path, "--json"))
    assert listed(cli) == ["mini:1.0.0", "mini:1.0.0"]
    for command in ("inspect", "rm"):
        error = cli(command, "mini:1.0.0", "--json").error(2, "usage")
        said = error["message"] + (error["hint"] or "") + "".join(error["context"])
        assert all(digest.removeprefix("sha256:")[:12] in said for digest in digests), said
    for digest in digests:
        assert ok(cli("inspect", f"mini:1.0.0@{digest}", "--json"))["manifest_digest"] == digest
    ok(cli("rm", f"mini:1.0.0@{digests[0]}", "--json"))
    assert ok(cli("inspect", "mini", "--json"))["manifest_digest"] == digests[1]


def test_what_differs_is_said(first: Path, second: Path, cli: Cli) -> None:
    ok(cli("add", first, "--json"))
    found = cli("diff", "mini", second, "--json")
    assert found.status == 1
    document = found.document()
    assert (document["same_manifest"], document["same_files"]) == (False, False)
    changes = {(c["section"], c["kind"], c["place"]) for c in document["changes"]}
    assert changes == {("model", "changed", "/description"), ("files", "added", "README.md")}
    assert "two dozen" in cli("diff", "mini", second).stdout
    same = cli("diff", "mini", first, "--json")
    assert same.status == 0
    assert same.document()["changes"] == []


def test_space_comes_back_when_nothing_refers_to_it(first: Path, second: Path, cli: Cli, home: Path) -> None:
    for path in (first, second):
        ok(cli("add", path, "--json"))
    digests = [digest_of(path) for path in (first, second)]
    usage = {b["reference"]: b for b in ok(cli("du", "--json"))["bundles"]}
    weights = blob_of(home, first, "model.onnx")
    assert len(usage) == 2
    assert {b["frameworks"] for b in ok(cli("list", "--json"))["bundles"] if b["name"] == "mini"} == {
        "onnxruntime"
    }
    sizes = dict(line.split("  ", 1) for line in cli("du").stdout.split("\n\n", 1)[0].splitlines())
    files = {name: int(rest.split()[0]) for name, rest in sizes.items() if name != "kind"}
    assert files["blobs of several"] > 0
    assert files.pop("total") == sum(files.values()), "nothing is counted twice"
    assert all(b["shared_bytes"] >= weights.stat().st_size and b["own_bytes"] > 0 for b in usage.values())
    assert ok(cli("gc", "--json"))["blobs"] == 0

    names = [f"mini:1.0.0@{digest}" for digest in digests]
    assert ok(cli("rm", names[0], "-n", "--json"))["removed"] is False
    assert len(listed(cli)) == 2
    removed = ok(cli("rm", names[0], "--json"))
    assert [b["manifest_digest"] for b in removed["bundles"]] == [digests[0]]
    before = set(blobs(home))
    planned = ok(cli("gc", "--dry-run", "--json"))
    assert (planned["removed"], set(blobs(home))) == (False, before)
    freed = ok(cli("gc", "--json"))
    assert freed["blobs"] == planned["blobs"] == len(before) - len(blobs(home)) > 0
    assert freed["size_bytes"] > 0
    # What the other bundle needs stays.
    assert weights.exists()
    assert ok(cli("verify", "mini", "--json"))["manifest_digest"] == digests[1]
    ok(cli("rm", "mini", "--json"))
    ok(cli("gc", "--json"))
    assert blobs(home) == {}
    cli("rm", "mini", "--json").error(2, "reference-not-found")


def test_a_name_of_which_one_is_unknown_removes_nothing(first: Path, cli: Cli) -> None:
    ok(cli("add", first, "--json"))
    cli("rm", "mini", "nobody", "--json").error(2, "reference-not-found")
    assert listed(cli) == ["mini:1.0.0"]


def test_a_bundle_runs_by_its_name_and_its_files_stay_for_the_run(first: Path, cli: Cli, home: Path) -> None:
    ok(cli("add", first, "--json"))
    record = cli("run", "mini:1.0.0", *PROCESS, *QUICK, "--json").document()
    assert record["status"] == "completed", record["error"]
    assert record["bundle"]["manifest_digest"] == digest_of(first)
    assert record["accuracy"]["passed"] is True
    trees = list((home / "data").rglob("model.onnx"))
    assert len(trees) == 1
    ok(cli("rm", "mini", "--json"))
    assert ok(cli("gc", "--json"))["trees"] == 0
    assert trees[0].exists()


def test_damage_is_found_set_aside_and_healed(first: Path, cli: Cli, home: Path) -> None:
    ok(cli("add", first, "--json"))
    assert ok(cli("repair", "--json"))["incomplete"] == []
    damaged = blob_of(home, first, "model.onnx")
    flip(damaged)
    error = cli("verify", "mini", "--json").error(5, "digest-mismatch")
    assert "mini" in error["where"]
    cli("unpack", "mini", "-o", "out", "--json").error(5, "digest-mismatch")
    found = cli("repair", "--json")
    assert found.status == 1
    document = found.document()
    assert [entry["lacks"] for entry in document["incomplete"]] == [[damaged.name]]
    assert "quarantine" in document["set_aside"][0]
    assert Path(document["set_aside"][0]).is_file()
    assert not damaged.exists()
    assert listed(cli) == ["mini:1.0.0"]
    assert cli("verify", "mini", "--json").error(5, "bundle-corrupt")["hint"]
    ok(cli("add", first, "--json"))
    assert ok(cli("verify", "mini", "--json"))["verified"] is True
    assert ok(cli("repair", "--json"))["incomplete"] == []


def test_a_bundle_of_the_library_is_signed_by_name(
    first: Path, second: Path, cli: Cli, tmp_path: Path
) -> None:
    ok(cli("add", first, "--json"))
    ok(cli("keygen", "key", "--json"))
    cli("verify", "mini", "--key", "key.pub", "--json").error(1, "signature-missing")
    signed = ok(cli("sign", "mini", "--key", "key", "--json"))
    assert signed["manifest_digest"] == digest_of(first)
    assert len(ok(cli("verify", "mini", "--key", "key.pub", "--json"))["trust"]["signers"]) == 1
    # The same bundle without the signature takes nothing away.
    ok(cli("add", first, "--json"))
    ok(cli("pack", "mini", "-o", "signed.mlb", "--json"))
    assert ok(cli("verify", "signed.mlb", "--key", "key.pub", "--json"))["trust"]["signers"]
    ok(cli("gc", "--json"))
    assert ok(cli("verify", "mini", "--key", "key.pub", "--json"))["trust"]["signers"]
    difference = cli("diff", first, "signed.mlb", "--json")
    assert difference.status == 1
    assert [c["section"] for c in difference.document()["changes"]] == ["attachments"]
    assert difference.document()["same_manifest"] is True
