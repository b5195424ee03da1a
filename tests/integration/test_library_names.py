"""Names in the library that several bundles want, bundles that lack something, and what was put aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inprocess import InProcess
from support import Cli, Outcome, make_bundle

from mlbundle.bundle.reader import open_bundle
from mlbundle.runs.packing import pack_manifest


def packed(folder: Path, name: str, version: str) -> Path:
    """A bundle file of this name and version."""
    made = make_bundle(folder / f"made-{name}-{version}")
    text = (made / "model.yml").read_text()
    text = text.replace("name: mini\nversion: 1.0.0\n", f"name: '{name}'\nversion: {version}\n")
    (made / "model.yml").write_text(text)
    return pack_manifest(made, folder / f"{name}-{version}.mlb").path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run commands with the test's folder as working folder."""
    monkeypatch.chdir(tmp_path)
    return InProcess(capsys)


def ok(outcome: Outcome) -> dict[str, Any]:
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    return outcome.document()


def listed(cli: Cli) -> list[tuple[str, str, str]]:
    found = ok(cli("list", "--json"))["bundles"]
    return [(b["name"], b["version"], b["where"]) for b in found if b["where"] != "built in"]


def test_a_name_of_several_bundles_is_removed_only_with_all(cli: Cli, tmp_path: Path) -> None:
    for version in ("1.0.0", "1.1.0"):
        ok(cli("add", packed(tmp_path, "mini", version), "--json"))
    refused = cli("rm", "mini", "--json").error(2, "usage")
    assert [line.split("@")[0] for line in refused["context"]] == ["mini:1.0.0", "mini:1.1.0"]
    assert "--all" in refused["hint"]
    assert len(listed(cli)) == 2
    assert len(ok(cli("rm", "mini", "--all", "--dry-run", "--json"))["bundles"]) == 2
    assert len(ok(cli("rm", "mini", "--all", "--json"))["bundles"]) == 2
    assert listed(cli) == []


def test_one_version_of_several_is_removed_by_its_label(cli: Cli, tmp_path: Path) -> None:
    for version in ("1.0.0", "1.1.0"):
        ok(cli("add", packed(tmp_path, "mini", version), "--json"))
    ok(cli("rm", "mini:1.1.0", "--json"))
    assert listed(cli) == [("mini", "1.0.0", "library")]


def test_a_built_in_bundle_is_not_removed(cli: Cli) -> None:
    refused = cli("rm", "digits-cnn", "--json").error(2, "usage")
    assert "built in" in refused["message"]


def test_a_bundle_that_takes_over_a_name_is_announced(cli: Cli, tmp_path: Path) -> None:
    assert "now means" not in cli("add", packed(tmp_path, "mini", "1.0.0")).stderr
    later = packed(tmp_path, "mini", "2.0.0")
    said = cli("add", later).stderr
    assert "mini now means mini:2.0.0@sha256:" in said
    assert "before: mini:1.0.0@sha256:" in said
    assert "now means" not in cli("add", later).stderr
    assert "now means" not in cli("add", packed(tmp_path, "mini", "0.9.0")).stderr


def test_a_bundle_that_takes_over_a_built_in_name_is_announced(cli: Cli, tmp_path: Path) -> None:
    said = cli("add", packed(tmp_path, "digits-cnn", "99.0")).stderr
    assert "digits-cnn now means digits-cnn:99.0@sha256:" in said
    assert "before: the built-in digits-cnn" in said
    # What it means by now is no news.
    assert "built-in" not in cli("add", packed(tmp_path, "digits-cnn", "99.1")).stderr


def test_a_bundle_that_lacks_blobs_is_listed_as_incomplete(cli: Cli, tmp_path: Path, home: Path) -> None:
    path = packed(tmp_path, "mini", "1.0.0")
    ok(cli("add", path, "--json"))
    assert listed(cli) == [("mini", "1.0.0", "library")]
    with open_bundle(path) as reader:
        (weights,) = (layer for layer in reader.layers if layer.path == "model.onnx")
    (home / "data" / "blobs" / "sha256" / weights.hex).unlink()
    assert listed(cli) == [("mini", "1.0.0", "incomplete")]
    assert "lack blobs" in cli("list").stderr
    ok(cli("add", path, "--json"))
    assert listed(cli) == [("mini", "1.0.0", "library")]


def test_what_was_put_aside_is_removed_when_asked_for(cli: Cli, tmp_path: Path, home: Path) -> None:
    path = packed(tmp_path, "mini", "1.0.0")
    ok(cli("add", path, "--json"))
    with open_bundle(path) as reader:
        (weights,) = (layer for layer in reader.layers if layer.path == "model.onnx")
    blob = home / "data" / "blobs" / "sha256" / weights.hex
    blob.chmod(0o600)
    blob.write_bytes(bytes(weights.size_bytes))
    repaired = cli("repair")
    assert repaired.status == 1
    assert "gc --quarantine" in repaired.stderr
    assert "gc --quarantine" in cli("du").stderr
    quarantine = home / "data" / "quarantine"
    for options in ((), ("--quarantine", "--dry-run")):
        ok(cli("gc", *options, "--json"))
        assert len(list(quarantine.iterdir())) == 1
    found = ok(cli("gc", "--quarantine", "--json"))
    assert (found["quarantine"], found["size_bytes"]) == (1, weights.size_bytes)
    assert list(quarantine.iterdir()) == []
    assert "quarantine" not in cli("du").stderr
